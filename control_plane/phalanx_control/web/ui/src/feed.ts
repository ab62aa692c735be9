// The one connection to the server: snapshot, then patches. Runs in the shared worker, or in the page without one.
import { emptyPicture, fromSnapshot, withPatch } from "./model";
import type { Patch, Picture, Snapshot } from "./model";

export const EVENTS_PATH = "/api/v1/events";

export interface FeedState {
  readonly status: "connecting" | "live" | "lost" | "signed_out";
  readonly heardAt: number; // browser wall ms at which the server last said anything; 0 = never
  readonly skewMs: number; // server wall clock minus this browser's
}

export type FeedMessage =
  | { readonly kind: "picture"; readonly picture: Picture; readonly state: FeedState }
  | { readonly kind: "patch"; readonly patch: Patch; readonly state: FeedState }
  | { readonly kind: "state"; readonly state: FeedState };

const SILENT_MS = 40_000; // two pings and some: the connection is dead even if the browser has not noticed
const FIRST_RETRY_MS = 1_000;
const LAST_RETRY_MS = 10_000;

export class Feed {
  picture: Picture = emptyPicture;
  state: FeedState = { status: "connecting", heardAt: 0, skewMs: 0 };
  private source: EventSource | undefined;
  private retryMs = FIRST_RETRY_MS;
  private bestSkewMs = -Infinity;

  constructor(private readonly tell: (message: FeedMessage) => void) {}

  start(): void {
    this.open();
    setInterval(() => {
      const silent = Date.now() - this.state.heardAt > SILENT_MS;
      if (this.state.status === "live" && silent) this.reopen(0);
    }, 5_000);
  }

  private open(): void {
    const source = new EventSource(EVENTS_PATH);
    this.source = source;
    this.bestSkewMs = -Infinity;
    source.addEventListener("snapshot", (event) => {
      this.picture = fromSnapshot(read(event) as Snapshot);
      this.heard(event);
      this.tell({ kind: "picture", picture: this.picture, state: this.state });
    });
    source.addEventListener("patch", (event) => {
      const patch = read(event) as Patch;
      this.picture = withPatch(this.picture, patch);
      this.heard(event);
      this.tell({ kind: "patch", patch, state: this.state });
    });
    source.addEventListener("ping", (event) => {
      this.heard(event);
      this.tell({ kind: "state", state: this.state });
    });
    source.addEventListener("reset", () => this.reopen(0));
    source.addEventListener("error", () => void this.failed(source));
  }

  private heard(event: Event): void {
    const at = Date.now();
    this.retryMs = FIRST_RETRY_MS;
    this.state = { status: "live", heardAt: at, skewMs: event.type === "snapshot" ? this.state.skewMs : this.skew(event, at) };
  }

  // An event may have waited on its way, never travelled back in time: the freshest one tells the server's clock best.
  private skew(event: Event, at: number): number {
    const serverMs = (read(event) as { now_ms?: unknown }).now_ms;
    if (typeof serverMs !== "number") return this.state.skewMs;
    this.bestSkewMs = Math.max(this.bestSkewMs, serverMs - at);
    return this.bestSkewMs;
  }

  // The browser reconnects by itself, with Last-Event-ID, unless the server refused the request outright.
  private async failed(source: EventSource): Promise<void> {
    this.become("lost");
    if (source.readyState !== EventSource.CLOSED || source !== this.source) return;
    if (await signedOut()) this.become("signed_out");
    this.reopen(this.retryMs * (0.75 + Math.random() / 2));
    this.retryMs = Math.min(this.retryMs * 2, LAST_RETRY_MS);
  }

  private reopen(afterMs: number): void {
    this.source?.close();
    setTimeout(() => this.open(), afterMs);
  }

  private become(status: FeedState["status"]): void {
    this.state = { ...this.state, status };
    this.tell({ kind: "state", state: this.state });
  }
}

function read(event: Event): unknown {
  const text = (event as MessageEvent<string>).data;
  return text ? JSON.parse(text) : {};
}

async function signedOut(): Promise<boolean> {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), 3_000);
  try {
    const answer = await fetch(EVENTS_PATH, { signal: stop.signal });
    stop.abort();
    return answer.status === 401 || answer.status === 403;
  } catch {
    return false; // not reachable is not signed out
  } finally {
    clearTimeout(timer);
  }
}
