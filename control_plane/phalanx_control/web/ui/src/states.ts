// Call states as users see them: an icon, a word and a colour, never colour alone. Pure.
import type { CallView } from "./types";

export type Tone = "running" | "queued" | "starting" | "succeeded" | "failed" | "cancelled";

interface Look {
  readonly tone: Tone;
  readonly word: string;
  readonly rank: number; // the order of the table: what needs eyes first
}

const LOOKS: Readonly<Record<string, Look>> = {
  running: { tone: "running", word: "running", rank: 0 },
  cancelling: { tone: "cancelled", word: "cancelling", rank: 1 },
  assigned: { tone: "starting", word: "starting", rank: 2 },
  queued: { tone: "queued", word: "queued", rank: 3 },
  accepted: { tone: "queued", word: "accepted", rank: 3 },
  failed: { tone: "failed", word: "failed", rank: 4 },
  timed_out: { tone: "failed", word: "timed out", rank: 4 },
  succeeded: { tone: "succeeded", word: "succeeded", rank: 4 },
  cancelled: { tone: "cancelled", word: "cancelled", rank: 4 },
};

export function lookOf(state: string): Look {
  return LOOKS[state] ?? { tone: "cancelled", word: state || "unknown", rank: 5 };
}

export function isLive(call: CallView): boolean {
  return lookOf(call.state).rank < 4;
}

// Live calls by state, then age; ended ones after them, latest first.
export function inOrder(calls: Iterable<CallView>): CallView[] {
  return [...calls].sort((a, b) => {
    const rank = lookOf(a.state).rank - lookOf(b.state).rank;
    if (rank) return rank;
    if (!isLive(a)) return b.ended_ms - a.ended_ms || (a.call_id < b.call_id ? -1 : 1);
    return a.submitted_ms - b.submitted_ms || (a.call_id < b.call_id ? -1 : 1);
  });
}

export function elapsedMs(call: CallView, nowMs: number): number {
  if (call.state === "queued" || call.state === "accepted") return nowMs - call.submitted_ms;
  const from = call.started_ms || call.submitted_ms;
  return (call.ended_ms || nowMs) - from;
}

export function matches(call: CallView, query: string): boolean {
  return query
    .toLowerCase()
    .split(/\s+/)
    .every((word) => word === "" || matchesWord(call, word));
}

function matchesWord(call: CallView, word: string): boolean {
  const [field, value] = word.split(":", 2);
  if (value !== undefined && field === "state") return lookOf(call.state).word.includes(value) || call.state === value;
  if (value !== undefined && field === "user") return call.user.toLowerCase().includes(value);
  if (value !== undefined && field === "gang") return call.gang_id.startsWith(value);
  const least = /^gpus>=(\d+)$/.exec(word);
  if (least) return call.gpus >= Number(least[1]);
  return `${call.call_id} ${call.function} ${call.user} ${call.state} ${call.reason}`.toLowerCase().includes(word);
}
