"""Packing of jobs that never leave, fractions of GPUs among them: random, best fit and FGD, over all nodes at once.

From the descriptions in Weng et al., "Beware of Fragmentation" (USENIX ATC 2023): a node's fragmentation is what is
free on it and of no use to a mix of typical jobs, and FGD takes the GPU where it grows least; best fit the node that
has the least left of GPUs and cores, each against the largest node. Scores of both are whole hundredths; of equal
ones the first by name, as where the published figures come from.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.core.played import model_matches
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.machines import Fleet

WHOLE = 1000
_TYPICAL = 0.95
"""Of all jobs, the share that the mix of typical ones covers."""
_MAX_CORES, _MAX_GPUS = 128.0, 8.0
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Shape = tuple[float, int, float, str]
"""Cores, thousandths of GPUs, GB and models that a job asks for."""


def shape_of(job: Job) -> Shape:
    return job.cpus, job.milli, job.memory_gb, job.gpu


class Nodes:
    """What is free: thousandths of each GPU (-1: no such GPU), cores, and GB."""

    def __init__(self, fleet: Fleet) -> None:
        most = max(len(node.gpus) for node in fleet.nodes)
        self.free: Ints = np.array([[WHOLE] * len(n.gpus) + [-1] * (most - len(n.gpus)) for n in fleet.nodes])
        self.cpus: Floats = np.array([float(node.cpus) for node in fleet.nodes])
        self.memory: Floats = np.array([node.memory_bytes / 1e9 for node in fleet.nodes])
        self._models = [node.gpus[0].model if node.gpus else "" for node in fleet.nodes]
        self._access: dict[str, NDArray[np.bool_]] = {}
        self.capacity = fleet.gpus * WHOLE

    def access(self, gpu: str) -> NDArray[np.bool_]:
        """Returns which nodes have such GPUs."""
        found = self._access.get(gpu)
        if found is None:
            found = self._access[gpu] = np.array([not gpu or model_matches(gpu, model) for model in self._models])
        return found

    def able(self, shape: Shape, among: Ints) -> NDArray[np.bool_]:
        """Returns which of these nodes could take the job now."""
        cpus, milli, memory, gpu = shape
        beside = (self.cpus[among] >= cpus - 1e-9) & (self.memory[among] >= memory - 1e-6) & self.access(gpu)[among]
        return beside & (_most_fit(self.free[among], milli) > 0)

    def take(self, at: int, gpus: Sequence[int], shape: Shape) -> None:
        cpus, milli, memory, _ = shape
        self.cpus[at] -= cpus
        self.memory[at] -= memory
        for gpu in gpus:
            self.free[at, gpu] -= min(milli, WHOLE)


def _most_fit(free: Ints, milli: int) -> Ints:
    """Returns, for each node, how many jobs' worth of GPUs it has, at least 1 where one fits."""
    if milli == 0:
        return np.ones(len(free), dtype=np.int64)
    if milli < WHOLE:
        return np.asarray(np.any(free >= milli, axis=1), dtype=np.int64)
    whole: Ints = np.asarray(np.count_nonzero(free == WHOLE, axis=1), dtype=np.int64)
    return np.asarray(whole * WHOLE // milli, dtype=np.int64)


# ---- policies ----

Score = Callable[[Nodes, Shape, Ints], tuple[Floats, Ints]]
"""For nodes that are able: the lower the better, and the GPU that a fraction gets there."""


def scored_at_random(nodes: Nodes, shape: Shape, among: Ints) -> tuple[Floats, Ints]:
    return np.zeros(len(among)), _tightest_gpu(nodes.free[among], shape[1])


def scored_best_fit(nodes: Nodes, shape: Shape, among: Ints) -> tuple[Floats, Ints]:
    """Half of what is left of cores and GPUs, in whole hundredths."""
    cpus, milli, _, _ = shape
    free = np.maximum(nodes.free[among], 0).sum(axis=1)
    left = 0.5 * (nodes.cpus[among] - cpus) / _MAX_CORES + 0.5 * (free - milli) / WHOLE / _MAX_GPUS
    return -np.floor((1 - left) * 100), _tightest_gpu(nodes.free[among], milli)


def _tightest_gpu(free: Ints, milli: int) -> Ints:
    return np.where(free >= milli, free, WHOLE + 1).argmin(axis=1)


@dataclass(frozen=True, slots=True)
class Typical:
    """The mix: what typical jobs ask for, and how often."""

    cpus: Floats
    milli: Ints
    gpus: tuple[str, ...]
    share: Floats


def typical_of(jobs: Sequence[Job]) -> Typical:
    """Returns the most frequent kinds of jobs, cores and models included, which are 95 % of all."""
    counts = Counter((job.cpus, job.milli, job.gpu) for job in jobs)
    kinds: list[tuple[tuple[float, int, str], int]] = []
    for kind, count in sorted(counts.items(), key=lambda kc: (-kc[1], kc[0])):
        if sum(c for _, c in kinds) >= _TYPICAL * len(jobs):
            break
        kinds.append((kind, count))
    total = sum(count for _, count in kinds)
    return Typical(
        np.array([kind[0] for kind, _ in kinds]),
        np.array([kind[1] for kind, _ in kinds]),
        tuple(kind[2] for kind, _ in kinds),
        np.array([count / total for _, count in kinds]),
    )


class Fgd:
    """FGD. ``hundredths``: scores in steps, as in the experiments that were published."""

    def __init__(self, typical: Typical, *, hundredths: bool = True) -> None:
        self._typical = typical
        self._hundredths = hundredths
        self._access: NDArray[np.bool_] | None = None

    def __call__(self, nodes: Nodes, shape: Shape, among: Ints) -> tuple[Floats, Ints]:
        if self._access is None:
            self._access = np.array([nodes.access(gpu) for gpu in self._typical.gpus]).T
        cpus, milli, _, _ = shape
        free, left = nodes.free[among], nodes.cpus[among]
        access = self._access[among]
        before = self._fragmented(free, left, access)
        if milli == 0 or milli >= WHOLE:
            after = self._fragmented(_without_whole(free, milli), left - cpus, access)
            return self._steps(after - before), np.zeros(len(among), dtype=np.int64)
        count, gpus = free.shape
        trial = np.repeat(free[:, None, :], gpus, axis=1)
        at = np.arange(gpus)
        trial[:, at, at] -= milli
        flat = self._fragmented(
            trial.reshape(-1, gpus), np.repeat(left - cpus, gpus), np.repeat(access, gpus, axis=0)
        ).reshape(count, gpus)
        grown = self._steps(np.where(free >= milli, flat - before[:, None], np.inf))
        best = grown.argmin(axis=1)
        return grown[np.arange(count), best], best

    def _steps(self, grown: Floats) -> Floats:
        if not self._hundredths:
            return grown
        return -np.floor(100 / (1 + np.exp(np.minimum(grown / WHOLE, 50))))

    def _fragmented(self, free: Ints, cpus: Floats, access: NDArray[np.bool_]) -> Floats:
        kinds = self._typical
        there = np.maximum(free, 0)
        total = there.sum(axis=1).astype(float)
        whole = (free == WHOLE).sum(axis=1)
        asked = np.minimum(kinds.milli, WHOLE)
        small = (there[:, :, None] * (there[:, :, None] < asked)).sum(axis=1)
        enough = np.where(
            kinds.milli >= WHOLE, whole[:, None] * WHOLE >= kinds.milli, (free[:, :, None] >= asked).any(axis=1)
        )
        useful = enough & (cpus[:, None] >= kinds.cpus - 1e-9) & access & (kinds.milli > 0)
        return np.where(useful, small, total[:, None]) @ kinds.share


def _without_whole(free: Ints, milli: int) -> Ints:
    """Returns what is free after each node has given its first whole GPUs."""
    is_free = free == WHOLE
    taken = is_free & (np.cumsum(is_free, axis=1) <= milli // WHOLE)
    return np.where(taken, 0, free)


# ---- one run ----


class _Known:
    """Scores of one kind of job, made anew only for nodes that changed."""

    def __init__(self, count: int) -> None:
        self.score: Floats = np.full(count, np.inf)
        self.gpu: Ints = np.zeros(count, dtype=np.int64)
        self.seen = -1


def pack(
    fleet: Fleet, jobs: Sequence[Job], score: Score, *, dice: random.Random | None = None, until: float = 1.0
) -> float:
    """Returns the share of GPUs that is held once so much of the capacity was asked for, in this order of arrival.

    ``dice``: draws among equal nodes, and which GPU of the node.
    """
    nodes = Nodes(fleet)
    everything = np.arange(len(fleet.nodes))
    changes: list[int] = []
    known: dict[Shape, _Known] = {}
    arrived = held = 0
    for job in jobs:
        shape = shape_of(job)
        mine = known.get(shape)
        if mine is None:
            mine = known[shape] = _Known(len(fleet.nodes))
        stale = everything if mine.seen < 0 else np.unique(np.array(changes[mine.seen :], dtype=np.int64))
        mine.seen = len(changes)
        _renew(nodes, shape, mine, stale, score)
        best = mine.score.min()
        if np.isfinite(best):
            equal = np.flatnonzero(mine.score == best)
            at = int(equal[0] if dice is None else dice.choice(equal))
            fits = np.flatnonzero(nodes.free[at] >= job.milli)
            gpu = int(mine.gpu[at] if dice is None or not len(fits) else dice.choice(fits))
            nodes.take(at, _gpus(nodes, at, shape, gpu), shape)
            changes.append(at)
            held += job.milli
        arrived += job.milli
        if arrived >= until * nodes.capacity:
            break
    return held / nodes.capacity


def _renew(nodes: Nodes, shape: Shape, mine: _Known, stale: Ints, score: Score) -> None:
    if not len(stale):
        return
    able = stale[nodes.able(shape, stale)]
    mine.score[stale] = np.inf
    if len(able):
        mine.score[able], mine.gpu[able] = score(nodes, shape, able)


def _gpus(nodes: Nodes, at: int, shape: Shape, gpu: int) -> list[int]:
    milli = shape[1]
    if milli == 0:
        return []
    if milli < WHOLE:
        return [gpu]
    return np.flatnonzero(nodes.free[at] == WHOLE)[: milli // WHOLE].tolist()


def arrivals(jobs: Sequence[Job], seed: int, capacity: int, inflated: float = 1.3) -> list[Job]:
    """Returns the jobs in random order, with as many drawn again behind them as it takes to ask for so much."""
    dice = random.Random(seed)
    order = list(jobs)
    dice.shuffle(order)
    asked = sum(job.milli for job in order)
    while asked < inflated * capacity:
        order.append(dice.choice(jobs))
        asked += order[-1].milli
    return order
