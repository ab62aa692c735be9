"""Ways to choose nodes for a gang, written from what is published about them; each on the simulator's `Grid`.

* random: any nodes that can take a part.
* Slurm, topology/tree: the lowest switch that has enough nodes, of those the one with the fewest to spare; below it
  leaf switches with the most usable nodes first, so that as few as possible are used (slurm.schedmd.com/topology.html).
* Kueue, topology-aware scheduling: the lowest domain that holds all pods, of those the one with the least room; below
  it domains in descending order of room, the last of them the tightest that suffices (kueue.sigs.k8s.io, KEP 2724).
* KAI, topology plugin: the lowest domain with room for all; of those that with the fewest free GPUs, and in it the
  fullest nodes (github.com/NVIDIA/KAI-Scheduler, docs/topology).
* HiveD: nodes come as buddy cells, halves of halves of a leaf; the smallest free cell that holds the gang is split down
  to it, and cells of one size are never joined across a boundary (Zhao et al., OSDI 2020).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from phalanx_control.simulator.grid import Grid, Pick
from phalanx_control.simulator.jobs import Job

Paths = Mapping[int, tuple[str, ...]]
"""The domains of each node, the smallest first; the last is the same for all."""
Domains = dict[str, list[int]]


def at_random(seed: int) -> Pick:
    dice = random.Random(seed)

    def pick(grid: Grid, job: Job, able: Sequence[int], count: int, each: int) -> Sequence[int]:
        del grid, job, each
        return dice.sample(list(able), count)

    return pick


def slurm_tree(paths: Paths) -> Pick:
    def pick(grid: Grid, job: Job, able: Sequence[int], count: int, each: int) -> Sequence[int]:
        del job, each
        return _in_lowest(
            paths,
            able,
            count,
            best=len,
            order=lambda leaf: -len(leaf),
            nodes=lambda at: (grid.whole[at], at),
        )

    return pick


def kueue(paths: Paths) -> Pick:
    def pick(grid: Grid, job: Job, able: Sequence[int], count: int, each: int) -> Sequence[int]:
        del job
        found = _lowest(paths, able, count, best=lambda nodes: sum(grid.whole[at] // max(1, each) for at in nodes))
        if found is None:
            return ()
        rank, nodes = found
        chosen: list[int] = []
        leaves = sorted(_domains(paths, nodes, 0).values(), key=lambda leaf: (-len(leaf), leaf)) if rank else [nodes]
        while leaves and len(chosen) < count:
            missing = count - len(chosen)
            enough = [leaf for leaf in leaves if len(leaf) >= missing]
            leaf = enough[-1] if enough else leaves[0]
            leaves.remove(leaf)
            chosen += leaf[:missing]
        return chosen

    return pick


def kai(paths: Paths) -> Pick:
    def pick(grid: Grid, job: Job, able: Sequence[int], count: int, each: int) -> Sequence[int]:
        del job, each
        return _in_lowest(
            paths,
            able,
            count,
            best=lambda nodes: sum(grid.whole[at] for at in nodes),
            order=lambda leaf: sum(grid.whole[at] for at in leaf),
            nodes=lambda at: (grid.whole[at], at),
        )

    return pick


def hived(paths: Paths) -> Pick:
    """Inside a node any GPUs: the cells compared here are of nodes."""

    def pick(grid: Grid, job: Job, able: Sequence[int], count: int, each: int) -> Sequence[int]:
        del job
        if count == 1:
            return [min(able, key=lambda at: (grid.whole[at], at))]
        size = 1 << (count - 1).bit_length()
        free = {at for at in able if grid.whole[at] >= each}
        for rank in range(len(next(iter(paths.values())))):
            for domain in _domains(paths, sorted(paths), rank).values():
                cells = [domain[first : first + size] for first in range(0, len(domain), size)]
                whole = [cell for cell in cells if len(cell) >= count and free.issuperset(cell)]
                if whole:
                    return min(whole, key=lambda cell: (_buddies_free(domain, cell, free), cell))[:count]
        return ()

    return pick


def _buddies_free(domain: list[int], cell: list[int], free: set[int]) -> int:
    """Returns how much of the next larger cell is free: the fuller buddy is split first."""
    at = domain.index(cell[0]) // (2 * len(cell)) * 2 * len(cell)
    return sum(node in free for node in domain[at : at + 2 * len(cell)])


def _domains(paths: Paths, nodes: Sequence[int], rank: int) -> Domains:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for at in nodes:
        found[paths[at][rank]].append(at)
    return dict(found)


def _lowest(
    paths: Paths, able: Sequence[int], count: int, *, best: Callable[[list[int]], int]
) -> tuple[int, list[int]] | None:
    """Returns the lowest rank on which a domain has enough, and the least of those domains."""
    for rank in range(len(next(iter(paths.values())))):
        enough = [nodes for nodes in _domains(paths, able, rank).values() if len(nodes) >= count]
        if enough:
            return rank, min(enough, key=lambda nodes: (best(nodes), nodes))
    return None


def _in_lowest(
    paths: Paths,
    able: Sequence[int],
    count: int,
    *,
    best: Callable[[list[int]], int],
    order: Callable[[list[int]], int],
    nodes: Callable[[int], tuple[int, int]],
) -> list[int]:
    """Returns nodes of the best of the lowest domains: leaf by leaf in their order, in each by ``nodes``."""
    found = _lowest(paths, able, count, best=best)
    if found is None:
        return []
    leaves = sorted(_domains(paths, found[1], 0).values(), key=lambda leaf: (order(leaf), leaf))
    return [at for leaf in leaves for at in sorted(leaf, key=nodes)][:count]
