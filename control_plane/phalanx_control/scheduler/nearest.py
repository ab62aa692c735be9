"""Which of a node's free GPUs a gang gets: the best connected, in the order of their best ring.

Where a node has not said what connects its GPUs, the lowest indices. Tables are made once for all nodes that look
alike; a node of more GPUs than a table holds has one for each of its islands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from phalanx.core.topology.bitsets import mask_of
from phalanx.core.topology.choice import choose
from phalanx.core.topology.codec import from_json, topology_hash
from phalanx.core.topology.devices import devices_of, nic_sights
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.islands import Islands, Spread, build_islands, choose_spread
from phalanx.core.topology.never import Limits
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.refusals import Cause, Refusal
from phalanx.core.topology.tables import MOST_DEVICES, Score, Tables, build_tables
from phalanx_control.scheduler.kinds import GpuKind
from phalanx_control.scheduler.room import GpuRoom, NodeRoom

_KINDS_OF_NODES = 64
_NODES = 16_384
_CHOICES = 65_536
_RESTRICTIONS = ('"partitions":', '"mig":', '"mig_enabled": true', '"copies": false', '"health": "lost"')
"""A topology without any of these words allows every set of its GPUs."""
_TOO_FEW = frozenset({Cause.NOT_ENOUGH, Cause.MIG})


Kind = Tables | Islands
"""What is known of all nodes that look alike."""


@dataclass(frozen=True, slots=True)
class Picked:
    """``gpus`` in rank order; ``why`` is empty where nothing is known of their links."""

    gpus: tuple[GpuRoom, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """A node's free GPUs as a set of places in the tables of its kind, which nodes that look alike share."""

    tables: Kind
    free: int
    by_place: dict[int, GpuRoom]
    unnamed: tuple[GpuRoom, ...] = ()
    """Free GPUs of which the topology says nothing."""
    look: str = ""
    """The same for nodes that look alike when all of their ports are up: places mean the same on them."""
    up: int = -1
    """Places whose nearest port is not down."""

    def pick(self, count: int, *, within: int = -1) -> Picked | None:
        """Returns the best set of the free GPUs, or of those among them that are ``within``."""
        chosen = _choose(self.tables, self.free & within, count)
        if not isinstance(chosen, Refusal):
            return self.at(chosen.ring, chosen.why)
        return self._with_unnamed(count) if within == -1 and chosen.cause in _TOO_FEW else None

    def ring(self, count: int, *, within: int) -> tuple[tuple[int, ...], str]:
        """Returns the places of the best set of those that are ``within``, in ring order, and why; no places: none."""
        chosen = _choose(self.tables, self.free & within, count)
        return ((), "") if isinstance(chosen, Refusal) else (tuple(chosen.ring), chosen.why)

    def at(self, ring: tuple[int, ...], why: str) -> Picked:
        return Picked(tuple(self.by_place[at] for at in ring), why)

    def _with_unnamed(self, count: int) -> Picked | None:
        """Fills up with GPUs that nobody knows the links of: not knowing is no reason to wait."""
        extra = self.unnamed[:count]
        for more in range(1, len(extra) + 1):
            named = Picked(()) if more == count else self.pick(count - more, within=self.free)
            if named is not None:
                why = f"{more} of them without known links" if named.gpus else ""
                return Picked((*named.gpus, *extra[:more]), why)
        return None


def learn(topology: str) -> None:
    """Reads what connects a node's GPUs when it joins, so that no decision waits for that: it takes a millisecond."""
    _known(topology)


def pick(room: NodeRoom, model: GpuKind, count: int) -> Picked | None:
    """Returns ``count`` free GPUs of the node; None where it has no such set."""
    free = room.free(model)
    if len(free) < count:
        return None
    bench = bench_of(room, model) if count else None
    return Picked(tuple(free[:count])) if bench is None else bench.pick(count)


def can_pick(room: NodeRoom, model: GpuKind, count: int) -> bool:
    """Says whether enough free GPUs make a set that is allowed; reads no topology that allows them all."""
    return not _is_restricted(room.node.info.topology) or pick(room, model, count) is not None


def why_none(room: NodeRoom, model: GpuKind, count: int) -> str:
    """Returns why the node's free GPUs make no set of ``count``, though there are enough; "" where they do."""
    bench = bench_of(room, model)
    chosen = _choose(bench.tables, bench.free, count) if bench is not None else None
    return chosen.reason if isinstance(chosen, Refusal) else ""


