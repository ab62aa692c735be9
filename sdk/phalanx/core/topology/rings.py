"""The best ring through every subset of up to 16 GPUs: one whose slowest link is as fast as any ring's can be.

For each distinct link figure, from the slowest, the links at least that fast form a graph; a subset's bottleneck is the
last figure at which it still has a ring (a pair: its link). Held and Karp's programme finds the rings of all subsets of
one graph at once: paths from a subset's highest position, kept per last position as a set of sets (`bitsets`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from phalanx.core.topology import bitsets

Weights = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rings:
    """``reached[mask]``: how many of the ``levels``, slowest first, have a ring through the set; 0 for single GPUs."""

    levels: tuple[int, ...]
    reached: bytes
    _near: tuple[tuple[int, ...], ...]
    _paths: tuple[tuple[tuple[int, ...], ...], ...]

    def bottleneck(self, mask: int) -> int:
        """Returns the figure of the slowest link of the best ring; 0 for fewer than two GPUs."""
        reached = self.reached[mask]
        return self.levels[reached - 1] if reached else 0

    def ring(self, mask: int) -> tuple[int, ...]:
        """Returns the members in the order of a best ring, from the lowest towards its lower neighbour."""
        reached = self.reached[mask]
        if not reached:
            return bitsets.positions(mask)
        top = mask.bit_length() - 1
        near, paths = self._near[reached - 1], self._paths[reached - 1][top]
        found, left = [top], mask ^ (1 << top)
        while left:
            options = left & near[found[-1]]
            while True:
                last = options.bit_length() - 1
                if paths[last] >> left & 1:
                    break
                options ^= 1 << last
            found.append(last)
            left ^= 1 << last
        return _from_lowest(found)


def _from_lowest(ring: list[int]) -> tuple[int, ...]:
    at = ring.index(min(ring))
    turned = ring[at:] + ring[:at]
    if turned[1] > turned[-1]:
        turned[1:] = turned[:0:-1]
    return tuple(turned)


def slowest(weights: Weights, ring: tuple[int, ...]) -> int:
    """Returns the figure of the slowest link of a ring in the given order; 0 for fewer than two GPUs."""
    if len(ring) < 2:
        return 0
    return min(weights[i][j] for i, j in pairwise((*ring, ring[0])))


def best_rings(weights: Weights) -> Rings:
    """Returns the best ring of every subset; ``weights`` are symmetric, above 0 and at most 16 rows."""
    count = len(weights)
    levels = tuple(sorted({weights[i][j] for i in range(count) for j in range(i)}))
    lacking = bitsets.without(count)
    near = tuple(tuple(_at_least(row, i, level) for i, row in enumerate(weights)) for level in levels)
    paths = tuple(tuple(_paths_from(top, graph, lacking) for top in range(count)) for graph in near)
    closed = [_closed(graph, found) for graph, found in zip(near, paths, strict=True)]
    return Rings(levels, bitsets.counts(closed, count), near, paths)


def _at_least(row: tuple[int, ...], own: int, level: int) -> int:
    return bitsets.mask_of(j for j, weight in enumerate(row) if j != own and weight >= level)


def _paths_from(top: int, near: tuple[int, ...], lacking: list[int]) -> tuple[int, ...]:
    """For each last position below ``top``: the sets that a path from ``top``, itself left out, visits whole."""
    below = (1 << top) - 1
    neighbours = [bitsets.positions(near[last] & below) for last in range(top)]
    newest = [(near[top] >> last & 1) << (1 << last) for last in range(top)]
    ends = newest
    while any(newest):
        newest = [_one_longer(newest, neighbours[last], last, lacking[last]) for last in range(top)]
        ends = [old | new for old, new in zip(ends, newest, strict=True)]
    return tuple(ends)


def _one_longer(ends: list[int], neighbours: tuple[int, ...], last: int, lacking: int) -> int:
    reached = 0
    for neighbour in neighbours:
        reached |= ends[neighbour]
    return (reached & lacking) << (1 << last)


def _closed(near: tuple[int, ...], paths: tuple[tuple[int, ...], ...]) -> int:
    """The sets with a ring: a path from the highest member that ends beside it."""
    closed = 0
    for top, ends in enumerate(paths):
        rings = 0
        for last in bitsets.positions(near[top] & ((1 << top) - 1)):
            rings |= ends[last]
        closed |= rings << (1 << top)
    return closed
