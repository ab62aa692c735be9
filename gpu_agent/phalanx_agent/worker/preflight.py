"""Ranks verify their node before user code: what GPU i sends, GPU j has; how fast; and what an all-reduce moves.

Pairs are tried one after the other, both ways, with a pattern that no other place of the buffer and no other pair has.
One that looks slow is tried again before that is believed. All of it goes through a group of its own, so that the
gang's counts no collective of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations
from typing import Any, Protocol

from phalanx.core.topology.verified import slow_pairs

GPU_BYTES = 64 << 20
CPU_BYTES = 1 << 20
TIMES = 3
TIMES_AGAIN = 30
_GROUP_TIMEOUT = timedelta(minutes=5)
_MIX = 2_654_435_761
"""Odd, so that neighbouring words of the pattern differ in all their bytes."""
_APART = 1_000_000_007
"""Between the patterns of two ways of copying: farther than any of them is long."""
Pair = tuple[int, int]


class PreflightError(RuntimeError):
    """The gang must not run here: copies came out wrong, or could not be tried."""


class Copies(Protocol):
    """What moves tensors between the gang's ranks: the process group, or what stands in for it. Calls wait."""

    def send(self, tensor: Any, to: int) -> None: ...

    def receive(self, tensor: Any, source: int) -> None: ...

    def add_up(self, tensor: Any) -> None:
        """An all-reduce, in place."""
        ...


