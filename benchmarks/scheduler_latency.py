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
    filled: int
    fill_s: float
    """How many gangs filled the cell, and the processor seconds of the passes in which they did."""

    @property
    def fill_per_s(self) -> float:
        return self.filled / self.fill_s

    @property
    def decisions_ms(self) -> list[float]:
        """Of each gang that was started, the processor's time of its pass, shared by all that came with it."""
        return [ms / count for ms, count in zip(self.cpu_ms, self.started, strict=True) for _ in range(count)]

    @property
    def per_s(self) -> float:
        return 1000 * sum(self.started) / sum(self.cpu_ms)


class Cell:
    """A cell in which gangs of a fixed mix come and go."""

    def __init__(self, nodes: int, seed: int, preset: str) -> None:
        self.dice = random.Random(seed)
        words = from_words(f"{nodes} x {preset}")
        text = fabric_to_json(fabric(nodes))
        for at, node in enumerate(words.nodes):
            text = text.replace(f'"n{at}"', f'"{node.node_id}"')
        fleet = Fleet(name=words.name, nodes=words.nodes, fabric=text)
        self.scheduler = LiveScheduler(fleet, Options(explains=True))
        self.jobs: list[Job] = []
        self.running: list[Job] = []
        self.now_ms = 0

    @property
    def waiting(self) -> int:
        return len(self.scheduler.state.queue)

    def arrive(self) -> None:
        job = Job(
            number=len(self.jobs),
            at_ms=self.now_ms,
            duration_ms=None,
            gpus=self.dice.choices(*zip(*SIZES, strict=True))[0],
            workspace=f"w{self.dice.randrange(WORKSPACES)}",
        )
        self.jobs.append(job)
        self.scheduler.submit(job, self.now_ms)

    def end_one(self) -> None:
        at = self.dice.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        self.scheduler.end(self.running.pop(), self.now_ms)

    def look(self) -> tuple[int, float, float]:
        """One pass: how many gangs it started, and its milliseconds, by the wall and of the processor."""
        before, cpu_before = time.perf_counter(), time.process_time()
        said = list(self.scheduler.decide(self.now_ms))
        wall_ms, cpu_ms = (time.perf_counter() - before) * 1000, (time.process_time() - cpu_before) * 1000
        began = [happening for happening in said if isinstance(happening, Began)]
        self.running.extend(self.jobs[happening.number] for happening in began)
        return len(began), wall_ms, cpu_ms


def measure(nodes: int, decisions: int, seed: int = 1, preset: str = "hgx_h100") -> Timed:
    """Fills a cell, then times passes until so many gangs have been started."""
    cell, fill_ms = Cell(nodes, seed, preset), 0.0
    while cell.waiting < WAITING:
        cell.now_ms += 50
        for _ in range(32):
            cell.arrive()
        fill_ms += cell.look()[2]
    filled = len(cell.running)
    passes: list[tuple[int, float, float]] = []
    while sum(count for count, _, _ in passes) < decisions:
        cell.now_ms += 50
        cell.end_one()
        while cell.waiting < WAITING:
            cell.arrive()
        passes.append(cell.look())
    return Timed(
        nodes=nodes,
        gangs=len(cell.running),
        held=sum(job.gpus for job in cell.running) / (8 * nodes),
        waiting=cell.waiting,
        passes_ms=[wall_ms for _, wall_ms, _ in passes],
        cpu_ms=[cpu_ms for _, _, cpu_ms in passes],
        started=[count for count, _, _ in passes],
        filled=filled,
        fill_s=fill_ms / 1000,
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
