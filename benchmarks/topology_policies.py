"""Policies that pick GPUs inside one node, to compare with: ours, lowest indices, at random, and best-effort.

Best-effort is written from a description of NVIDIA's go-gpuallocator: a pair scores 100 per NVLink plus a share for its
PCIe path; all free GPUs are split into sets of the asked size (what fills none is a smaller set) so that the scores add
up to most; the best whole set of that split is given. Ties go to the split found first, lowest indices first.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from phalanx.core.topology.bitsets import mask_of, positions
from phalanx.core.topology.choice import choose
from phalanx.core.topology.figures import known_link
from phalanx.core.topology.node import NodeTopology, Path
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.tables import Tables

Policy = Callable[[int, int], int]
"""From free GPUs and a size to a set, both as masks; 0: none."""
_NVLINK_POINTS = 100
_PATH_POINTS = {Path.PIX: 50, Path.PXB: 40, Path.PHB: 30, Path.NODE: 20, Path.SYS: 10}


def ours(tables: Tables) -> Policy:
    """The product's own choice, remembered: it depends on nothing else."""

    @cache
    def pick(free: int, size: int) -> int:
        chosen = choose(tables, free, size)
        return chosen.mask if isinstance(chosen, Chosen) else 0

    return pick


def first_index(free: int, size: int) -> int:
    """The lowest free indices."""
    return mask_of(positions(free)[:size]) if free.bit_count() >= size else 0


def at_random(dice: random.Random) -> Policy:
    """Any free GPUs."""

    def pick(free: int, size: int) -> int:
        return mask_of(dice.sample(positions(free), size)) if free.bit_count() >= size else 0

    return pick


@dataclass(frozen=True, slots=True)
class Split:
    """Sets of the asked size, and one smaller one where they do not fill all; ``total``: their scores added up."""

    total: int
    sets: tuple[int, ...]


class BestEffort:
    """Best-effort on one node; asks go through `pick`."""

    def __init__(self, node: NodeTopology) -> None:
        count = len(node.gpus)
        self._pairs = {(i, j): _points(node, i, j) for i, j in combinations(range(count), 2)}
        self._sets: dict[int, int] = {}
        self._splits: dict[tuple[int, int], Split] = {}

    def pick(self, free: int, size: int, required: int = 0) -> int:
        """Returns the best set of the best split that has one with all required GPUs; 0 where there is none."""
        if size < 1 or required & ~free or required.bit_count() > size or free.bit_count() < size:
            return 0
        whole = [mask for mask in self._split(free, size).sets if mask.bit_count() == size]
        holding = [mask for mask in whole if mask & required == required]
        if holding:
            return max(holding, key=self._score)
        others = combinations(positions(free & ~required), size - required.bit_count())
        sets = [required | mask_of(rest) for rest in others]
        return max(sets, key=lambda mask: self._score(mask) + self._split(free & ~mask, size).total)

    def _score(self, mask: int) -> int:
        known = self._sets.get(mask)
        if known is None:
            known = self._sets[mask] = sum(self._pairs[pair] for pair in combinations(positions(mask), 2))
        return known

    def _split(self, free: int, size: int) -> Split:
        known = self._splits.get((free, size))
        if known is None:
            known = self._splits[free, size] = self._best_split(free, size)
        return known

    def _best_split(self, free: int, size: int) -> Split:
        if free.bit_count() <= size:
            return Split(self._score(free), (free,))
        lowest, *rest = positions(free)
        best: Split | None = None
        for width in dict.fromkeys((size, free.bit_count() % size or size)):
            for others in combinations(rest, width - 1):
                mask = mask_of((lowest, *others))
                below = self._split(free & ~mask, size)
                total = below.total + self._score(mask)
                if best is None or total > best.total:
                    best = Split(total, (mask, *below.sets))
        assert best is not None
        return best


def _points(node: NodeTopology, i: int, j: int) -> int:
    link = known_link(node, i, j)
    return _NVLINK_POINTS * (link.nvlinks or 0) + (_PATH_POINTS[link.path] if link.path else 0)