class GroupCopies:
    """Through a group beside the gang's. Made by all ranks together; `close` likewise."""

    def __init__(self, device: str) -> None:
        import torch.distributed as dist

        self._dist: Any = dist
        self._device = device
        self._group: Any = dist.new_group(timeout=_GROUP_TIMEOUT)

    def send(self, tensor: Any, to: int) -> None:
        self._dist.send(tensor, to, group=self._group)
        self._settle()

    def receive(self, tensor: Any, source: int) -> None:
        self._dist.recv(tensor, source, group=self._group)
        self._settle()

    def add_up(self, tensor: Any) -> None:
        self._dist.all_reduce(tensor, group=self._group)
        self._settle()

    def close(self) -> None:
        self._dist.destroy_process_group(self._group)
        if self._device != "cpu":
            import torch

            torch.cuda.empty_cache()

    def _settle(self) -> None:
        if self._device != "cpu":
            import torch

            torch.cuda.synchronize(self._device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank sits. ``first_ranks``: of each node of the gang; ``ranks``: on each."""

    rank: int
    node_rank: int
    first_ranks: tuple[int, ...]
    ranks: int
    device: str = "cpu"
    simulated: bool = False

    @property
    def local_rank(self) -> int:
        return self.rank - self.first_ranks[self.node_rank]

    @property
    def size_bytes(self) -> int:
        """What is copied at once."""
        return CPU_BYTES if self.device == "cpu" else GPU_BYTES

    @property
    def world_size(self) -> int:
        return self.ranks * len(self.first_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFound:
    """``wrong_bytes``: of both ways together."""

    wrong_bytes: int
    gbyte_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """``pairs``: for each node of the gang, by local ranks. The all-reduce is over all ranks of the gang."""

    pairs: tuple[Mapping[Pair, PairFound], ...]
    all_reduce_gbyte_s: float

    def wrong(self) -> Iterable[tuple[int, Pair]]:
        """Yields the node and the local ranks of each pair whose copies came out wrong."""
        for node, found in enumerate(self.pairs):
            yield from ((node, pair) for pair, each in found.items() if each.wrong_bytes)


def verify(
    copies: Copies, seat: Seat, kinds: Mapping[Pair, str], *, now_ns: Callable[[], int] = time.perf_counter_ns
) -> Findings:
    """Returns what all ranks found; called by all of them together.

    ``kinds``: the pairs of this node to try, by local ranks, and what connects each; the same on all ranks of a node.
    """
    trial = _Trial(copies, seat, now_ns)
    trial.go_through(kinds, TIMES)
    trial.share()
    own = {pair: trial.found(seat.node_rank, pair).gbyte_s for pair in kinds}
    again = slow_pairs(kinds, {pair: figure for pair, figure in own.items() if figure}, simulated=seat.simulated)
    if trial.anybody(bool(again)):
        trial.go_through(again, TIMES_AGAIN)
        trial.share()
    nodes = range(len(seat.first_ranks))
    tried = tuple({pair: trial.found(node, pair) for pair in trial.tried(node)} for node in nodes)
    return Findings(pairs=tried, all_reduce_gbyte_s=trial.all_reduce())


@dataclass(slots=True)
class _Trial:
    """``_mine``: what this rank saw since it last told. The rest is what all ranks know, by node and pair."""

    copies: Copies
    seat: Seat
    now_ns: Callable[[], int]
    _slots: dict[Pair, int] = field(init=False)
    _seconds: dict[tuple[int, Pair], float] = field(default_factory=dict[tuple[int, Pair], float])
    _wrong: dict[tuple[int, Pair], int] = field(default_factory=dict[tuple[int, Pair], int])
    _mine: dict[Pair, tuple[int, float]] = field(default_factory=dict[Pair, tuple[int, float]])

    def __post_init__(self) -> None:
        self._slots = {pair: at for at, pair in enumerate(combinations(range(self.seat.ranks), 2))}

    def go_through(self, pairs: Iterable[Pair], times: int) -> None:
        """Tries the pairs of this node one after the other; the nodes in step, so that none disturbs its own."""
        wanted = set(pairs)
        for pair in self._slots:
            if pair in wanted and self.seat.local_rank in pair:
                self._mine[pair] = self._exchange(pair, times)
            self.anybody(False)

    def share(self) -> None:
        """Tells all ranks what each has found since the last time."""
        import torch

        shape = (len(self.seat.first_ranks), max(1, len(self._slots)), 2)
        sums = torch.zeros(shape, dtype=torch.float64)
        for pair, (wrong, seconds) in self._mine.items():
            sums[self.seat.node_rank, self._slots[pair]] += torch.tensor((wrong, seconds), dtype=torch.float64)
        self._mine.clear()
        there = sums.to(self.seat.device)
        self.copies.add_up(there)
        sums = there.cpu()
        for node in range(shape[0]):
            for pair, slot in self._slots.items():
                wrong, seconds = map(float, sums[node, slot].tolist())
                if seconds > 0:
                    key = node, pair
                    self._wrong[key] = max(self._wrong.get(key, 0), int(wrong))
                    self._seconds[key] = min(self._seconds.get(key) or seconds, seconds)

    def tried(self, node: int) -> list[Pair]:
        return [pair for at, pair in self._seconds if at == node]

    def found(self, node: int, pair: Pair) -> PairFound:
        seconds = self._seconds[node, pair]
        return PairFound(wrong_bytes=self._wrong[node, pair], gbyte_s=2 * self.seat.size_bytes / seconds / 1e9)

    def anybody(self, mine: bool) -> bool:
        """Says whether any rank of the gang says so; all of them are here when it returns."""
        import torch

        vote = torch.full((1,), float(mine), device=self.seat.device)
        self.copies.add_up(vote)
        return bool(vote.item())

    def all_reduce(self) -> float:
        """Returns the bus bandwidth in GB/s: 2 (n - 1) / n of the bytes, over the time of the quickest try."""
        import torch

        tensor = torch.zeros(self.seat.size_bytes // 4, device=self.seat.device)
        best_ns = 0
        for _ in range(TIMES + 1):
            self.anybody(False)
            began_ns = self.now_ns()
            self.copies.add_up(tensor)
            spent_ns = max(1, self.now_ns() - began_ns)
            best_ns = min(best_ns or spent_ns, spent_ns)
        count = self.seat.world_size
        return 2 * (count - 1) / count * self.seat.size_bytes / best_ns

    def _exchange(self, pair: Pair, times: int) -> tuple[int, float]:
        """Returns wrong bytes that arrived here, and the seconds of both ways where this is the pair's first rank."""
        import torch

        first = self.seat.local_rank == pair[0]
        peer = self.seat.first_ranks[self.seat.node_rank] + pair[first]
        slot = 2 * self._slots[pair]
        sent, expected = self._pattern(slot + first), self._pattern(slot + (not first))
        arrived = torch.empty_like(expected)
        wrong, best_ns = 0, 0
        for _ in range(times + 1):
            arrived.zero_()
            began_ns = self.now_ns()
            if first:
                self.copies.send(sent, peer)
                self.copies.receive(arrived, peer)
            else:
                self.copies.receive(arrived, peer)
                self.copies.send(sent, peer)
            spent_ns = max(1, self.now_ns() - began_ns)
            best_ns = min(best_ns or spent_ns, spent_ns)
            wrong = max(wrong, 4 * int((arrived != expected).sum().item()))
        return wrong, best_ns / 1e9 if first else 0

    def _pattern(self, seed: int) -> Any:
        """Returns words that depend on their place and on ``seed``, none of them 0."""
        import torch

        words = torch.arange(1, self.seat.size_bytes // 4 + 1, dtype=torch.int64, device=self.seat.device)
        return ((words + seed * _APART) * _MIX >> 7).to(torch.int32) | 1
