// The row of numbers at the top: what is free, what works, what waits, what it costs per hour.
import type { ComponentChildren } from "preact";
import { count, money } from "./format";
import { picture } from "./live";
import type { Picture } from "./model";
import type { GpuView } from "./types";

const BROKEN = new Set(["quarantined", "down", "external"]);

export function isBroken(gpu: GpuView): boolean {
  return BROKEN.has(gpu.info.state);
}

// Played GPUs run nothing and cost nothing: the name of their model begins with the word, as in core/played.py.
export function isPlayed(gpu: GpuView): boolean {
  return gpu.info.model.toLowerCase().startsWith("played ");
}

interface Numbers {
  readonly gpus: number;
  readonly free: number;
  readonly used: number;
  readonly broken: number;
  readonly queued: number;
  readonly starting: number;
  readonly running: number;
  readonly perHour: number;
  readonly currency: string;
}

export function numbersOf({ nodes, calls }: Picture): Numbers {
  const gpus = [...nodes.values()].flatMap((node) => node.gpus);
  const list = [...calls.values()];
  const used = gpus.filter((gpu) => gpu.gang_id !== "" && !isBroken(gpu));
  const priced = list.find((call) => Number(call.cost.price_per_gpu_hour) > 0)?.cost;
  const state = (...names: string[]) => list.filter((call) => names.includes(call.state)).length;
  return {
    gpus: gpus.length,
    free: gpus.filter((gpu) => gpu.gang_id === "" && gpu.info.state === "free").length,
    used: used.length,
    broken: gpus.filter(isBroken).length,
    queued: state("queued", "accepted"),
    starting: state("assigned"),
    running: state("running", "cancelling"),
    perHour: used.filter((gpu) => !isPlayed(gpu)).length * Number(priced?.price_per_gpu_hour ?? 0),
    currency: priced?.currency ?? "USD",
  };
}

function Kpi({ name, children, note, tone }: { name: string; children: ComponentChildren; note?: string; tone?: string }) {
  return (
    <div class={tone ? `kpi tone-${tone}` : "kpi"}>
      <dt>{name}</dt>
      <dd>
        {children}
        {note && <small>{note}</small>}
      </dd>
    </div>
  );
}

export function Kpis() {
  const n = numbersOf(picture.value);
  return (
    <dl class="kpis">
      <Kpi name="GPUs free" note={` of ${count(n.gpus)}`}>{count(n.free)}</Kpi>
      <Kpi name="GPUs used">{count(n.used)}</Kpi>
      <Kpi name="GPUs broken" {...(n.broken ? { tone: "failed" } : {})}>{count(n.broken)}</Kpi>
      <Kpi name="calls running" {...(n.starting ? { note: ` + ${count(n.starting)} starting` } : {})}>{count(n.running)}</Kpi>
      <Kpi name="calls queued" {...(n.queued ? { tone: "queued" } : {})}>{count(n.queued)}</Kpi>
      <Kpi name="money per hour" note=" leased now">{money(n.perHour, n.currency)}</Kpi>
    </dl>
  );
}
