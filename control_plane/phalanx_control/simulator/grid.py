"""A fleet as plain numbers: what is free on each node, for schedulers to compare with. Whole GPUs go in equal parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from phalanx.core.played import model_matches
from phalanx_control.simulator.fragments import WHOLE
from phalanx_control.simulator.happenings import Part
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.machines import Fleet

_EPSILON = 1e-9

Pick = Callable[["Grid", Job, Sequence[int], int, int], Sequence[int]]
"""From the nodes that could take a part, how many are wanted, and GPUs of each: those that take one, or none."""


class Grid:
    """``free``: by node and GPU, in thousandths; ``whole``: GPUs of each node that nobody is on. 0 cpus: unknown."""

    def __init__(self, fleet: Fleet) -> None:
        nodes = fleet.nodes
        self.names = [node.node_id for node in nodes]
        self.free = [[WHOLE] * len(node.gpus) for node in nodes]
        self.whole = [len(node.gpus) for node in nodes]
        self.sizes = tuple(self.whole)
        self.cpus = [node.cpus or float("inf") for node in nodes]
        self.memory_gb = [node.memory_bytes / 1e9 or float("inf") for node in nodes]
        self.running = [0] * len(nodes)
        self._models = [node.gpus[0].model if node.gpus else "" for node in nodes]
        self._at = {name: at for at, name in enumerate(self.names)}
        self._able: dict[tuple[str, bool], list[int]] = {}
        self._largest = max(self.sizes, default=0)

    def place(self, job: Job, pick: Pick) -> tuple[Part, ...] | None:
        """Returns where the job goes now, on as few nodes as can be; None where nowhere."""
        for count, each in self.shapes(job):
            able = self.able(job, count, each)
            chosen = pick(self, job, able, count, each) if len(able) >= count else ()
            if chosen:
                return tuple(self._part(at, job, each) for at in chosen)
        return None

    def shapes(self, job: Job) -> Iterator[tuple[int, int]]:
        """Yields numbers of nodes and GPUs of each, fewest nodes first; 0 GPUs: a fraction, or none."""
        if job.gpus < 1:
            yield 1, 0
            return
        gpus = int(job.gpus)
        for count in range(1, 2 if job.one_node else gpus + 1):
            if gpus % count == 0 and gpus // count <= self._largest:
                yield count, gpus // count

    def able(self, job: Job, count: int, each: int) -> list[int]:
        """Returns the nodes that could take a part now."""
        cpus, memory_gb = job.cpus / count - _EPSILON, job.memory_gb / count - _EPSILON
        known = self._candidates(job)
        if job.milli and not each:
            fits = [at for at in known if max(self.free[at]) >= job.milli]
        else:
            fits = [at for at in known if self.whole[at] >= each]
        if cpus <= 0 and memory_gb <= 0:
            return fits
        return [at for at in fits if self.cpus[at] >= cpus and self.memory_gb[at] >= memory_gb]

    def take(self, parts: Sequence[Part], job: Job, sign: int = 1) -> None:
        """Writes a job's parts in, or with ``sign`` -1 out again."""
        for part in parts:
            at = self._at[part.node_id]
            free = self.free[at]
            for gpu in part.gpus:
                free[gpu] -= sign * part.milli
            self.whole[at] = free.count(WHOLE)
            self.cpus[at] -= sign * job.cpus / len(parts)
            self.memory_gb[at] -= sign * job.memory_gb / len(parts)
            self.running[at] += sign

    def at(self, node_id: str) -> int:
        return self._at[node_id]

    def _candidates(self, job: Job) -> list[int]:
        key = (job.gpu, job.milli > 0)
        found = self._able.get(key)
        if found is None:
            found = self._able[key] = [
                at
                for at, model in enumerate(self._models)
                if not key[1] or (self.sizes[at] and model_matches(job.gpu, model))
            ]
        return found

    def _part(self, at: int, job: Job, each: int) -> Part:
        free = self.free[at]
        if not each:
            gpu = min((g for g, left in enumerate(free) if left >= job.milli), key=lambda g: (free[g], g), default=None)
            return Part(self.names[at], () if gpu is None or not job.milli else (gpu,), job.milli)
        gpus = [gpu for gpu, left in enumerate(free) if left == WHOLE][:each]
        return Part(self.names[at], tuple(gpus), WHOLE)


def first_fit(grid: Grid, job: Job, able: Sequence[int], count: int, each: int) -> Sequence[int]:
    """The first nodes by their order."""
    del grid, job, each
    return able[:count]


def best_fit(grid: Grid, job: Job, able: Sequence[int], count: int, each: int) -> Sequence[int]:
    """The nodes with the least left."""
    del each
    if job.milli >= WHOLE:
        return sorted(able, key=lambda at: (grid.whole[at], at))[:count]
    return sorted(able, key=lambda at: (sum(grid.free[at]), at))[:count]
