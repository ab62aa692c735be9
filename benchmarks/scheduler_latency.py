"""How long a decision takes in a fleet that is mostly full: all that one live pass does, its sentences included.

Gangs of 1 to 64 GPUs come to a cell that holds as many as fit, and with each arrival one that runs ends, so that the
queue stays about as long as it is. What is timed is the pass over the state and the folding of its events.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fabric import NODES_PER_LEAF, fabric
from benchmarks.report import p99
from phalanx.core.topology.fabric_codec import fabric_to_json
from phalanx_control.simulator.happenings import Began
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.live import LiveScheduler, Options
from phalanx_control.simulator.machines import Fleet, from_words

NODES = (1_000, 10_000)
SIZES = ((1, 30), (2, 15), (4, 15), (8, 25), (16, 10), (64, 5))
WORKSPACES = 8
WAITING = 20
"""Gangs that wait, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Of one size of fleet: milliseconds of each pass, and how many gangs each started."""

    nodes: int
    gangs: int
    held: float
    waiting: int
    passes_ms: list[float]
    cpu_ms: list[float]
    """Of the same passes, the processor's time: what is left when other programs do not take turns."""
    started: list[int]
    fill_s: float
    """Processor seconds of the passes that filled the cell, in which every gang found a place."""

    @property
    def fill_per_s(self) -> float:
        return self.gangs / self.fill_s

    @property
    def decisions_ms(self) -> list[float]:
        """Of each gang that was started, the processor's time of its pass, shared by all that came with it."""
        return [ms / count for ms, count in zip(self.cpu_ms, self.started, strict=True) for _ in range(count)]

    @property
    def per_s(self) -> float:
        return 1000 * sum(self.started) / sum(self.cpu_ms)


def measure(nodes: int, decisions: int, seed: int = 1, preset: str = "hgx_h100") -> Timed:
    """Fills a cell, then times passes until so many gangs have been started."""
    dice = random.Random(seed)
    words = from_words(f"{nodes} x {preset}")
    text = fabric_to_json(fabric(nodes))
    for at, node in enumerate(words.nodes):
        text = text.replace(f'"n{at}"', f'"{node.node_id}"')
    scheduler = LiveScheduler(Fleet(name=words.name, nodes=words.nodes, fabric=text), Options(explains=True))
    jobs: list[Job] = []
    running: list[Job] = []
    now_ms = 0

    def arrive() -> None:
        job = Job(
            number=len(jobs),
            at_ms=now_ms,
            duration_ms=None,
            gpus=dice.choices(*zip(*SIZES, strict=True))[0],
            workspace=f"w{dice.randrange(WORKSPACES)}",
        )
        jobs.append(job)
        scheduler.submit(job, now_ms)

    def look() -> int:
        began = [happening for happening in scheduler.decide(now_ms) if isinstance(happening, Began)]
        running.extend(jobs[happening.number] for happening in began)
        return len(began)

    fill_s = 0.0
    while len(scheduler.state.queue) < WAITING:
        now_ms += 50
        for _ in range(32):
            arrive()
        started = time.process_time()
        look()
        fill_s += time.process_time() - started
    passes: list[float] = []
    cpu: list[float] = []
    counts: list[int] = []
    while sum(counts) < decisions:
        now_ms += 50
        at = dice.randrange(len(running))
        running[at], running[-1] = running[-1], running[at]
        scheduler.end(running.pop(), now_ms)
        while len(scheduler.state.queue) < WAITING:
            arrive()
        before, cpu_before = time.perf_counter(), time.process_time()
        count = look()
        cpu.append((time.process_time() - cpu_before) * 1000)
        passes.append((time.perf_counter() - before) * 1000)
        counts.append(count)
    held = sum(job.gpus for job in running) / (8 * nodes)
    return Timed(
        nodes=nodes,
        gangs=len(running),
        held=held,
        waiting=len(scheduler.state.queue),
        passes_ms=passes,
        cpu_ms=cpu,
        started=counts,
        fill_s=fill_s,
    )


def table(rows: Sequence[Timed]) -> str:
    """Returns the rows as a Markdown table."""
    lines = [
        f"| nodes of 8, {NODES_PER_LEAF} to a leaf | gangs run | wait | GPUs held | pass p50 | pass p99 "
        "| processor p50 | p99 | per gang started p50 | p99 | gangs/s | gangs/s while it fills |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.nodes:,} | {row.gangs:,} | {row.waiting} | {row.held:.1%} "
        f"| {statistics.median(row.passes_ms):.2f} ms | {p99(row.passes_ms):.2f} ms "
        f"| {statistics.median(row.cpu_ms):.2f} ms | {p99(row.cpu_ms):.2f} ms "
        f"| {statistics.median(row.decisions_ms):.2f} ms | {p99(row.decisions_ms):.2f} ms | {row.per_s:.0f} "
        f"| {row.fill_per_s:,.0f} |"
        for row in rows
    ]
    return "\n".join(lines)
