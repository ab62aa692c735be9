// Nodes × GPUs. Colour is the gang, hollow is idle, hatched is broken; one GPU pointed at lights its whole gang.
import { computed, signal } from "@preact/signals";
import { litGang, query } from "./choice";
import { bytes, shortId } from "./format";
import { isBroken } from "./Kpis";
import { picture } from "./live";
import { withGangs } from "./palette";
import type { Ink, Inks } from "./palette";
import type { GpuView, NodeView } from "./types";

const CELL = 30;
const GAP = 4;
const WARM = new Set(["ready"]);
const STARTING = new Set(["pending", "reserved", "preparing", "starting"]);

let lastInks: Inks = new Map();
const inks = computed(() => (lastInks = withGangs(lastInks, [...picture.value.gangs.keys()])));
const pointedAt = signal("");

function columnsOf(gpus: number): number {
  return gpus <= 4 ? Math.max(gpus, 1) : Math.min(8, Math.ceil(gpus / 2));
}

export function ClusterMap() {
  const nodes = [...picture.value.nodes.values()].sort((a, b) => a.node_id.localeCompare(b.node_id, "en", { numeric: true }));
  const total = nodes.reduce((sum, node) => sum + node.gpus.length, 0);
  return (
    <section class="card map" aria-labelledby="map-title">
      <div class="card-head">
        <h2 id="map-title">Cluster</h2>
        <span class="muted">
          {nodes.length} {nodes.length === 1 ? "node" : "nodes"}, {total} GPUs
        </span>
      </div>
      <svg class="defs" width="0" height="0" aria-hidden="true">
        <defs>
          <pattern id="cross" width="6" height="6" patternUnits="userSpaceOnUse">
            <path class="hatch" d="M0 0l6 6M6 0l-6 6" />
          </pattern>
          <pattern id="stripe" width="6" height="6" patternUnits="userSpaceOnUse">
            <path class="over" d="M-1 5l6-6M1 7l6-6" />
          </pattern>
          <pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
            <circle class="over-dot" cx="3" cy="3" r="1.2" />
          </pattern>
        </defs>
      </svg>
      {nodes.length === 0 ? (
        <p class="empty">
          No node has joined. Start one with <code>gpuctl up</code>.
        </p>
      ) : (
        <div class="nodes" onMouseLeave={() => point(undefined)}>
          {nodes.map((node) => (
            <Node key={node.node_id} node={node} />
          ))}
        </div>
      )}
      <PointedAt />
      <Legend />
    </section>
  );
}

function Node({ node }: { node: NodeView }) {
  const columns = columnsOf(node.gpus.length);
  const rows = Math.max(1, Math.ceil(node.gpus.length / columns));
  const box = `0 0 ${columns * (CELL + GAP) + GAP} ${rows * (CELL + GAP) + GAP}`;
  return (
    <div class={`node node-${node.state}`}>
      <div class="node-head" title={node.reason || `${node.hostname} ${node.data_address}`}>
        <span class="mono">{node.node_id}</span>
        {node.state !== "ready" && <span class="node-state">{node.state}</span>}
      </div>
      <svg viewBox={box} role="group" aria-label={`GPUs of ${node.node_id}`} onKeyDown={moveFocus}>
        {node.gpus.map((gpu, i) => (
          <Gpu key={gpu.info.uuid} node={node} gpu={gpu} column={i % columns} row={Math.floor(i / columns)} first={i === 0} />
        ))}
      </svg>
    </div>
  );
}

interface GpuProps {
  readonly node: NodeView;
  readonly gpu: GpuView;
  readonly column: number;
  readonly row: number;
  readonly first: boolean;
}

