"""Which of a node's free GPUs a gang gets: the best connected, in the order of their best ring.

Where a node has not said what connects its GPUs, or more than a table holds, the lowest indices. Tables are made once
for all nodes that look alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from phalanx.core.topology.choice import choose
from phalanx.core.topology.codec import from_json, topology_hash
from phalanx.core.topology.devices import devices_of
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.refusals import Refusal
from phalanx.core.topology.tables import MOST_DEVICES, Tables, build_tables
from phalanx_control.scheduler.room import GpuRoom, NodeRoom

_KINDS_OF_NODES = 64
_NODES = 16_384


@dataclass(frozen=True, slots=True)
class Picked:
    """``gpus`` in rank order; ``why`` is empty where nothing is known of their links."""

    gpus: tuple[GpuRoom, ...]
    why: str = ""


def pick(room: NodeRoom, model: str, count: int) -> Picked | None:
    """Returns ``count`` free GPUs of the node; None where it has no such set."""
    free = room.free(model)
    if len(free) < count:
        return None
    known = _known(room.node.info.topology) if count else None
    if known is None:
        return Picked(tuple(free[:count]))
    tables, places = known
    by_place = {places[gpu.info.uuid]: gpu for gpu in free if gpu.info.uuid in places}
    chosen = choose(tables, sum(1 << at for at in by_place), count)
    if isinstance(chosen, Refusal):
        return None
    return Picked(tuple(by_place[at] for at in chosen.ring), chosen.why)


@lru_cache(maxsize=_NODES)
def _known(text: str) -> tuple[Tables, dict[str, int]] | None:
    """Returns the tables that fit a topology, and where in them each GPU stands."""
    if not text:
        return None
    try:
        topology = from_json(text)
    except UnreadableTopologyError:
        return None
    devices = devices_of(topology)
    if not 0 < len(devices) <= MOST_DEVICES:
        return None
    return _TABLES.of(topology), {device.uuid: at for at, device in enumerate(devices)}


class _Tables:
    """By what nodes look like; the oldest kind goes first."""

    def __init__(self) -> None:
        self._by_hash: dict[str, Tables] = {}

    def of(self, topology: NodeTopology) -> Tables:
        key = topology_hash(topology)
        if key not in self._by_hash:
            if len(self._by_hash) >= _KINDS_OF_NODES:
                del self._by_hash[next(iter(self._by_hash))]
            self._by_hash[key] = build_tables(topology)
        return self._by_hash[key]


_TABLES = _Tables()
