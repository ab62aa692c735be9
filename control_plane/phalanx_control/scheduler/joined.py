"""Sets of a node's GPUs that NVLinks join: each reaches each other over links among the set itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from phalanx.core.topology.bitsets import mask_of
from phalanx.core.topology.codec import from_json
from phalanx.core.topology.devices import devices_of
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.nvlink_islands import islands
from phalanx_control.scheduler.kinds import GpuKind
from phalanx_control.scheduler.nearest import Picked, bench_of, pick
from phalanx_control.scheduler.room import GpuRoom, NodeRoom

_NODES = 16_384


@dataclass(frozen=True, slots=True)
class _Links:
    """``islands``: as sets of places in the node's tables; ``linked``: by UUID, the GPUs at the other ends."""

    islands: tuple[int, ...] = ()
    linked: dict[str, frozenset[str]] | None = None


def pick_joined(room: NodeRoom, model: GpuKind, count: int) -> Picked | None:
    """Returns the best ``count`` free GPUs that NVLinks join, from the island that has the fewest free; None where
    there are none, or nothing is known of the node's links."""
    if count == 1:
        return pick(room, model, 1)
    bench = bench_of(room, model)
    if bench is None:
        return None
    links = _links(room.node.info.topology)
    fitting = [mask for mask in links.islands if (mask & bench.free).bit_count() >= count]
    for island in sorted(fitting, key=lambda mask: (mask & bench.free).bit_count()):
        picked = bench.pick(count, within=island)
        if picked is not None and are_joined(room, picked.gpus):
            return picked
    return None


def are_joined(room: NodeRoom, gpus: Sequence[GpuRoom]) -> bool:
    """Says whether NVLinks among these GPUs join all of them."""
    linked = _links(room.node.info.topology).linked or {}
    wanted = {gpu.info.uuid for gpu in gpus}
    reached: set[str] = set()
    fresh = {gpus[0].info.uuid} if gpus else set[str]()
    while fresh:
        reached |= fresh
        fresh = {other for uuid in fresh for other in linked.get(uuid, ())} & wanted - reached
    return reached == wanted


def largest_joined(room: NodeRoom) -> int:
    """Returns how many of the node's GPUs NVLinks join at most."""
    return max((mask.bit_count() for mask in _links(room.node.info.topology).islands), default=1)


@lru_cache(maxsize=_NODES)
def _links(text: str) -> _Links:
    try:
        topology = from_json(text) if text else None
    except UnreadableTopologyError:
        topology = None
    if topology is None:
        return _Links()
    uuids = [gpu.uuid for gpu in topology.gpus]
    places = {device.gpu: at for at, device in enumerate(devices_of(topology)) if not device.mig}
    rows = topology.links or ()
    linked = {
        uuids[at]: frozenset(uuids[other] for other, link in enumerate(row) if link.nvlinks)
        for at, row in enumerate(rows)
    }
    found = (mask_of(places[gpu] for gpu in island if gpu in places) for island in islands(topology))
    return _Links(tuple(mask for mask in found if mask), linked)