def bench_of(room: NodeRoom, model: GpuKind) -> Bench | None:
    """Returns the node's free GPUs; None where nothing is known of what connects them."""
    known = _known(room.node.info.topology)
    if known is None:
        return None
    tables, places, named, look, up = known
    free = room.free(model)
    by_place = {places[gpu.info.uuid]: gpu for gpu in free if gpu.info.uuid in places}
    unnamed = tuple(gpu for gpu in free if gpu.info.uuid not in named)
    return Bench(tables, mask_of(by_place), by_place, unnamed, look, up)


@dataclass(frozen=True, slots=True)
class Ideal:
    """The best set of a node's GPUs if all were free, in ring order, and what its ring has; what the chosen one has."""

    gpus: tuple[GpuRoom, ...]
    gbyte_s: float
    chosen_gbyte_s: float


def ideal_of(room: NodeRoom, model: GpuKind, chosen: Sequence[GpuRoom]) -> Ideal | None:
    """Returns what the node would give as many GPUs as were chosen, if all were free; None where that is no better."""
    known = _known(room.node.info.topology)
    if known is None or len(chosen) < 2 or isinstance(known[0], Islands):
        return None
    tables, places = known[0], known[1]
    usable = {places[gpu.info.uuid]: gpu for gpu in room.matching(model) if gpu.usable and gpu.info.uuid in places}
    ours = [places[gpu.info.uuid] for gpu in chosen if gpu.info.uuid in places]
    best = _choose(tables, mask_of(usable), len(chosen))
    if not isinstance(best, Chosen) or len(ours) < len(chosen):
        return None
    ring = Score.of(tables.score[mask_of(ours)]).ring_mbyte_s
    if best.score.ring_mbyte_s <= ring:
        return None
    return Ideal(tuple(usable[at] for at in best.ring), best.ring_gbyte_s, ring / 1000)


def why_never(room: NodeRoom, model: GpuKind, count: int) -> str:
    """Returns why the node can give no gang ``count`` of its GPUs, however free it is; "" where it could."""
    text = room.node.info.topology
    if not text or not _is_restricted(text):
        return ""
    return _limits(text).why_never([gpu.info.uuid for gpu in room.matching(model)], count)


@lru_cache(maxsize=_NODES)
def _limits(text: str) -> Limits:
    try:
        return Limits.of(from_json(text))
    except UnreadableTopologyError:
        return Limits()


@lru_cache(maxsize=_NODES)
def _is_restricted(text: str) -> bool:
    return any(word in text for word in _RESTRICTIONS)


@lru_cache(maxsize=_NODES)
def _known(text: str) -> tuple[Kind, dict[str, int], frozenset[str], str, int] | None:
    """Returns the tables that fit a topology, where in them each GPU stands, all GPUs that it names, what it would look
    like with all ports up, and the places whose nearest port is.
    """
    if not text:
        return None
    try:
        topology = from_json(text)
    except UnreadableTopologyError:
        return None
    devices = devices_of(topology)
    if not devices:
        return None
    places = {device.uuid: at for at, device in enumerate(devices)}
    named = frozenset(gpu.uuid for gpu in topology.gpus) | places.keys()
    look = topology_hash(topology)
    tables = _TABLES.of(topology, look)
    if all(nic.up is not False for nic in topology.nics):
        return tables, places, named, look, -1
    whole = replace(topology, nics=tuple(replace(nic, up=True) if nic.up is False else nic for nic in topology.nics))
    sights = zip(nic_sights(topology, devices), nic_sights(whole, devices), strict=True)
    up = mask_of(at for at, (now, then) in enumerate(sights) if now.closeness == then.closeness)
    return tables, places, named, topology_hash(whole), up


class _Tables:
    """By what nodes look like; the oldest kind goes first."""

    def __init__(self) -> None:
        self._by_hash: dict[str, Kind] = {}

    def of(self, topology: NodeTopology, key: str) -> Kind:
        if key not in self._by_hash:
            if len(self._by_hash) >= _KINDS_OF_NODES:
                del self._by_hash[next(iter(self._by_hash))]
            fits = len(devices_of(topology)) <= MOST_DEVICES
            self._by_hash[key] = build_tables(topology) if fits else build_islands(topology)
        return self._by_hash[key]


_TABLES = _Tables()


class _Choices:
    """What was chosen before from the same tables; equal masks of one kind of node come again and again."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], tuple[Kind, Chosen | Spread | Refusal]] = {}

    def of(self, tables: Kind, free: int, count: int) -> Chosen | Spread | Refusal:
        key = (id(tables), free, count)
        seen = self._seen.get(key)
        if seen is not None and seen[0] is tables:
            return seen[1]
        if len(self._seen) >= _CHOICES:
            self._seen.clear()
        chosen = choose_spread(tables, free, count) if isinstance(tables, Islands) else choose(tables, free, count)
        self._seen[key] = (tables, chosen)
        return chosen


_choose = _Choices().of
