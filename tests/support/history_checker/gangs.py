"""I4, I6 and I7: gangs, which are leases. All GPUs or none, all ranks or none, and every GPU given back."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.history_checker.records import Batch, Event, Findings, shares

_UNSOUND = frozenset({"quarantined", "external", "down"})


@dataclass(slots=True)
class GangFacts:
    id: str
    fence: int
    world_size: int
    gpus: dict[str, tuple[str, float]]
    """GPU → (node, share)."""
    opened: Batch
    nodes: frozenset[str]
    prepared: set[str] = field(default_factory=set[str])
    ready: set[str] = field(default_factory=set[str])
    ended: dict[str, Batch] = field(default_factory=dict[str, Batch])
    state: str = "reserved"
    was_ready: bool = False
    released: Batch | None = None
    lost: bool = False


class Gangs:
    """Follows nodes, GPUs and gangs; ``facts`` are for the ledger's and the markers' parts."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.facts: dict[str, GangFacts] = {}
        self._held: dict[str, dict[str, float]] = {}
        self._unsound: dict[str, str] = {}
        self._inventory: dict[str, set[str]] = {}
        self._lost_nodes: set[str] = set()
        self._last_fence = 0

    def see(self, batch: Batch, event: Event) -> None:
        kind = event["kind"]
        if kind == "GangReserved":
            self._reserved(batch, event["gang"])
        elif kind == "NodeJoined":
            info = event["info"]
            self._inventory[info["node_id"]] = {gpu["uuid"] for gpu in info.get("gpus", ())}
            self._lost_nodes.discard(info["node_id"])
        elif kind == "NodeStateChanged":
            self._node_changed(event)
        elif kind == "GpuMarked":
            self._unsound[event["gpu"]] = event["state"]
        elif kind == "CallAssigned":
            self._assigned(batch, event)
        elif "gang_id" in event and not kind.startswith(("Meter", "Call", "Direct")):
            self._on_gang(batch, event, kind)

    def end(self, *, still_open: bool) -> None:
        """The history is over: every lease was given back, unless the run goes on."""
        for gang in self.facts.values():
            if gang.released is None and not still_open:
                self._findings.add("I7", None, f"{gang.id} still holds {len(gang.gpus)} GPUs: it is {gang.state}")

    def _node_changed(self, event: Event) -> None:
        if event["state"] == "lost":
            self._lost_nodes.add(event["node_id"])
        else:
            self._lost_nodes.discard(event["node_id"])

    def _reserved(self, batch: Batch, gang: Event) -> None:
        gpus = shares(gang["members"])
        facts = GangFacts(
            id=gang["id"],
            fence=gang["fence"],
            world_size=sum(m["member"].get("ranks", 1) for m in gang["members"]),
            gpus=gpus,
            opened=batch,
            nodes=frozenset(m["member"]["node_id"] for m in gang["members"]),
        )
        if gang["id"] in self.facts:
            self._findings.add("I4", batch, f"{gang['id']} reserved twice")
        if gang["fence"] <= self._last_fence:
            self._findings.add("I3", batch, f"{gang['id']}: lease fence {gang['fence']} after {self._last_fence}")
        self._last_fence = max(self._last_fence, gang["fence"])
        self.facts[gang["id"]] = facts
        for gpu, (node, share) in gpus.items():
            self._lease(batch, facts, gpu, node, share)

    def _lease(self, batch: Batch, gang: GangFacts, gpu: str, node: str, share: float) -> None:
        if gpu not in self._inventory.get(node, set[str]()):
            self._findings.add("I7", batch, f"{gang.id} leases {gpu}, which {node} does not have")
        if self._unsound.get(gpu) in _UNSOUND:
            self._findings.add("I7", batch, f"{gang.id} leases {gpu}, which is {self._unsound[gpu]}")
        if node in self._lost_nodes:
            self._findings.add("I7", batch, f"{gang.id} leases {gpu} of {node}, which is lost")
        holders = self._held.setdefault(gpu, {})
        if sum(holders.values()) + share > 1 + 1e-9:
            self._findings.add("I4", batch, f"{gpu} leased to {gang.id} while {', '.join(sorted(holders))} holds it")
        holders[gang.id] = share

    def _assigned(self, batch: Batch, event: Event) -> None:
        gang = self.facts.get(event["gang_id"])
        if gang is None or not gang.was_ready or gang.released is not None:
            state = gang.state if gang else "unknown"
            self._findings.add("I6", batch, f"{event['call_id']} assigned to {event['gang_id']}, which is {state}")

    def _on_gang(self, batch: Batch, event: Event, kind: str) -> None:
        gang = self.facts.get(event["gang_id"])
        if gang is None:
            self._findings.add("I6", batch, f"{kind} of {event['gang_id']}, which was never reserved")
            return
        if gang.released is not None and not (kind == "MemberHasEnded" and gang.lost):
            self._findings.add("I6", batch, f"{kind} of {gang.id} after its release")
            return
        node = event.get("node_id", "")
        if node and node not in gang.nodes:
            self._findings.add("I6", batch, f"{kind} of {gang.id} from {node}, which is no member")
        self._step(batch, gang, kind, event)

    def _step(self, batch: Batch, gang: GangFacts, kind: str, event: Event) -> None:
        if kind == "MemberWasPrepared":
            gang.prepared.add(event["node_id"])
        elif kind == "MemberWasReady":
            gang.ready.add(event["node_id"])
        elif kind == "GangStarting":
            self._all(batch, gang, gang.prepared, "starts ranks", "not prepared")
            gang.state = "starting"
        elif kind == "GangReady":
            self._all(batch, gang, gang.ready, "is called ready", "not ready")
            gang.state, gang.was_ready = "ready", True
        elif kind == "GangDraining":
            gang.state = "draining"
        elif kind == "MemberHasEnded":
            self._member_ended(batch, gang, event["node_id"])
        elif kind == "GangReleased":
            self._released(batch, gang, lost=bool(event.get("lost")))

    def _all(self, batch: Batch, gang: GangFacts, done: set[str], what: str, lack: str) -> None:
        missing = sorted(gang.nodes - done)
        if missing:
            self._findings.add("I6", batch, f"{gang.id} {what} while {', '.join(missing)} is {lack}")

    def _member_ended(self, batch: Batch, gang: GangFacts, node: str) -> None:
        if node in gang.ended:
            self._findings.add("I6", batch, f"{gang.id} ended twice on {node}")
        gang.ended[node] = batch
        for gpu, (owner, _) in gang.gpus.items():
            if owner == node:
                self._held.get(gpu, {}).pop(gang.id, None)

    def _released(self, batch: Batch, gang: GangFacts, *, lost: bool) -> None:
        missing = sorted(gang.nodes - set(gang.ended))
        if missing and not lost:
            self._findings.add("I6", batch, f"{gang.id} released while {', '.join(missing)} has not ended")
        gang.state, gang.released, gang.lost = "lost" if lost else "released", batch, lost
        for gpu in gang.gpus:
            self._held.get(gpu, {}).pop(gang.id, None)
