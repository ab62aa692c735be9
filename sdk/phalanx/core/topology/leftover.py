"""What free GPUs are still good for: how many gangs of 2, 4 and 8 they could hold at once, and how good ones.

For each size and each quality that sets of that size reach, the most disjoint sets of at least that quality within the
free ones are counted; each counts with the quality it adds over the next lower one, times its size, so that every GPU
weighs the same. Where one split is best at every quality, as in nodes built of pairs and quads, this is the summed
quality of the best split into that size. The three sizes are added, not traded: on a DGX-1 pairs split equally well in
two ways, of which only one leaves the quads whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from operator import mul

from phalanx.core.topology import bitsets

SIZES = (2, 4, 8)
_MOST_QUALITIES = 8
"""Above 8 GPUs: more are made coarser, which bounds the time."""

Groups = list[tuple[int, list[int]]]
"""Quality and the sets that have it, best first."""


def leftover_values(groups: Mapping[int, Groups], count: int, drops: tuple[int, ...]) -> list[int]:
    """Returns the value of every subset as free GPUs.

    Args:
        groups: by size, sets that a gang may have.
        count: of positions, at most 16.
        drops: how many lowest bits to drop from a quality, in turn, while a size has too many of them.
    """
    lacking = bitsets.without(count)
    factors: list[int] = []
    columns: list[bytes] = []
    for size in SIZES:
        sets = groups.get(size, [])
        for drop in drops if count > 8 else ():
            if len(sets) > _MOST_QUALITIES:
                sets = coarser(sets, drop)
        for gain, packed in _qualities(sets, size, count, lacking):
            factors.append(gain * size)
            columns.append(packed)
    if not columns:
        return [0] * (1 << count)
    return list(map(_Weighted(factors).__getitem__, zip(*columns, strict=True)))


def coarser(groups: Groups, drop_bits: int) -> Groups:
    """Returns the groups by quality without its lowest bits."""
    merged: dict[int, list[int]] = {}
    for quality, masks in groups:
        merged.setdefault(quality >> drop_bits << drop_bits, []).extend(masks)
    return list(merged.items())


class _Weighted(dict[tuple[int, ...], int]):
    """The weighted sum of counts; few different ones occur."""

    def __init__(self, factors: list[int]) -> None:
        super().__init__()
        self._factors = factors

    def __missing__(self, numbers: tuple[int, ...]) -> int:
        value = self[numbers] = sum(map(mul, numbers, self._factors))
        return value


def _qualities(groups: Groups, size: int, count: int, lacking: list[int]) -> list[tuple[int, bytes]]:
    """For each quality: what it adds over the next lower one, and how many such sets each subset holds at once."""
    lower = [*(quality for quality, _ in groups[1:]), 0][: len(groups)]
    found: list[tuple[int, bytes]] = []
    for (quality, _), below, sets in zip(groups, lower, accumulate(masks for _, masks in groups), strict=True):
        packed = bitsets.counts(_packings(sets, size, count, lacking), count)
        found.append((quality - below, packed))
    return found


def _packings(sets: list[int], size: int, count: int, lacking: list[int]) -> list[int]:
    """The subsets that hold one of the sets, two disjoint ones, three, and so on."""
    by_top: list[list[int]] = [[] for _ in range(count)]
    for mask in sets:
        top = mask.bit_length() - 1
        by_top[top].append(mask ^ (1 << top))
    layers = [bitsets.supersets(bitsets.family(sets, count), lacking)]
    while (len(layers) + 1) * size <= count and layers[-1]:
        layers.append(_one_more(layers[-1], by_top, (len(layers) + 1) * size, lacking))
    return layers


def _one_more(held: int, by_top: list[list[int]], least: int, lacking: list[int]) -> int:
    """The subsets that are a set and, beside it, a subset of ``held``; all have ``least`` members or more."""
    more = 0
    for top in range(least - 1, len(by_top)):
        below = held & ((1 << (1 << top)) - 1)
        with_top = more
        if top == least - 1:
            everything = (1 << top) - 1
            with_top |= any(below >> (everything ^ rest) & 1 for rest in by_top[top]) << everything
        else:
            for rest in by_top[top]:
                with_top |= _disjoint(below, rest, lacking) << rest
        more |= with_top << (1 << top)
    return more


def _disjoint(held: int, mask: int, lacking: list[int]) -> int:
    for position in bitsets.positions(mask):
        held &= lacking[position]
    return held
