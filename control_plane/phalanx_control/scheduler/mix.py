"""What the gangs of a cell ask for, and how much of what is free on a node would be of no use to such gangs.

The mix is that of the gangs which hold something now: the most frequent kinds, their weights powers of two, so that it
stays the same while little changes. What is lost on a node is FGD's measure (Weng et al., "Beware of Fragmentation",
USENIX ATC 2023): for each kind all that is free where the node could not take one, else what is free on GPUs that are
too small for it.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from phalanx.core.messages import GpuInfo
from phalanx_control.scheduler.kinds import ANY_GPU, GpuKind
from phalanx_control.scheduler.room import NodeRoom, Rooms, Size

WHOLE = 1000
_KINDS = 20
_MIXES_KEPT = 64
_NODES_KEPT = 65_536
_EPSILON = 1e-9


class Asked(NamedTuple):
    """What a gang, or its part on one node, asks for: cores, thousandths of GPUs, and which GPUs."""

    cpus: float
    milli: int
    kind: GpuKind


_NEXT = Asked(0, WHOLE, ANY_GPU)
"""Whoever comes next may want a whole GPU, though nobody has one yet."""


class Free(NamedTuple):
    """What is free on a node: thousandths of each GPU, the most first, and cores; infinite where they are not known."""

    gpus: tuple[int, ...]
    cpus: float


class Mix:
    """Kinds and their weights. Remembers what was asked of it."""

    def __init__(self, weights: tuple[tuple[Asked, float], ...]) -> None:
        total = sum(weight for _, weight in weights)
        self._kinds = tuple((asked, weight / total) for asked, weight in weights)
        self.cores_count = any(asked.cpus for asked, _ in weights)
        self._of_model: dict[tuple[str, int], tuple[tuple[Asked, float], ...]] = {}
        self._lost: dict[tuple[str, int, Free], float] = {}

    def lost(self, gpu: GpuInfo, free: Free) -> float:
        """Returns the thousandths that are free and lost, on a node whose GPUs are all like ``gpu``."""
        key = (gpu.model, gpu.memory_bytes, free)
        found = self._lost.get(key)
        if found is None:
            if len(self._lost) >= _NODES_KEPT:
                self._lost.clear()
            found = self._lost[key] = self._add_up(gpu, free)
        return found

    def _add_up(self, gpu: GpuInfo, free: Free) -> float:
        total = sum(free.gpus)
        if not total:
            return 0.0
        whole = free.gpus.count(WHOLE)
        lost = 0.0
        for asked, weight in self._useful(gpu):
            if asked.cpus > free.cpus + _EPSILON:
                continue
            if asked.milli >= WHOLE:
                lost -= weight * whole * WHOLE if whole * WHOLE >= asked.milli else 0
            else:
                lost -= weight * sum(each for each in free.gpus if each >= asked.milli)
        return total + lost

    def _useful(self, gpu: GpuInfo) -> tuple[tuple[Asked, float], ...]:
        """Returns the kinds that could use such a GPU."""
        key = (gpu.model, gpu.memory_bytes)
        found = self._of_model.get(key)
        if found is None:
            found = tuple((asked, weight) for asked, weight in self._kinds if asked.milli and asked.kind.fits(gpu))
            self._of_model[key] = found
        return found


def mix_of(rooms: Rooms) -> Mix:
    """Returns the mix of the gangs in the picture; the same object for the same mix."""
    counts: Counter[Asked] = Counter((_NEXT,))
    for size, count in rooms.sizes.items():
        if count:
            counts[asked_on_a_node(size, rooms.largest)] += count
    most = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_KINDS]
    total = sum(count for _, count in most)
    return _mix(tuple(sorted((asked, 2.0 ** round(math.log2(count / total))) for asked, count in most)))


def asked_on_a_node(size: Size, largest: int) -> Asked:
    """Returns what a gang asks of one node, where it is on as few as can be."""
    if size.gpus < 1:
        return Asked(size.cpus, round(size.gpus * WHOLE), size.kind)
    each = min(int(size.gpus), largest)
    ranks = each if size.launch == "per_gpu" else 1
    return Asked(size.cpus * ranks, each * WHOLE, size.kind)


def free_on(room: NodeRoom) -> tuple[int, ...]:
    """Returns what is free of each GPU of a node, in thousandths, by index."""
    return tuple(0 if g.whole or not g.usable else WHOLE - round(g.taken * WHOLE) for g in room.gpus)


_mix = lru_cache(maxsize=_MIXES_KEPT)(Mix)
