"""Right answers about sets of GPUs, found by trying everything: slow, and simple enough to be believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise, permutations

Weights = Sequence[Sequence[int]]
Members = tuple[int, ...]


def members_of(mask: int) -> Members:
    return tuple(at for at in range(mask.bit_length()) if mask >> at & 1)


def subsets(mask: int, size: int) -> list[int]:
    return [sum(1 << at for at in chosen) for chosen in combinations(members_of(mask), size)]


def slowest_link(weights: Weights, ring: Members) -> int:
    return min(weights[i][j] for i, j in pairwise((*ring, ring[0]))) if len(ring) > 1 else 0


def best_ring(weights: Weights, mask: int) -> int:
    first, *rest = members_of(mask)
    return max(slowest_link(weights, (first, *order)) for order in permutations(rest))


def pair_sum(weights: Weights, mask: int) -> int:
    return sum(weights[i][j] for i, j in combinations(members_of(mask), 2))


def best_among(weights: Weights, free: int, size: int) -> int:
    """The best ring of any set of this size."""
    return max(best_ring(weights, mask) for mask in subsets(free, size))


def most_disjoint(sets: Iterable[int], free: int) -> int:
    """How many of the sets fit into the free ones at once."""
    inside = [mask for mask in sets if not mask & ~free]
    return max((1 + most_disjoint(inside[nth + 1 :], free & ~mask) for nth, mask in enumerate(inside)), default=0)


def most_distinct(options: Sequence[frozenset[int]]) -> int:
    """How many can have an option of their own at once."""
    if not options:
        return 0
    first, rest = options[0], options[1:]
    taken = (1 + most_distinct([other - {option} for other in rest]) for option in first)
    return max((most_distinct(rest), *taken))
