// Who answers, whether it is live, and what the reader should know before believing a number.
import { nextTheme, theme } from "./choice";
import { ago } from "./format";
import { isPlayed } from "./Kpis";
import { feedState, nowMs, picture } from "./live";

const STALE_MS = 20_000; // the server pings every 15 s
const WORDS = { connecting: "connecting", live: "live", lost: "disconnected", signed_out: "signed out" } as const;

function ageMs(): number {
  const { heardAt, skewMs } = feedState.value;
  return heardAt ? Math.max(0, nowMs.value - skewMs - heardAt) : 0;
}

export function isStale(): boolean {
  const { status, heardAt } = feedState.value;
  return status === "lost" || status === "signed_out" || (heardAt > 0 && ageMs() > STALE_MS);
}

export function Header() {
  const { server } = picture.value;
  const { status, heardAt } = feedState.value;
  const word = status === "live" && isStale() ? "late" : WORDS[status];
  return (
    <header class="top">
      <h1>phalanx</h1>
      {server.cell && <span class="cell" title="cell: one control plane and its nodes">{server.cell}</span>}
      <span class="grow" />
      <span class={`live ${isStale() ? "is-stale" : `is-${status}`}`} role="status">
        <span class="dot" aria-hidden="true" />
        {word}
      </span>
      {heardAt > 0 && <span class="age">updated {ago(ageMs())}</span>}
      <button type="button" class="quiet" onClick={nextTheme} title="theme (t)">
        theme: {theme.value}
      </button>
    </header>
  );
}

export function Banner() {
  const { status, heardAt } = feedState.value;
  if (!isStale()) return null;
  if (status === "signed_out") {
    return (
      <p class="banner" role="alert">
        You are signed out. Run <code>gpuctl open</code> for a new login link.
      </p>
    );
  }
  const last = heardAt ? `the last update came ${ago(ageMs())}; what you see is from then` : "nothing has arrived yet";
  return (
    <p class="banner" role="alert">
      Disconnected: {last}. Reconnecting. If it stays so, run <code>gpuctl status</code>.
    </p>
  );
}

export function HonestyStrip() {
  const { server, nodes } = picture.value;
  const gpus = [...nodes.values()].flatMap((node) => node.gpus);
  const simulated = gpus.filter((gpu) => gpu.info.simulated).length;
  const played = gpus.filter(isPlayed).length;
  return (
    <footer class="strip">
      {simulated > 0 && (
        <strong class="warn">
          {simulated === gpus.length ? `simulated GPUs: all ${simulated}` : `${simulated} of ${gpus.length} GPUs are simulated`},
          {played > 0 && ` ${played} of them are played: nothing runs there;`} ranks run on CPU
        </strong>
      )}
      {server.version && <span>version {server.version}</span>}
      {server.role && (
        <span title={`leader ${server.leader_id}`}>
          served by the {server.role}, epoch {server.epoch}
        </span>
      )}
      <span>read-only: act with gpuctl</span>
      <span class="keys">
        <kbd>/</kbd> filter <kbd>j</kbd> <kbd>k</kbd> move <kbd>Enter</kbd> open <kbd>Esc</kbd> close
      </span>
    </footer>
  );
}
