"""A history in which nothing is wrong, and the marks of its ranks: for planting faults into. Standard library only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.history_checker import Batch, Marker

Event = dict[str, Any]
WALL_MS = 1_700_000_000_000
GPUS = {"n1": ("GPU-n1-0", "GPU-n1-1"), "n2": ("GPU-n2-0", "GPU-n2-1")}


def event(kind: str, **fields: Any) -> Event:
    return {"kind": kind, **fields}


def gang(name: str, fence: int) -> Event:
    """A 2 × 2 gang over both nodes."""
    members = [
        {"member": {"node_id": node, "first_rank": 2 * i, "ranks": 2, "gpus": list(gpus), "share": 1}}
        for i, (node, gpus) in enumerate(GPUS.items())
    ]
    return {"id": name, "fence": fence, "function_id": "f-1", "members": members}


def gang_up(name: str, fence: int) -> list[list[Event]]:
    on_both = [
        [event(kind, gang_id=name, node_id=node) for node in GPUS] for kind in ("MemberWasPrepared", "MemberWasReady")
    ]
    reserved = [event("GangReserved", gang=gang(name, fence))]
    meters = [event("MeterOpened", gang_id=name, node_id=node, wall_ms=0) for node in GPUS]
    return [
        reserved + meters,
        [*on_both[0], event("GangStarting", gang_id=name)],
        [*on_both[1], event("GangReady", gang_id=name)],
    ]


def gang_down(name: str, busy_ms: int) -> list[list[Event]]:
    counted = [
        event("MeterCounted", gang_id=name, node_id=node, counters={f"{gpu}/busy": busy_ms for gpu in gpus})
        for node, gpus in GPUS.items()
    ]
    ended = [event("MemberHasEnded", gang_id=name, node_id=node) for node in GPUS]
    closed = [event("MeterClosed", gang_id=name, node_id=node, wall_ms=0) for node in GPUS]
    draining = event("GangDraining", gang_id=name, reason="idle")
    return [[draining], [*counted, *ended, *closed, event("GangReleased", gang_id=name)]]


def assigned(call: str, gang_id: str, attempt: int, fence: int) -> list[Event]:
    names = {"call_id": call, "attempt": attempt, "fence": fence}
    return [event("CallAssigned", gang_id=gang_id, **names), event("CallRan", wall_ms=0, **names)]


def accepted(call: str) -> Event:
    return event("CallAccepted", call={"id": call, "function_id": "f-1"})


def clean_history() -> list[Batch]:
    """c-1 succeeds; c-2 fails once with its gang and succeeds on the next; c-3 is cancelled; c-4 is direct."""
    nodes = [
        event("NodeJoined", info={"node_id": node, "gpus": [{"uuid": gpu} for gpu in gpus]})
        for node, gpus in GPUS.items()
    ]
    direct = {"call_id": "c-4", "attempt": 1, "fence": 0, "wall_ms": 0, "call": {"id": "c-4", "gang_id": "g-2"}}
    steps = [
        [event("LeaderTookOver", epoch=1, leader_id="a"), *nodes],
        [accepted("c-1"), accepted("c-2"), accepted("c-3")],
        *gang_up("g-1", 1),
        assigned("c-1", "g-1", 1, 1),
        [event("CallSucceeded", call_id="c-1", fence=1, result={}, busy_ms=900, wall_ms=0)],
        assigned("c-2", "g-1", 1, 1),
        [event("CallRequeued", call_id="c-2", cause="infrastructure", killed_gang="g-1")],
        *gang_down("g-1", 5_000),
        *gang_up("g-2", 2),
        assigned("c-2", "g-2", 2, 2),
        [event("CallSucceeded", call_id="c-2", fence=2, result={}, busy_ms=900, wall_ms=0)],
        assigned("c-3", "g-2", 1, 1),
        [event("CallCancelling", call_id="c-3", by="ana")],
        [event("CallCancelled", call_id="c-3", wall_ms=0)],
        [event("CallRan", **direct)],
        [event("CallSucceeded", call_id="c-4", fence=0, result={}, busy_ms=900, wall_ms=0)],
        *gang_down("g-2", 6_000),
        [event("CallsArchived", call_ids=["c-1"])],
    ]
    return number(steps)


def number(steps: list[list[Event]]) -> list[Batch]:
    """Numbers the batches from 1, a second apart, all of one leader."""
    return [Batch(i, 1, "a", i * 1000, WALL_MS + i * 1000, tuple(events)) for i, events in enumerate(steps, start=1)]


def at(batches: list[Batch], kind: str, **fields: Any) -> tuple[int, int]:
    """Returns (batch index, event index) of the first event of this kind with these fields."""
    for i, batch in enumerate(batches):
        for k, each in enumerate(batch.events):
            if each["kind"] == kind and all(each.get(name) == value for name, value in fields.items()):
                return i, k
    raise LookupError(f"no {kind} with {fields}")


def with_event(batches: list[Batch], place: tuple[int, int], *events: Event) -> list[Batch]:
    """Returns the history with the event at ``place`` replaced by ``events``."""
    i, k = place
    old = batches[i].events
    changed = replace(batches[i], events=(*old[:k], *events, *old[k + 1 :]))
    return [*batches[:i], changed, *batches[i + 1 :]]


def after(batches: list[Batch], place: tuple[int, int], *events: Event) -> list[Batch]:
    """Returns the history with ``events`` added behind the event at ``place``."""
    return with_event(batches, place, batches[place[0]].events[place[1]], *events)


def span(call: str, attempt: int, gang_id: str, fence: int, batch: int, *, rank: int) -> list[Marker]:
    """One rank's start and stop: half a second after the batch, and 0.2 s later."""
    gpu = [g for gpus in GPUS.values() for g in gpus][rank]
    mono_ns = batch * 1_000_000_000 + 500_000_000
    start = Marker(
        op="start",
        call=call,
        attempt=attempt,
        gang=gang_id,
        fence=fence,
        rank=rank,
        pid=100 * fence + rank,
        gpu=gpu,
        mono_ns=mono_ns,
        wall_ns=WALL_MS * 1_000_000 + mono_ns,
    )
    return [start, replace(start, op="stop", mono_ns=mono_ns + 200_000_000, wall_ns=start.wall_ns + 200_000_000)]


def clean_markers() -> list[Marker]:
    runs = (
        ("c-1", 1, "g-1", 1),
        ("c-2", 1, "g-1", 1),
        ("c-2", 2, "g-2", 2),
        ("c-3", 1, "g-2", 2),
        ("c-4", 1, "g-2", 2),
    )
    history = clean_history()
    out: list[Marker] = []
    for call, attempt, gang_id, fence in runs:
        i, _ = at(history, "CallRan", call_id=call, attempt=attempt)
        for rank in range(4):
            out += span(call, attempt, gang_id, fence, i + 1, rank=rank)
    return sorted(out, key=lambda m: m.mono_ns)
