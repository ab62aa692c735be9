"""Plain ways of scheduling, to compare with: strictly first come first served, EASY backfilling, and whoever fits.

EASY (Lifka, 1995): the first that cannot start gets a promise for when it could, and later ones may pass it where that
stays true. It is told how long jobs run, exactly: no scheduler knows that.
"""

from __future__ import annotations

import copy
import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

from phalanx_control.simulator.grid import Grid, Pick
from phalanx_control.simulator.happenings import Began, Freed, Happening, Held, Part
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.machines import Fleet

WINDOW = 400
"""Jobs behind the first that are looked at in a pass."""
_NEVER_MS = 1 << 62
Shape = tuple[object, ...]


class Baseline:
    """``order``: "fifo", "easy", or "any": whoever fits goes."""

    def __init__(self, fleet: Fleet, order: str, pick: Pick) -> None:
        self._grid = Grid(fleet)
        self._order = order
        self._pick = pick
        self._queue: OrderedDict[Shape, OrderedDict[int, Job]] = OrderedDict()
        self._running: dict[int, tuple[Job, tuple[Part, ...], int]] = {}
        self._said: list[Happening] = []
        self._changed = False

    # ---- the engine's side ----

    def submit(self, job: Job, now_ms: int) -> None:
        del now_ms
        self._queue.setdefault(_shape(job), OrderedDict())[job.number] = job
        self._changed = True

    def end(self, job: Job, now_ms: int) -> None:
        del now_ms
        _, parts, _ = self._running.pop(job.number)
        self._grid.take(parts, job, -1)
        self._said.append(Freed(str(job.number)))
        self._changed = True

    def decide(self, now_ms: int) -> Iterable[Happening]:
        if self._changed:
            self._changed = False
            self._pass(now_ms)
        said, self._said = self._said, []
        return said

    def next_ms(self) -> int | None:
        return None

    # ---- one pass ----

    def _pass(self, now_ms: int) -> None:
        hopeless: set[Shape] = set()
        promise: _Promise | None = None
        for looked, job in enumerate(self._in_order(hopeless)):
            if looked >= WINDOW:
                return
            shape = _shape(job)
            parts = self._grid.place(job, self._pick)
            if parts is None:
                hopeless.add(shape)
                if self._order == "fifo":
                    return
                if self._order == "easy" and promise is None:
                    promise = _Promise.of(self._grid, job, self._pick, self._running.values(), now_ms)
            elif promise is None or promise.allows(job, parts, now_ms):
                self._start(job, parts, now_ms)

    def _in_order(self, hopeless: set[Shape]) -> Iterator[Job]:
        """Yields waiting jobs, the first first, those of a hopeless shape no more."""
        lines = [
            (next(iter(line)), shape, iter(list(islice(line.items(), WINDOW)))) for shape, line in self._queue.items()
        ]
        heap = [(number, at) for at, (number, _, _) in enumerate(lines)]
        heapq.heapify(heap)
        while heap:
            _, at = heapq.heappop(heap)
            _, shape, rest = lines[at]
            if shape in hopeless:
                continue
            _, job = next(rest)
            yield job
            following = next(rest, None)
            if following is not None:
                lines[at] = (following[0], shape, _chained(following, rest))
                heapq.heappush(heap, (following[0], at))

    def _start(self, job: Job, parts: tuple[Part, ...], now_ms: int) -> None:
        line = self._queue[_shape(job)]
        del line[job.number]
        if not line:
            del self._queue[_shape(job)]
        self._grid.take(parts, job)
        self._running[job.number] = (job, parts, now_ms)
        self._said += [Held(str(job.number), job.workspace, parts), Began(job.number)]


def _chained(first: tuple[int, Job], rest: Iterator[tuple[int, Job]]) -> Iterator[tuple[int, Job]]:
    yield first
    yield from rest


def _shape(job: Job) -> Shape:
    return job.gpus, job.gpu, job.cpus, job.memory_gb, job.one_node


class _Promise:
    """When the first job that cannot start could, and what will be free then."""

    def __init__(self, grid: Grid, job: Job, pick: Pick, at_ms: int) -> None:
        self._grid = grid
        self._job = job
        self._pick = pick
        self._at_ms = at_ms

    @classmethod
    def of(
        cls, grid: Grid, job: Job, pick: Pick, running: Iterable[tuple[Job, tuple[Part, ...], int]], now_ms: int
    ) -> _Promise:
        """Lets jobs end in their order until it fits."""
        later = copy.copy(grid)
        later.free = [list(free) for free in grid.free]
        later.whole, later.cpus, later.memory_gb = list(grid.whole), list(grid.cpus), list(grid.memory_gb)
        later.running = list(grid.running)
        ends = sorted((began_ms + _lasts_ms(each), each.number, each, parts) for each, parts, began_ms in running)
        free = sum(later.whole)
        for ends_ms, _, each, parts in ends:
            later.take(parts, each, -1)
            free += int(each.gpus) or 1
            if free >= job.gpus and later.place(job, pick) is not None:
                return cls(later, job, pick, max(ends_ms, now_ms))
        return cls(later, job, pick, _NEVER_MS)

    def allows(self, job: Job, parts: tuple[Part, ...], now_ms: int) -> bool:
        """Says whether the job may start there, and writes it in where it may and lasts longer than until then."""
        if now_ms + _lasts_ms(job) <= self._at_ms:
            return True
        if any(not _fits(self._grid, part) for part in parts):
            return False
        self._grid.take(parts, job)
        if self._grid.place(self._job, self._pick) is not None:
            return True
        self._grid.take(parts, job, -1)
        return False


def _fits(grid: Grid, part: Part) -> bool:
    free = grid.free[grid.at(part.node_id)]
    return all(free[gpu] >= part.milli for gpu in part.gpus)


def _lasts_ms(job: Job) -> int:
    return _NEVER_MS if job.duration_ms is None else job.duration_ms
