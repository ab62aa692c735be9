// The few icons of the page, drawn here: 12 × 12, in the colour of the text around them.
import type { Tone } from "./states";

const SHAPES: Readonly<Record<Tone, string>> = {
  running: "M3 1.5v9l7.5-4.5z",
  queued: "M6 .75a5.25 5.25 0 1 0 0 10.5A5.25 5.25 0 0 0 6 .75m0 1.5a3.75 3.75 0 1 1 0 7.5 3.75 3.75 0 0 1 0-7.5m-.6 1v3.1l2.4 1.4.6-1-1.8-1.1V3.25z",
  starting: "M6 .75a5.25 5.25 0 1 0 0 10.5A5.25 5.25 0 0 0 6 .75m0 1.5v7.5a3.75 3.75 0 0 1 0-7.5",
  succeeded: "M10.2 2 4.6 7.9 1.9 5.2.8 6.3l3.8 3.8L11.3 3.1z",
  failed: "m2.3 1.2-1.1 1.1L4.9 6 1.2 9.7l1.1 1.1L6 7.1l3.7 3.7 1.1-1.1L7.1 6l3.7-3.7-1.1-1.1L6 4.9z",
  cancelled: "M6 .75a5.25 5.25 0 1 0 0 10.5A5.25 5.25 0 0 0 6 .75m0 1.5c.8 0 1.5.2 2.1.6L2.9 8.1A3.75 3.75 0 0 1 6 2.25m3.1 1.6A3.75 3.75 0 0 1 3.9 9.1z",
};

export function StateIcon({ tone }: { tone: Tone }) {
  return (
    <svg class="icon" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
      <path d={SHAPES[tone]} />
    </svg>
  );
}
