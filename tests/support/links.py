"""Links between the ranks of a gang that a test breaks: a copy that comes out wrong, a slow one, a busy moment.

Ranks are threads; time is each rank's own and moves only with what its links carry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

import torch

from phalanx_agent.worker.preflight import TIMES, Findings, Pair, Seat, verify

USUAL_GBYTE_S = 20.0
_BOUND_S = 20


@dataclass(slots=True)
class Links:
    """``gbyte_s``: of single pairs, by global ranks. ``spoil``: by (from, to), what arrives, None for nothing."""

    seats: tuple[Seat, ...]
    gbyte_s: Mapping[Pair, float] = field(default_factory=dict[Pair, float])
    spoil: Mapping[Pair, Callable[[Any], Any]] = field(default_factory=dict[Pair, Callable[[Any], Any]])
    busy: dict[Pair, int] = field(default_factory=dict[Pair, int])
    """So many of the first copies of a pair take twenty times as long."""
    slow_later: Pair | None = None
    """This pair's copies take three times as long from the second going through on."""
    copied: list[Pair] = field(default_factory=list[Pair])
    _queues: dict[Pair, Queue[Any]] = field(init=False)
    _barrier: threading.Barrier = field(init=False)
    _sum: list[Any] = field(default_factory=list[Any])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        ranks = range(len(self.seats))
        self._queues = {(a, b): Queue() for a in ranks for b in ranks}
        self._barrier = threading.Barrier(len(self.seats), timeout=_BOUND_S)

    def run(self, kinds: Callable[[Seat], Mapping[Pair, str]]) -> list[Findings]:
        """Returns what each rank found."""
        with ThreadPoolExecutor(len(self.seats)) as pool:
            jobs = [pool.submit(self._rank, seat, kinds(seat)) for seat in self.seats]
            return [job.result(_BOUND_S) for job in jobs]

    def _rank(self, seat: Seat, kinds: Mapping[Pair, str]) -> Findings:
        end = _End(self, seat.rank)
        return verify(end, seat, kinds, now_ns=lambda: end.now_ns)

    def spend_ns(self, source: int, to: int, size: int) -> int:
        pair = (min(source, to), max(source, to))
        left = self.busy.get(pair, 0)
        self.busy[pair] = max(0, left - 1)
        later = pair == self.slow_later and self.copied.count((source, to)) > TIMES + 1
        return round(size / self.gbyte_s.get(pair, USUAL_GBYTE_S)) * (20 if left else 3 if later else 1)

    def add_up(self, tensor: Any) -> None:
        with self._lock:
            self._sum.append(tensor.clone())
        self._barrier.wait()
        total = sum(self._sum[1:], self._sum[0])
        self._barrier.wait()
        tensor.copy_(total)
        if self._barrier.wait() == 0:
            self._sum.clear()
        self._barrier.wait()

    def put(self, source: int, to: int, tensor: Any) -> int:
        self.copied.append((source, to))
        spent = self.spend_ns(source, to, tensor.nbytes)
        self._queues[source, to].put((tensor.clone(), spent))
        return spent

    def take(self, source: int, to: int, into: Any) -> int:
        sent, spent = self._queues[source, to].get(timeout=_BOUND_S)
        arrives = self.spoil.get((source, to))
        came = arrives(sent) if arrives is not None else sent
        if came is not None:
            into.copy_(came)
        return spent


@dataclass(slots=True)
class _End:
    """One rank's end of the links."""

    links: Links
    rank: int
    now_ns: int = 0

    def send(self, tensor: Any, to: int) -> None:
        self.now_ns += self.links.put(self.rank, to, tensor)

    def receive(self, tensor: Any, source: int) -> None:
        self.now_ns += self.links.take(source, self.rank, tensor)

    def add_up(self, tensor: Any) -> None:
        self.links.add_up(tensor)
        self.now_ns += 1 + round(tensor.nbytes / USUAL_GBYTE_S)


def seats(nodes: int, ranks: int) -> tuple[Seat, ...]:
    """Returns the seats of a gang with so many ranks on each of its nodes."""
    first = tuple(node * ranks for node in range(nodes))
    return tuple(
        Seat(rank=first[node] + local, node_rank=node, first_ranks=first, ranks=ranks)
        for node in range(nodes)
        for local in range(ranks)
    )


def flip_one_byte(tensor: Any) -> Any:
    """What a faulty link may do."""
    spoilt = tensor.clone()
    spoilt.view(torch.uint8)[tensor.nbytes // 2] ^= 1
    return spoilt
