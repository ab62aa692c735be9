"""The loop of virtual time: what arrives and ends at a moment is told to the scheduler, which is then asked.

    1 next   the earliest of arrivals, ends and the scheduler's own alarms
    2 ends   before arrivals, in the order of the jobs
    3 ask    once for each moment
    4 watch  every happening, and how long it was so

Time jumps. The scheduler does not know durations.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from phalanx_control.simulator.happenings import Began, Happening, Scheduler, Stopped
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.watch import Watch

PROGRESS_EVERY = 1_000
Progress = Callable[[int, int], None]
"""Told how many jobs have arrived, and when, in ms."""


def run(jobs: Sequence[Job], scheduler: Scheduler, watch: Watch, progress: Progress | None = None) -> None:
    """Plays jobs, which come in order of arrival and are numbered from 0, until nothing happens any more."""
    ends = _Ends(jobs)
    arrived = 0
    while True:
        arrives_ms = jobs[arrived].at_ms if arrived < len(jobs) else None
        times = [at_ms for at_ms in (arrives_ms, ends.next_ms(), scheduler.next_ms()) if at_ms is not None]
        if not times:
            return
        now_ms = min(times)
        watch.until(now_ms)
        for job in ends.until(now_ms):
            watch.ended(job)
            scheduler.end(job, now_ms)
        while arrived < len(jobs) and jobs[arrived].at_ms <= now_ms:
            watch.submitted(jobs[arrived])
            scheduler.submit(jobs[arrived], now_ms)
            arrived += 1
            if progress is not None and arrived % PROGRESS_EVERY == 0:
                progress(arrived, now_ms)
        for happening in scheduler.decide(now_ms):
            watch.saw(happening)
            ends.saw(happening, now_ms)


class _Ends:
    """When the jobs that run will have done their work. A job that was stopped begins anew."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._heap: list[tuple[int, int, int]] = []
        self._run = [0] * len(jobs)
        """Which of its runs counts; one that was stopped does not."""

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def until(self, now_ms: int) -> Iterator[Job]:
        """Yields the jobs that have ended by now, each once."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, number, run_of = heapq.heappop(self._heap)
            if self._run[number] == run_of:
                yield self._jobs[number]

    def saw(self, happening: Happening, now_ms: int) -> None:
        if isinstance(happening, Stopped):
            self._run[happening.number] += 1
        elif isinstance(happening, Began):
            number = happening.number
            lasts_ms = self._jobs[number].duration_ms
            if lasts_ms is not None:
                heapq.heappush(self._heap, (now_ms + lasts_ms, number, self._run[number]))
