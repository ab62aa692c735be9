"""Weeks of the Philly trace on a fleet that it nearly fills: who waits how long, and who gets whose share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scheduler_peers.picks import at_random
from phalanx_control.simulator import engine
from phalanx_control.simulator.baselines import Baseline
from phalanx_control.simulator.grid import best_fit, first_fit
from phalanx_control.simulator.happenings import Scheduler
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.live import LiveScheduler, Options
from phalanx_control.simulator.machines import Fleet, from_words
from phalanx_control.simulator.results import results_of
from phalanx_control.simulator.traces import in_order, read_jobs
from phalanx_control.simulator.watch import Watch

FILE = "philly_jobs.csv"
FLEET = "80x8"
WEEKS = (2, 9)
"""From the third week of the trace to the ninth: before and after them little is asked for."""
_WEEK_MS = 7 * 24 * 3600 * 1000

Make = Callable[[Fleet], Scheduler]
POLICIES: dict[str, Make] = {
    "FIFO, best fit": lambda fleet: Baseline(fleet, "fifo", best_fit),
    "EASY with true durations, best fit": lambda fleet: Baseline(fleet, "easy", best_fit),
    "whoever fits, best fit": lambda fleet: Baseline(fleet, "any", best_fit),
    "whoever fits, first fit": lambda fleet: Baseline(fleet, "any", first_fit),
    "whoever fits, random": lambda fleet: Baseline(fleet, "any", at_random(1)),
    "ours, durations unknown": lambda fleet: LiveScheduler(fleet, Options()),
    "ours, timeouts of twice the duration": lambda fleet: LiveScheduler(fleet, Options(timeouts=2)),
    "ours, timeouts of the duration": lambda fleet: LiveScheduler(fleet, Options(timeouts=1)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One policy: the simulator's results, and how long the simulation took."""

    policy: str
    found: dict[str, Any]
    took_s: float


def jobs_of(traces: Path) -> tuple[Job, ...]:
    jobs = read_jobs((traces / FILE).read_text(), name=FILE, shuffle=list.reverse)
    return in_order(job for job in jobs if WEEKS[0] * _WEEK_MS <= job.at_ms < WEEKS[1] * _WEEK_MS)


def measure(traces: Path, limit: int, say: Callable[[str], None]) -> list[Played]:
    """Plays every policy; ``limit`` 0: all jobs."""
    fleet, jobs = from_words(FLEET), jobs_of(traces)
    jobs = jobs[:limit] if limit else jobs
    rows: list[Played] = []
    for policy, make in POLICIES.items():
        watch = Watch(fleet, jobs)
        started = time.perf_counter()
        engine.run(jobs, make(fleet), watch)
        found = results_of(fleet, jobs, watch, policy=policy, refused=0)
        rows.append(Played(policy=policy, found=found, took_s=time.perf_counter() - started))
        say(f"{policy}: {rows[-1].took_s:.0f} s")
    return rows


def table(rows: Sequence[Played]) -> str:
    """Returns the rows as a Markdown table."""
    lines = [
        "| policy | mean wait | p50 | p95 | mean of 1 GPU | mean of 9 and more | idle GPU-h | share error | used "
        "| fragmented | simulated in |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = row.found
        waits = {wait["size"]: wait for wait in found["waits"]}
        large = [wait for size, wait in waits.items() if size in ("9-16", "17-32", "33-64", "65+")]
        count = sum(wait["started"] for wait in large)
        of_large = sum(wait["mean_s"] * wait["started"] for wait in large) / max(1, count)
        every = waits["all"]
        lines.append(
            f"| {row.policy} | {_hours(every['mean_s'])} | {_hours(every['p50_s'])} | {_hours(every['p95_s'])} "
            f"| {_hours(waits['1']['mean_s'])} | {_hours(of_large)} | {found['idle_gpu_hours_while_waiting']:,.0f} "
            f"| {found['share_error']:.1%} | {found['utilisation']:.1%} | {found['fragmented']:.2%} "
            f"| {row.took_s:.0f} s |"
        )
    return "\n".join(lines)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h"
