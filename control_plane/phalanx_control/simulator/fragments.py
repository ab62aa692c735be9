"""Fragmentation as FGD measures it: free GPU that the jobs of a mix could not use where it lies.

For a size asked for, a node's free GPU is lost to it: all of it where the node cannot hold the size (or, for a size
above the largest node, its equal part), else what lies on GPUs with less free than it asks of each. The fragmentation
of a fleet is the mean over the sizes, weighted by how often they are asked for. GPUs alone are looked at.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

WHOLE = 1000

Mix = tuple[tuple[int, float], ...]
"""Thousandths of a GPU, and the share of jobs that ask for so many. Jobs without GPUs are no part of it."""


def mix_of(sizes: Mapping[int, float], largest: int) -> Mix:
    """Returns the mix of sizes, those above ``largest`` GPUs as the part that a node would get."""
    counts: dict[int, float] = {}
    for milli, share in sizes.items():
        if milli:
            part = part_of(milli, largest)
            counts[part] = counts.get(part, 0) + share
    total = sum(counts.values())
    return tuple((milli, share / total) for milli, share in sorted(counts.items()))


def part_of(milli: int, largest: int) -> int:
    """Returns what one node would get of a job on as few nodes as hold it."""
    gpus = milli // WHOLE
    if gpus <= largest or not largest:
        return milli
    nodes = next((n for n in range(-(-gpus // largest), gpus + 1) if gpus % n == 0), gpus)
    return gpus // nodes * WHOLE


def fragmented(nodes: Iterable[Sequence[int]], mix: Mix) -> float:
    """Returns how much free GPU is lost, in thousandths. Each node: what is free of each of its GPUs."""
    return sum(_of_node(tuple(sorted(free)), mix) for free in nodes)


@lru_cache(maxsize=65_536)
def _of_node(free: tuple[int, ...], mix: Mix) -> float:
    total = sum(free)
    if not total:
        return 0.0
    whole = sum(each == WHOLE for each in free)
    lost = 0.0
    for milli, share in mix:
        if milli < WHOLE:
            lost += share * (sum(each for each in free if each < milli) if free[-1] >= milli else total)
        else:
            lost += share * (total - whole * WHOLE if whole * WHOLE >= milli else total)
    return lost
