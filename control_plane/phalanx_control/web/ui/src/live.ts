// The page's own copy of the picture, as signals, fed by the shared worker (or by a feed of its own without one).
import { signal } from "@preact/signals";
import { Feed } from "./feed";
import type { FeedMessage, FeedState } from "./feed";
import { emptyPicture, withPatch } from "./model";
import type { Picture } from "./model";

export const picture = signal<Picture>(emptyPicture);
export const feedState = signal<FeedState>({ status: "connecting", heardAt: 0, skewMs: 0 });
export const nowMs = signal(Date.now()); // the server's wall clock, as well as it is known

export function goLive(): void {
  setInterval(tick, 1_000);
  if (typeof SharedWorker === "undefined") new Feed(take).start();
  else joinWorker();
}

function joinWorker(): void {
  const name = document.documentElement.dataset["worker"] ?? "worker.js";
  const { port } = new SharedWorker(name, { name: "phalanx-feed" });
  port.onmessage = (event: MessageEvent<FeedMessage>) => take(event.data);
  addEventListener("pagehide", () => port.postMessage("bye"));
  addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });
}

function take(message: FeedMessage): void {
  if (message.kind === "picture") picture.value = message.picture;
  if (message.kind === "patch") picture.value = withPatch(picture.value, message.patch);
  feedState.value = message.state;
  tick();
}

function tick(): void {
  nowMs.value = Date.now() + feedState.value.skewMs;
}
