"""The same GPUs on every node of a gang, so that what travels between nodes stays on one rail.

Nodes that look alike share their tables, so a set of places means the same on each of them. Where no such set is free
on all of the nodes, others that are as near are tried; where there is none, each node gives its own best set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, islice
from operator import and_

from phalanx.core.topology.islands import Islands
from phalanx_control.scheduler.domains import Portion
from phalanx_control.scheduler.kinds import GpuKind
from phalanx_control.scheduler.nearest import Bench, Picked, bench_of, pick
from phalanx_control.scheduler.room import NodeRoom

_NODES_TRIED = 64
"""Of a portion, the fullest first."""
_SETS_TRIED = 2_000
"""All there are on a node of eight GPUs; the best ones of larger nodes."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one node gives; ``picked`` is None where its free GPUs make no allowed set after all."""

    room: NodeRoom
    picked: Picked | None


@dataclass(frozen=True, slots=True)
class Parts:
    """``note``: a remark for the placement's sentence where sets are not the same, or are on purpose."""

    parts: tuple[Part, ...]
    note: str = ""


def pick_alike(portions: Sequence[Portion], model: GpuKind, each: int) -> Parts:
    """Returns the gang's GPUs on each node, ``each`` of them."""
    rooms = [node.room for portion in portions for node in portion.nodes[: portion.count]]
    benches = [bench_of(room, model) for room in rooms]
    known = [bench for bench in benches if bench is not None]
    if len(known) < len(rooms):
        return _own(rooms, model, each)
    if any(bench.look != known[0].look for bench in known):
        return _own(rooms, model, each, "not the same GPUs on every node: the nodes are of different kinds")
    same = _same_places(rooms, known, each) or _others_with_the_same(portions, model, each, known[0])
    return same or _own(rooms, model, each, f"not the same GPUs on every node: no set of {each} is free on all of them")


def _own(rooms: Sequence[NodeRoom], model: GpuKind, each: int, note: str = "") -> Parts:
    return Parts(tuple(Part(room, pick(room, model, each)) for room in rooms), note)


def _same_places(rooms: Sequence[NodeRoom], benches: Sequence[Bench], each: int) -> Parts | None:
    """A port that is down on one of the nodes is avoided on all of them where there is a choice."""
    common = reduce(and_, (bench.free for bench in benches))
    up = reduce(and_, (bench.up for bench in benches), common)
    rings = (benches[0].ring(each, within=within) for within in (up, common))
    ring, why = next((found for found in rings if found[0]), ((), ""))
    if not ring:
        return None
    whole = each == len(benches[0].tables.devices)
    parts = tuple(Part(room, bench.at(ring, why)) for room, bench in zip(rooms, benches, strict=True))
    return Parts(parts, "" if whole else "the same GPUs on every node")


def _others_with_the_same(portions: Sequence[Portion], model: GpuKind, each: int, first: Bench) -> Parts | None:
    """Looks for as many nodes of each portion that have one set in common, the fewest free GPUs in all.

    None also for nodes of more GPUs than a table holds: their sets are not listed.
    """
    tables = first.tables
    if isinstance(tables, Islands) or each > len(tables.devices):
        return None
    offers = [_offers(portion, model, first.look) for portion in portions]
    best: tuple[int, list[tuple[NodeRoom, Bench]]] | None = None
    for places in islice(chain.from_iterable(masks for _, masks in tables.order[each]), _SETS_TRIED):
        found: list[tuple[NodeRoom, Bench]] = []
        for portion, offer in zip(portions, offers, strict=True):
            having = (pair for pair in offer if not places & ~pair[1].free)
            found += islice(having, portion.count)
        free = sum(bench.free.bit_count() for _, bench in found)
        if len(found) == sum(portion.count for portion in portions) and (best is None or free < best[0]):
            best = free, found
    if best is None:
        return None
    return _same_places([room for room, _ in best[1]], [bench for _, bench in best[1]], each)


def _offers(portion: Portion, model: GpuKind, look: str) -> list[tuple[NodeRoom, Bench]]:
    rooms = (node.room for node in portion.nodes[:_NODES_TRIED])
    pairs = ((room, bench_of(room, model)) for room in rooms)
    return [(room, bench) for room, bench in pairs if bench is not None and bench.look == look]
