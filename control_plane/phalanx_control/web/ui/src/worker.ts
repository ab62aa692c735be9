// One connection per browser: browsers allow six per host, and every tab shares this worker's.
import { Feed } from "./feed";
import type { FeedMessage } from "./feed";

const ports = new Set<MessagePort>();
const feed = new Feed((message) => ports.forEach((port) => port.postMessage(message)));
feed.start();

addEventListener("connect", (event) => {
  const port = (event as MessageEvent).ports[0];
  if (!port) return;
  ports.add(port);
  port.onmessage = () => ports.delete(port); // a page says one thing: that it goes
  const hello: FeedMessage = { kind: "picture", picture: feed.picture, state: feed.state };
  port.postMessage(hello);
});
