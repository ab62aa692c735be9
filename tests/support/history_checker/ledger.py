"""I9: every charged millisecond lies inside a lease interval, on a GPU of that lease, and is written once."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.history_checker.gangs import GangFacts, Gangs
from tests.support.history_checker.records import Batch, Event, Findings

TOLERANCE_MS = 2_500
"""One report interval and the time a message takes."""


@dataclass(slots=True)
class Line:
    gang: str
    node: str
    counters: dict[str, int] = field(default_factory=dict[str, int])
    closed: bool = False
    filed: bool = False


class Ledger:
    """Folds the meter's events by itself; ``lines`` are for comparison with the product's state."""

    def __init__(self, findings: Findings, gangs: Gangs) -> None:
        self._findings = findings
        self._gangs = gangs
        self.lines: dict[str, Line] = {}

    def see(self, batch: Batch, event: Event) -> None:
        kind = event["kind"]
        if kind == "LinesFiled":
            self._lines_filed(batch, event)
        if not kind.startswith("Meter"):
            return
        name = f"{event['gang_id']}/{event['node_id']}"
        if kind == "MeterOpened":
            self._opened(batch, event, name)
            return
        line = self.lines.get(name)
        if line is None or line.closed:
            what = "closed before" if line else "never opened"
            self._findings.add("I9", batch, f"{kind} of {name}, which was {what}")
        elif kind == "MeterCounted":
            self._counted(batch, event, line)
        elif kind == "MeterClosed":
            line.closed = True

    def _lines_filed(self, batch: Batch, event: Event) -> None:
        """Lines leave the state once, closed, and their sums hold every millisecond of a GPU and none besides."""
        counted = 0
        for name in event["keys"]:
            line = self.lines.get(name)
            if line is None or not line.closed or line.filed:
                self._findings.add("I9", batch, f"{name} was filed and is not a closed line that was still there")
                continue
            line.filed = True
            counted += sum(ms for gpu, ms in _by_gpu(line).items() if gpu)
        summed = sum(each.get("ms", 0) for each in event["sums"])
        if summed != counted:
            self._findings.add("I9", batch, f"{summed} ms were filed for lines with {counted} ms")

    def end(self) -> None:
        """The history is over: a lease that was given back has closed lines."""
        for name, line in self.lines.items():
            gang = self._gangs.facts.get(line.gang)
            if gang is not None and gang.released is not None and not line.closed:
                self._findings.add("I9", None, f"{name} was released and its meter never closed")

    def _opened(self, batch: Batch, event: Event, name: str) -> None:
        gang = self._gangs.facts.get(event["gang_id"])
        if gang is None or event["node_id"] not in gang.nodes:
            self._findings.add("I9", batch, f"a meter opened for {name}, which is no lease")
        if name in self.lines:
            self._findings.add("I9", batch, f"the meter of {name} opened twice")
        self.lines[name] = Line(event["gang_id"], event["node_id"])

    def _counted(self, batch: Batch, event: Event, line: Line) -> None:
        for key, ms in event["counters"].items():
            line.counters[key] = max(ms, line.counters.get(key, 0))
        gang = self._gangs.facts.get(line.gang)
        if gang is None:
            return
        longest = _lease_ms(gang, line.node, batch)
        for gpu, total in _by_gpu(line).items():
            if gang.gpus.get(gpu, ("", 0))[0] != line.node:
                self._findings.add(
                    "I9", batch, f"{line.gang} is charged for {gpu}, which it does not lease on {line.node}"
                )
            elif total > longest:
                self._findings.add(
                    "I9", batch, f"{line.gang} is charged {total} ms of {gpu} in a lease of {longest} ms"
                )


def _by_gpu(line: Line) -> dict[str, int]:
    totals: dict[str, int] = {}
    for key, ms in line.counters.items():
        gpu = key.rpartition("/")[0]
        totals[gpu] = totals.get(gpu, 0) + ms
    return totals


def _lease_ms(gang: GangFacts, node: str, now: Batch) -> int:
    """Returns how long the lease has lasted, at most: the log's clock stands still while nobody leads."""
    end = gang.ended.get(node, now)
    elapsed = max(end.log_ms - gang.opened.log_ms, end.wall_ms - gang.opened.wall_ms)
    return elapsed + elapsed // 100 + TOLERANCE_MS
