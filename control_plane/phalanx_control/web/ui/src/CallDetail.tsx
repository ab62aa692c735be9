// One call: where it is, on which ranks, what it costs by phase, and why it failed.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { openCall } from "./choice";
import { reasonOf, phaseOf } from "./CallTable";
import { clock, count, duration, money } from "./format";
import { nowMs, picture } from "./live";
import { State } from "./State";
import { elapsedMs } from "./states";
import type { CallView, CostView, ErrorInfo } from "./types";

export function CallDetail() {
  const id = openCall.value;
  const panel = useRef<HTMLElement>(null);
  useEffect(() => {
    if (id) panel.current?.scrollIntoView({ block: "nearest" });
  }, [id]);
  if (!id) return null;
  const call = picture.value.calls.get(id);
  return (
    <section class="card detail" aria-labelledby="detail-title" ref={panel}>
      <div class="card-head">
        <h2 id="detail-title" class="mono">{id}</h2>
        <span class="grow" />
        <button type="button" class="quiet" onClick={() => (openCall.value = "")} title="close (Esc)">
          close
        </button>
      </div>
      {call ? <Body call={call} /> : <p class="empty">This call is no longer on the page. Try <code>gpuctl ps --all</code>.</p>}
    </section>
  );
}

function Body({ call }: { call: CallView }) {
  const why = reasonOf(call);
  return (
    <div class="detail-body">
      <dl class="facts">
        <Fact name="state"><State state={call.state} /> {phaseOf(call)}</Fact>
        {why && <Fact name="why">{why}</Fact>}
        <Fact name="function">{call.function}</Fact>
        <Fact name="user">{call.user}{call.workspace && ` in ${call.workspace}`}</Fact>
        <Fact name="elapsed">
          {duration(elapsedMs(call, nowMs.value))}{call.earlier.length > 0 && ` in attempt ${call.attempt}`}
          {call.busy_ms > 0 && `, busy ${duration(call.busy_ms)}${call.earlier.length > 0 ? " in all" : ""}`}
        </Fact>
        <Fact name="submitted">{clock(call.submitted_ms)}</Fact>
        {call.started_ms > 0 && <Fact name="started">{clock(call.started_ms)}</Fact>}
        {call.ended_ms > 0 && <Fact name="ended">{clock(call.ended_ms)}</Fact>}
        <Fact name="GPUs">{count(call.gpus)}, {count(call.world_size)} {call.world_size === 1 ? "rank" : "ranks"}</Fact>
        <Fact name="attempt">{call.attempt}, fence {call.fence}{call.direct && ", direct"}</Fact>
        {call.earlier.map((each) => (
          <Fact key={each.attempt} name={`attempt ${each.attempt}`}>
            {each.error}, ran {duration(each.busy_ms)}{each.credited && ", credited"}
          </Fact>
        ))}
        {call.gang_id && <Fact name="gang"><span class="mono">{call.gang_id}</span></Fact>}
        {call.placement && <Fact name="placement">{call.placement}</Fact>}
      </dl>
      <Cost cost={call.cost} />
      {call.ranks.length > 0 && <Ranks call={call} />}
      {call.error.message && <Failure error={call.error} />}
      <p class="muted">
        Output: <code>gpuctl logs {call.call_id}</code>
      </p>
    </div>
  );
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

function Cost({ cost }: { cost: CostView }) {
  return (
    <table class="small">
      <caption>
        Cost {money(cost.money, cost.currency)}
        {Number(cost.price_per_gpu_hour) > 0 && ` at ${money(cost.price_per_gpu_hour, cost.currency)} per GPU-hour`}
        {Number(cost.credit) > 0 && `, ${money(cost.credit, cost.currency)} credited`}
      </caption>
      <tbody>
        {cost.phases.map((phase) => (
          <tr key={phase.phase}>
            <th scope="row">{phase.phase.replace("_", " ")}</th>
            <td class="number">{(phase.gpu_ms / 1000).toFixed(1)} GPU-s</td>
            <td class="number">{phase.charged ? money(phase.money, cost.currency) : "not charged"}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Ranks({ call }: { call: CallView }) {
  return (
    <table class="small">
      <caption>Ranks</caption>
      <thead>
        <tr>
          <th scope="col" class="number">Rank</th>
          <th scope="col">Node</th>
          <th scope="col" class="number">GPU</th>
          <th scope="col" class="number">Pid</th>
          <th scope="col">State</th>
        </tr>
      </thead>
      <tbody>
        {call.ranks.map((rank) => (
          <tr key={rank.rank}>
            <td class="number">{rank.rank}</td>
            <td class="mono">{rank.node_id}</td>
            <td class="number" title={rank.gpu}>{rank.gpu ? rank.gpu_index : "none"}</td>
            <td class="number">{rank.pid || ""}</td>
            <td>{rank.state}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Failure({ error }: { error: ErrorInfo }) {
  const where = error.rank >= 0 ? `rank ${error.rank}${error.node_id && ` on ${error.node_id}`}` : error.node_id;
  const end = error.signal ? `signal ${error.signal}` : error.exit_code ? `exit code ${error.exit_code}` : "";
  return (
    <div class="failure">
      <h3>
        {error.type_name || error.cause.replace("_", " ")}: {error.message}
      </h3>
      <p class="muted">{[error.cause.replace("_", " "), where, end].filter(Boolean).join(", ")}</p>
      {error.traceback && <pre tabIndex={0}>{error.traceback}</pre>}
    </div>
  );
}
