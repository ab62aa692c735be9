"""What a scheduler under simulation says: who holds which GPUs, which jobs run. Data, and the seam to schedulers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from phalanx_control.simulator.jobs import Job


@dataclass(frozen=True, slots=True)
class Part:
    """GPUs of one node, by their places in it; ``milli``: how much of each is held, in thousandths."""

    node_id: str
    gpus: tuple[int, ...]
    milli: int


@dataclass(frozen=True, slots=True)
class Held:
    """From now on ``key`` holds these GPUs for a workspace."""

    key: str
    workspace: str
    parts: tuple[Part, ...]

    @property
    def milli(self) -> int:
        return sum(part.milli * len(part.gpus) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Freed:
    key: str


@dataclass(frozen=True, slots=True)
class Began:
    """The job runs from now on, from its beginning."""

    number: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The job was ended before its time and waits again; what it had done is lost."""

    number: int


Happening = Held | Freed | Began | Stopped


class Scheduler(Protocol):
    """Told what comes and what ends; says what happens."""

    def submit(self, job: Job, now_ms: int) -> None:
        """A job arrives."""
        ...

    def end(self, job: Job, now_ms: int) -> None:
        """A job that ran has done its work."""
        ...

    def decide(self, now_ms: int) -> Iterable[Happening]:
        """Returns what happens now, in order; asked after all that comes and ends at a time was told."""
        ...

    def next_ms(self) -> int | None:
        """Returns when it wants to be asked again though nothing comes or ends; None: it need not."""
        ...
