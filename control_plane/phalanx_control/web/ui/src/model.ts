// What the page knows, and how server events change it. No DOM, no network: the worker and the page share it.
import { noCallView, noGangView, noNodeView, noServerInfo } from "./types";
import type { CallView, GangView, NodeView, ServerInfo } from "./types";

export interface Picture {
  readonly nodes: ReadonlyMap<string, NodeView>;
  readonly calls: ReadonlyMap<string, CallView>;
  readonly gangs: ReadonlyMap<string, GangView>;
  readonly server: ServerInfo;
}

type Change = readonly [key: string, fields: Record<string, unknown>];

export interface Snapshot {
  readonly nodes?: readonly Partial<NodeView>[];
  readonly calls?: readonly Partial<CallView>[];
  readonly gangs?: readonly Partial<GangView>[];
  readonly server?: Partial<ServerInfo>;
}

export interface Patch {
  readonly nodes?: readonly Change[];
  readonly calls?: readonly Change[];
  readonly gangs?: readonly Change[];
  readonly server?: Partial<ServerInfo>;
  readonly removed?: Partial<Record<"nodes" | "calls" | "gangs", readonly string[]>>;
}

export const emptyPicture: Picture = { nodes: new Map(), calls: new Map(), gangs: new Map(), server: noServerInfo };

export function fromSnapshot(snapshot: Snapshot): Picture {
  return {
    nodes: keyed(snapshot.nodes ?? [], noNodeView, "node_id"),
    calls: keyed(snapshot.calls ?? [], noCallView, "call_id"),
    gangs: keyed(snapshot.gangs ?? [], noGangView, "gang_id"),
    server: { ...noServerInfo, ...snapshot.server },
  };
}

export function withPatch(before: Picture, patch: Patch): Picture {
  const removed = patch.removed ?? {};
  return {
    nodes: changed(before.nodes, noNodeView, "node_id", patch.nodes, removed.nodes),
    calls: changed(before.calls, noCallView, "call_id", patch.calls, removed.calls),
    gangs: changed(before.gangs, noGangView, "gang_id", patch.gangs, removed.gangs),
    server: patch.server ? { ...before.server, ...patch.server } : before.server,
  };
}

function keyed<T extends object>(items: readonly Partial<T>[], empty: T, key: keyof T): Map<string, T> {
  return new Map(items.map((item) => [String(item[key]), { ...empty, ...item }]));
}

function changed<T extends object>(
  before: ReadonlyMap<string, T>,
  empty: T,
  key: keyof T,
  changes: readonly Change[] = [],
  removed: readonly string[] = [],
): ReadonlyMap<string, T> {
  if (changes.length === 0 && removed.length === 0) return before;
  const after = new Map(before);
  for (const [id, fields] of changes) {
    after.set(id, { ...(after.get(id) ?? { ...empty, [key]: id }), ...(fields as Partial<T>) });
  }
  for (const id of removed) after.delete(id);
  return after;
}
