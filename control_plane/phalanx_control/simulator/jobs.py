"""Jobs of a trace: calls whose durations the simulator knows and the scheduler does not. Data, and how it is scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phalanx.core.spec import FunctionSpec, Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One call. ``duration_ms`` None: it never ends. ``cpus`` and ``memory_gb`` are of all of it, not of a rank.

    ``one_node``: it may not be spread. ``gpu`` names models as functions do: ``"H100|H200"``.
    """

    number: int
    at_ms: int
    duration_ms: int | None
    gpus: float
    workspace: str = "default"
    user: str = ""
    gpu: str = ""
    cpus: float = 0
    memory_gb: float = 0
    one_node: bool = False
    priority: int = 0
    preemptible: bool = False

    @property
    def milli(self) -> int:
        """Thousandths of GPUs."""
        return round(self.gpus * 1000)

    def spec(self, *, fresh: bool) -> FunctionSpec:
        """Returns the function that it is a call of. ``fresh``: a gang of its own, and nothing queued behind it."""
        single = self.one_node or self.gpus < 1
        ranks = 1 if single else int(self.gpus)
        return FunctionSpec(
            name=f"{self.workspace}-{self.gpus:g}",
            priority=self.priority,
            preemptible=self.preemptible,
            module="trace",
            resources=Resources(gpus=self.gpus, gpu=self.gpu, cpus=self.cpus / ranks, memory_gb=self.memory_gb / ranks),
            launch="single" if single else "per_gpu",
            fresh=fresh,
        )


def gpu_ms(jobs: Sequence[Job]) -> float:
    """Returns what jobs with a duration occupy altogether."""
    return sum(job.gpus * job.duration_ms for job in jobs if job.duration_ms is not None)


def offered_load(jobs: Sequence[Job], gpus: int) -> float:
    """Returns the work that arrives, by what the fleet can do between the first arrival and the last."""
    span_ms = max(job.at_ms for job in jobs) - min(job.at_ms for job in jobs)
    return gpu_ms(jobs) / (gpus * span_ms) if span_ms and gpus else 0.0


def at_load(jobs: Sequence[Job], gpus: int, load: float) -> tuple[Job, ...]:
    """Returns the jobs nearer together, or further apart, so that so much of the fleet is asked for: 0.9 is 90 %."""
    now = offered_load(jobs, gpus)
    if not now:
        return tuple(jobs)
    first_ms = min(job.at_ms for job in jobs)
    return tuple(replace(job, at_ms=round((job.at_ms - first_ms) * now / load)) for job in jobs)


SIZES = (
    (0, "cpu"),
    (0.999, "<1"),
    (1, "1"),
    (2, "2"),
    (4, "3-4"),
    (8, "5-8"),
    (16, "9-16"),
    (32, "17-32"),
    (64, "33-64"),
)
_LARGEST = "65+"


def size_class(gpus: float) -> str:
    """Returns the class of sizes in which a job's wait is counted."""
    return next((name for most, name in SIZES if gpus <= most), _LARGEST)


def size_classes() -> tuple[str, ...]:
    """Returns all of them, smallest first."""
    return (*(name for _, name in SIZES), _LARGEST)
