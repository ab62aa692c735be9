"""Which GPU a fraction gets, and which node a gang of one node where fractions or cores are asked for besides.

Where the loss grows least: what is free and of no use to the mix of gangs that are here (`mix`). Growth counts in
steps, so that little differences do not scatter gangs; of equal ones that with the least left of GPUs and cores, then
the first. Tried on the openb trace, where it keeps more GPUs in use than exact growth does (`benchmarks/scheduler.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from phalanx_control.scheduler.candidates import Candidates
from phalanx_control.scheduler.mix import WHOLE, Asked, Free, Mix, asked_on_a_node, free_on, mix_of
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import GpuRoom, NodeRoom, Rooms, size_of

_STEPS = 50
"""Of growth from very little to very much; most lies between a few of them."""
_BOOKS_KEPT = 256
_MANY_CORES = 128


class Offer(NamedTuple):
    """A node, and the GPU of it that a fraction would get; the least is the best."""

    step: int
    left: float
    at: int
    gpu: int
    name: str


class Book:
    """The best offer of each node, for one kind of need and one mix; made once and then kept in step."""

    def __init__(self, rooms: Rooms, look: Callable[[NodeRoom], Offer | None]) -> None:
        self._rooms = rooms
        self._look = look
        self._offers: dict[str, Offer] = {}
        self._seen = 0
        self._renew(rooms)
        self._seen = len(rooms.changes)

    def up_to_date(self) -> Book:
        """Looks again at the nodes on which something changed."""
        self._renew(dict.fromkeys(self._rooms.changes[self._seen :]))
        self._seen = len(self._rooms.changes)
        return self

    def best(self, *, without: Collection[str]) -> Offer | None:
        offers: Iterator[Offer] = iter(self._offers.values())
        return min((o for o in offers if o.name not in without) if without else offers, default=None)

    def among(self, names: Collection[str]) -> Offer | None:
        """Returns the best of these nodes."""
        return min((self._offers[name] for name in names if name in self._offers), default=None)

    def _renew(self, names: Collection[str]) -> None:
        for name in names:
            offer = self._look(self._rooms[name])
            if offer is not None:
                self._offers[name] = offer
            else:
                self._offers.pop(name, None)


def best_share(need: Need, rooms: Rooms, barred: Collection[str]) -> tuple[NodeRoom, GpuRoom] | None:
    """Returns the GPU that a fraction should get; None where it fits on none."""
    mix = mix_of(rooms)
    milli = round(need.share * WHOLE)
    asked = Asked(need.spec.resources.cpus, milli, need.model)

    def look(room: NodeRoom) -> Offer | None:
        if not (room.open and need.takes(room.id) and room.admits(need.spec)):
            return None
        if not room.has_room_beside_gpus(need.spec, 1):
            return None
        fitting = [at for at, g in enumerate(room.gpus) if need.model.fits(g.info) and _fits(g, need)]
        return _offer(room, mix, asked, fitting) if fitting else None

    resources = need.spec.resources
    key = (mix, asked, resources.memory_gb, need.workspace, need.node, resources.isolation)
    best = _book(rooms, key, look).best(without=barred)
    return None if best is None else (rooms[best.name], rooms[best.name].gpus[best.gpu])


def best_node(need: Need, rooms: Rooms, candidates: Candidates) -> NodeRoom | None:
    """Returns the node that a gang of one node should get, of the candidates; None where the mix has neither
    fractions nor cores, so that the fullest is as good.
    """
    asked = asked_on_a_node(size_of(need.spec)._replace(gpus=need.gpus), need.gpus)
    if not asked.cpus and not any(count and (size.cpus or size.gpus < 1) for size, count in rooms.sizes.items()):
        return None
    mix = mix_of(rooms)
    best = _book(rooms, (mix, asked), lambda room: _offer(room, mix, asked, None)).among(candidates.names())
    return None if best is None else rooms[best.name]


def _fits(gpu: GpuRoom, need: Need) -> bool:
    return gpu.fits_share(need.share, need.workspace)


def _book(rooms: Rooms, key: object, look: Callable[[NodeRoom], Offer | None]) -> Book:
    found = rooms.books.get(key)
    if found is not None:
        return found.up_to_date()
    if len(rooms.books) >= _BOOKS_KEPT:
        rooms.books.clear()
    found = rooms.books[key] = Book(rooms, look)
    return found


def _offer(room: NodeRoom, mix: Mix, asked: Asked, fitting: list[int] | None) -> Offer | None:
    """Returns the node's best: of the ``fitting`` GPUs for a fraction, else of its free ones together."""
    free = free_on(room)
    if fitting is None and free.count(WHOLE) * WHOLE < asked.milli:
        return None
    gpu = room.gpus[0].info
    cores = room.cpus if mix.cores_count and room.node.info.cpus else math.inf
    before = mix.lost(gpu, _free(free, cores))
    afters = _afters(free, asked.milli, fitting)
    step, at = min((_step(mix.lost(gpu, _free(after, cores - asked.cpus)) - before), at) for at, after in afters)
    left = sum(free) / WHOLE / 8 + (0 if cores == math.inf else cores / _MANY_CORES)
    return Offer(step, left, room.at, at, room.id)


def _afters(free: tuple[int, ...], milli: int, fitting: list[int] | None) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields what would be free, with the GPU that a fraction would get; of GPUs that are equally free, the first."""
    if fitting is None:
        first = [at for at, each in enumerate(free) if each == WHOLE][: milli // WHOLE]
        yield -1, tuple(0 if at in first else each for at, each in enumerate(free))
        return
    seen: set[int] = set()
    for at in sorted(fitting, key=lambda at: (free[at], at)):
        if free[at] not in seen:
            seen.add(free[at])
            yield at, (*free[:at], free[at] - milli, *free[at + 1 :])


def _free(gpus: tuple[int, ...], cores: float) -> Free:
    return Free(tuple(sorted(gpus, reverse=True)), cores)


def _step(grown: float) -> int:
    return -math.floor(_STEPS / (1 + math.exp(min(grown / WHOLE, _STEPS))))