function Gpu({ node, gpu, column, row, first }: GpuProps) {
  const gang = gpu.gang_id;
  const ink = gang ? (inks.value.get(gang) ?? freshInk(gang)) : undefined;
  const x = GAP + column * (CELL + GAP);
  const y = GAP + row * (CELL + GAP);
  const box = { x, y, width: CELL, height: CELL, rx: 4 };
  const lit = litGang.value === "" ? "" : litGang.value === gang ? " is-lit" : " is-dim";
  return (
    <g
      class={`gpu ${fillOf(gpu, ink)}${lit}`}
      role="button"
      tabIndex={first ? 0 : -1}
      aria-label={describe(node, gpu)}
      onMouseEnter={() => point(gpu, node)}
      onFocus={() => point(gpu, node)}
      onBlur={() => point(undefined)}
      onClick={() => filterByGang(gang)}
    >
      <rect class="fill" {...box} />
      {ink?.pattern && <rect class={`over-${ink.pattern}`} {...box} />}
      {isBroken(gpu) && <rect class="broken-hatch" {...box} />}
      {ink && !isBroken(gpu) && (
        <text class={ink.pattern && "on-pattern"} x={x + CELL / 2} y={y + CELL / 2 + 4}>
          {ink.number}
        </text>
      )}
    </g>
  );
}

function fillOf(gpu: GpuView, ink: Ink | undefined): string {
  if (isBroken(gpu)) return `broken broken-${gpu.info.state}`;
  if (!ink) return gpu.info.state === "cleaning" ? "idle cleaning" : "idle";
  const state = picture.value.gangs.get(gpu.gang_id)?.state ?? "";
  const depth = STARTING.has(state) ? "forming" : WARM.has(state) ? "warm" : state === "draining" ? "draining" : "busy";
  return `gang gang-${ink.colour} ${depth}`;
}

// A GPU may name its gang a moment before the gang's own view arrives.
function freshInk(gang: string): Ink | undefined {
  lastInks = withGangs(lastInks, [...lastInks.keys(), gang]);
  return lastInks.get(gang);
}

function describe(node: NodeView, { info, gang_id, function: name, user }: GpuView): string {
  const what = `${node.node_id} GPU ${info.index}, ${info.simulated ? "simulated" : info.model || "GPU"}, ${bytes(info.memory_bytes)}`;
  if (isBroken({ info, gang_id, function: name, user })) return `${what}: ${info.state}${info.reason ? `, ${info.reason}` : ""}`;
  if (!gang_id) return `${what}: ${info.state === "free" ? "idle" : info.state}`;
  const gang = picture.value.gangs.get(gang_id);
  const ink = inks.value.get(gang_id);
  return `${what}: gang ${ink?.number ?? ""} ${shortId(gang_id)} ${gang?.state ?? ""}, ${name || (gang?.function ?? "")}, ${user || (gang?.user ?? "")}`;
}

function point(gpu: GpuView | undefined, node?: NodeView): void {
  litGang.value = gpu?.gang_id ?? "";
  pointedAt.value = gpu && node ? describe(node, gpu) : "";
}

function filterByGang(gang: string): void {
  const wanted = gang ? `gang:${gang}` : "";
  query.value = query.value === wanted ? "" : wanted;
}

function moveFocus(event: KeyboardEvent): void {
  const cells = [...document.querySelectorAll<SVGGElement>(".nodes .gpu")];
  const at = cells.indexOf(event.target as SVGGElement);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 4, ArrowUp: -4 }[event.key];
  if (event.key === "Enter" || event.key === " ") (event.target as SVGGElement).dispatchEvent(new MouseEvent("click", { bubbles: true }));
  else if (step === undefined || at < 0) return;
  else cells[Math.min(Math.max(at + step, 0), cells.length - 1)]?.focus();
  event.preventDefault();
}

function PointedAt() {
  return <p class="pointed">{pointedAt.value || "Point at a GPU to see its gang; click to list the gang's calls."}</p>;
}

function Legend() {
  const sample = (classes: string, hatch = false) => (
    <svg viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">
      <g class={`gpu ${classes}`}>
        <rect class="fill" x="1" y="1" width="12" height="12" rx="2" />
        {hatch && <rect class="broken-hatch" x="1" y="1" width="12" height="12" rx="2" />}
      </g>
    </svg>
  );
  return (
    <ul class="legend" aria-label="Legend">
      <li>{sample("idle")} idle</li>
      <li>{sample("gang gang-0 forming")} starting</li>
      <li>{sample("gang gang-0 busy")} busy</li>
      <li>{sample("gang gang-0 warm")} warm, no call</li>
      <li>{sample("broken", true)} broken or not ours</li>
    </ul>
  );
}
