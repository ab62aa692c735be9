// All calls, live ones first. Only the rows in view are in the document, however many calls there are.
import { computed, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { litGang, openCall, query } from "./choice";
import { clock, count, duration, money, shortId } from "./format";
import { nowMs, picture } from "./live";
import { State } from "./State";
import { elapsedMs, inOrder, lookOf, matches } from "./states";
import type { CallView } from "./types";

const ROW_PX = 34; // .calls tbody tr in style.css
const SPARE_ROWS = 6;
const scroll = signal({ top: 0, height: 600 });

const shown = computed(() => inOrder(picture.value.calls.values()).filter((call) => matches(call, query.value)));

export function CallTable() {
  const total = picture.value.calls.size;
  const calls = shown.value;
  return (
    <section class="card calls" aria-labelledby="calls-title">
      <div class="card-head">
        <h2 id="calls-title">Calls</h2>
        <span class="muted">
          {calls.length === total ? count(total) : `${count(calls.length)} of ${count(total)}`}
        </span>
        <span class="grow" />
        <input
          id="filter"
          type="search"
          placeholder="Filter: state:failed gpus>=8"
          aria-label="Filter calls"
          value={query.value}
          onInput={(event) => (query.value = event.currentTarget.value)}
        />
      </div>
      {calls.length === 0 ? <Empty total={total} /> : <Rows calls={calls} />}
    </section>
  );
}

function Empty({ total }: { total: number }) {
  if (total) return <p class="empty">No call fits the filter.</p>;
  return (
    <p class="empty">
      No calls yet. Run one: <code>gpuctl run examples/hello_gang.py</code>
    </p>
  );
}

function Rows({ calls }: { calls: readonly CallView[] }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => (scroll.value = { top: element.scrollTop, height: element.clientHeight });
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      watch.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);
  const first = Math.max(0, Math.floor(scroll.value.top / ROW_PX) - SPARE_ROWS);
  const last = Math.min(calls.length, Math.ceil((scroll.value.top + scroll.value.height) / ROW_PX) + SPARE_ROWS);
  return (
    <div class="scroll" ref={box}>
      <table aria-rowcount={calls.length + 1}>
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col">Call</th>
            <th scope="col">Function</th>
            <th scope="col" class="wide">User</th>
            <th scope="col" class="number">GPUs</th>
            <th scope="col" class="number">Elapsed</th>
            <th scope="col" class="number">Cost</th>
            <th scope="col" class="wide reason">Phase / why</th>
          </tr>
        </thead>
        <tbody onKeyDown={onRowKey} onMouseLeave={() => (litGang.value = "")}>
          <Spacer rows={first} />
          {calls.slice(first, last).map((call, i) => (
            <Row key={call.call_id} call={call} index={first + i} />
          ))}
          <Spacer rows={calls.length - last} />
        </tbody>
      </table>
    </div>
  );
}

function Spacer({ rows }: { rows: number }) {
  return rows > 0 ? <tr class="spacer" aria-hidden="true" style={{ height: `${rows * ROW_PX}px` }} /> : null;
}

function Row({ call, index }: { call: CallView; index: number }) {
  const open = openCall.value === call.call_id;
  return (
    <tr
      class={rowClass(call, open)}
      tabIndex={0}
      aria-selected={open}
      aria-rowindex={index + 2}
      data-call={call.call_id}
      onClick={() => (openCall.value = open ? "" : call.call_id)}
      onMouseEnter={() => (litGang.value = call.ended_ms ? "" : call.gang_id)}
    >
      <td>
        <State state={call.state} />
      </td>
      <td class="mono" title={call.call_id}>
        {shortId(call.call_id)}
      </td>
      <td class="name" title={call.function}>
        {call.function}
      </td>
      <td class="wide">{call.user}</td>
      <td class="number">{count(call.gpus)}</td>
      <td class="number" title={clock(call.submitted_ms)}>
        {duration(elapsedMs(call, nowMs.value))}
      </td>
      <td class="number">{money(call.cost.money, call.cost.currency)}</td>
      <td class="wide reason" title={reasonOf(call)}>
        {[phaseOf(call), reasonOf(call)].filter(Boolean).join(": ")}
      </td>
    </tr>
  );
}

function rowClass(call: CallView, open: boolean): string {
  const lit = litGang.value !== "" && litGang.value === call.gang_id && !call.ended_ms;
  return [open && "is-open", lit && "is-lit"].filter(Boolean).join(" ");
}

export function phaseOf(call: CallView): string {
  if (call.ended_ms) return "";
  const words = [call.phase === lookOf(call.state).word ? "" : call.phase.replace("_", " ")];
  if (call.state === "assigned" && call.world_size > 1) words.push(`${call.ready_ranks}/${call.world_size} ranks`);
  if (call.step) words.push(`step ${count(call.step)}`);
  return words.filter(Boolean).join(" ");
}

export function reasonOf(call: CallView): string {
  if (call.reason) return call.queue_position ? `${call.queue_position}. in queue: ${call.reason}` : call.reason;
  return call.error.message ? `${call.error.type_name || call.error.cause}: ${call.error.message}` : "";
}

function onRowKey(event: KeyboardEvent): void {
  const row = (event.target as HTMLElement).closest<HTMLElement>("tr[data-call]");
  if (!row) return;
  const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
  if (event.key === "Enter" || event.key === " ") openCall.value = row.dataset["call"] ?? "";
  else if (next instanceof HTMLElement && next.dataset["call"]) next.focus();
  else return;
  event.preventDefault();
}

// j and k move from wherever the reader is; the first press goes to the first row in view.
export function stepRow(by: 1 | -1): void {
  const rows = [...document.querySelectorAll<HTMLElement>("tr[data-call]")];
  const at = rows.indexOf(document.activeElement as HTMLElement);
  rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}
