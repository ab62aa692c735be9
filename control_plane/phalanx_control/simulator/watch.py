"""What is measured while time passes: who waits and for how long, what is held, who gets which share, what lies idle.

All by addition over the stretches between happenings, so the figures are exact and the same for the same inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx_control.simulator.fragments import WHOLE, Mix, fragmented, mix_of
from phalanx_control.simulator.happenings import Began, Freed, Happening, Held, Stopped
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.machines import Fleet
from phalanx_control.simulator.shares import entitled
from phalanx_control.simulator.traces import sizes_of

SAMPLES = 200
"""Looks at fragmentation between the first arrival and the last."""


@dataclass(slots=True)
class Tenant:
    """One workspace, in thousandths of GPUs and their milliseconds."""

    held: int = 0
    waiting: int = 0
    held_ms: int = 0
    entitled_ms: float = 0


@dataclass(slots=True)
class Life:
    """One job: when it first began, when it ended, and how often it began."""

    began_ms: int = -1
    last_began_ms: int = -1
    ended_ms: int = -1
    starts: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """The fleet at one time, in thousandths of GPUs."""

    at_ms: int
    held: int
    waiting: int
    fragmented: float


@dataclass(slots=True)
class Sums:
    """Over all of the time, in thousandths of GPUs times milliseconds. ``contended_ms``: while somebody waits."""

    held: int = 0
    held_while_arriving: int = 0
    idle_while_waiting: int = 0
    lost: int = 0
    contended_ms: int = 0
    misallotted: float = 0
    fragmented: float = 0
    fragmented_looks: int = 0
    stops: int = 0


class Watch:
    """Of one run."""

    def __init__(self, fleet: Fleet, jobs: Sequence[Job], weights: Mapping[str, float] | None = None) -> None:
        self.jobs = jobs
        self.total = fleet.gpus * WHOLE
        self.lives = [Life() for _ in jobs]
        self.tenants = {name: Tenant() for name in sorted({job.workspace for job in jobs})}
        self.sums = Sums()
        self.points: list[Point] = []
        self.last_arrival_ms = jobs[-1].at_ms if jobs else 0
        self._weights = weights or {}
        self._now_ms = 0
        self._held: dict[str, Held] = {}
        self._free = {node.node_id: [WHOLE] * len(node.gpus) for node in fleet.nodes if node.gpus}
        self._mix: Mix = mix_of(sizes_of(jobs), max((len(free) for free in self._free.values()), default=0))
        self._every_ms = max(1, self.last_arrival_ms // SAMPLES)
        self._look_ms = 0
        self._held_milli = 0
        self._waiting: dict[int, None] = {}
        self._waiting_milli = 0

    # ---- time passes ----

    def until(self, now_ms: int) -> None:
        """All has stood as it is until now."""
        while self._look_ms <= min(now_ms, self.last_arrival_ms):
            if self._look_ms >= self._now_ms:
                self._look(self._look_ms)
            self._look_ms += self._every_ms
        passed_ms = now_ms - self._now_ms
        if passed_ms:
            self._add(passed_ms, now_ms)
        self._now_ms = now_ms

    def _add(self, passed_ms: int, now_ms: int) -> None:
        sums = self.sums
        sums.held += self._held_milli * passed_ms
        sums.held_while_arriving += self._held_milli * max(0, min(now_ms, self.last_arrival_ms) - self._now_ms)
        if self._waiting_milli:
            sums.idle_while_waiting += (self.total - self._held_milli) * passed_ms
            sums.contended_ms += passed_ms
            self._compare(passed_ms)
        for tenant in self.tenants.values():
            tenant.held_ms += tenant.held * passed_ms

    def _compare(self, passed_ms: int) -> None:
        """Adds how far what workspaces hold is from what they are entitled to."""
        wanted = {
            name: tenant.held + tenant.waiting for name, tenant in self.tenants.items() if tenant.held + tenant.waiting
        }
        due = entitled(wanted, self._weights, self.total)
        off = 0.0
        for name, share in due.items():
            tenant = self.tenants[name]
            tenant.entitled_ms += share * passed_ms
            off += max(0.0, share - tenant.held)
        self.sums.misallotted += off * passed_ms

    def _look(self, at_ms: int) -> None:
        lost = fragmented(self._free.values(), self._mix)
        self.points.append(Point(at_ms, self._held_milli, self._waiting_milli, lost))
        if self._held_milli:
            self.sums.fragmented += lost
            self.sums.fragmented_looks += 1

    # ---- things happen ----

    def submitted(self, job: Job) -> None:
        self._wait(job, 1)

    def ended(self, job: Job) -> None:
        self.lives[job.number].ended_ms = self._now_ms

    def saw(self, happening: Happening) -> None:
        """Takes down what the scheduler says."""
        match happening:
            case Held():
                self._held[happening.key] = happening
                self._take(happening, 1)
            case Freed(key):
                self._take(self._held.pop(key), -1)
            case Began(number):
                life = self.lives[number]
                life.began_ms = self._now_ms if life.began_ms < 0 else life.began_ms
                life.last_began_ms = self._now_ms
                life.starts += 1
                self._wait(self.jobs[number], -1)
            case Stopped(number):
                job = self.jobs[number]
                self.sums.stops += 1
                self.sums.lost += job.milli * (self._now_ms - self.lives[number].last_began_ms)
                self._wait(job, 1)

    def _wait(self, job: Job, sign: int) -> None:
        self._waiting_milli += sign * job.milli
        self.tenants[job.workspace].waiting += sign * job.milli

    def _take(self, held: Held, sign: int) -> None:
        milli = sign * held.milli
        self._held_milli += milli
        self.tenants[held.workspace].held += milli
        for part in held.parts:
            free = self._free.get(part.node_id)
            for at in part.gpus if free is not None else ():
                assert free is not None
                free[at] -= sign * part.milli
                if not 0 <= free[at] <= WHOLE:
                    raise AssertionError(f"GPU {at} of {part.node_id} is held {WHOLE - free[at]} thousandths")
