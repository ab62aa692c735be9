"""What the ranks themselves saw, against what the log says: the second witness of I3, I4, I5, I6 and I13."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tests.support.history_checker.calls import CallFacts, Calls
from tests.support.history_checker.gangs import Gangs
from tests.support.history_checker.records import Findings, Marker

GRACE_MS = 5_000
"""How long after a call's end or cancel its function may still begin: a kill is on its way."""


@dataclass(slots=True)
class Span:
    """One run of the user's function on one rank. ``stop`` 0: the rank died in it."""

    marker: Marker
    stop_ns: int = 0

    @property
    def name(self) -> str:
        return f"{self.marker.call} attempt {self.marker.attempt} on rank {self.marker.rank} of {self.marker.gang}"


@dataclass(slots=True)
class Marks:
    """Pairs starts with stops, then compares. Monotonic times are one machine's, as in every test."""

    findings: Findings
    calls: Calls
    gangs: Gangs
    _spans: list[Span] = field(default_factory=list[Span])

    def check(self, markers: list[Marker]) -> None:
        self._pair(markers)
        self._once_per_rank()
        self._attempts_apart()
        self._gpus_apart()
        for span in self._spans:
            self._lease_known(span.marker)
            self._not_too_late(span.marker)
        self._whole_gangs()

    def _pair(self, markers: list[Marker]) -> None:
        running: dict[tuple[str, int], Span] = {}
        for marker in markers:
            key = (marker.gang, marker.rank)
            if marker.op == "double_hold":
                self.findings.add("I4", None, f"{marker.gpu} was held by another process when {marker.gang} took it")
            elif marker.op == "start":
                if key in running:
                    before = running[key].marker.call
                    text = f"rank {marker.rank} of {marker.gang} began {marker.call} inside {before}"
                    self.findings.add("I6", None, text)
                running[key] = Span(marker)
                self._spans.append(running[key])
            elif marker.op == "stop":
                self._stop(marker, running.pop(key, None))

    def _stop(self, marker: Marker, span: Span | None) -> None:
        if span is None or (span.marker.call, span.marker.attempt) != (marker.call, marker.attempt):
            self.findings.add("I6", None, f"rank {marker.rank} of {marker.gang} ended {marker.call} unbegun")
        else:
            span.stop_ns = marker.mono_ns

    def _once_per_rank(self) -> None:
        seen: set[tuple[str, int, int]] = set()
        for span in self._spans:
            key = (span.marker.call, span.marker.attempt, span.marker.rank)
            if key in seen:
                self.findings.add("I3", None, f"{span.name} began twice")
            seen.add(key)

    def _attempts_apart(self) -> None:
        by_call: dict[str, list[Span]] = defaultdict(list)
        for span in self._spans:
            by_call[span.marker.call].append(span)
        for spans in by_call.values():
            for before, after in _overlapping(spans):
                if before.marker.attempt != after.marker.attempt:
                    self.findings.add("I3", None, f"{after.name} began while attempt {before.marker.attempt} ran")

    def _gpus_apart(self) -> None:
        by_gpu: dict[str, list[Span]] = defaultdict(list)
        for span in self._spans:
            if span.marker.gpu:
                by_gpu[span.marker.gpu].append(span)
        for gpu, spans in by_gpu.items():
            for before, after in _overlapping(spans):
                if before.marker.gang != after.marker.gang and self._whole(gpu, before) and self._whole(gpu, after):
                    self.findings.add("I4", None, f"{gpu} ran {before.name} and {after.name} at once")

    def _whole(self, gpu: str, span: Span) -> bool:
        gang = self.gangs.facts.get(span.marker.gang)
        return gang is None or gang.gpus.get(gpu, ("", 1.0))[1] >= 1

    def _lease_known(self, marker: Marker) -> None:
        gang = self.gangs.facts.get(marker.gang)
        if gang is None:
            self.findings.add("I4", None, f"ranks of {marker.gang} ran, and the log knows no such lease")
            return
        if marker.fence != gang.fence:
            self.findings.add("I5", None, f"a rank of {marker.gang} ran under fence {marker.fence}, not {gang.fence}")
        if marker.gpu and marker.gpu not in gang.gpus:
            self.findings.add("I4", None, f"a rank of {marker.gang} ran on {marker.gpu}, which is not in its lease")
        if marker.rank >= gang.world_size:
            self.findings.add("I6", None, f"rank {marker.rank} of {marker.gang} ran, and it has {gang.world_size}")
        if gang.released and marker.wall_ns // 1_000_000 > gang.released.wall_ms + GRACE_MS:
            self.findings.add("I4", None, f"{marker.call} began on {marker.gang} after the lease was given back")

    def _not_too_late(self, marker: Marker) -> None:
        call = self.calls.facts.get(marker.call)
        if call is None:
            return
        at_ms = marker.wall_ns // 1_000_000
        name = f"attempt {marker.attempt} of {call.id}"
        if call.terminal_wall_ms and at_ms > call.terminal_wall_ms + GRACE_MS:
            self.findings.add("I2", None, f"{name} began after the call had {call.state}")
        elif call.cancelling_wall_ms and at_ms > call.cancelling_wall_ms + GRACE_MS:
            self.findings.add("I13", None, f"{name} began after its cancel")
        self._not_stale(marker, call, at_ms)

    def _not_stale(self, marker: Marker, call: CallFacts, at_ms: int) -> None:
        newer = next((a for a in call.attempts if a.number > marker.attempt), None)
        if newer is not None and at_ms > newer.wall_ms + GRACE_MS:
            self.findings.add("I5", None, f"attempt {marker.attempt} of {call.id} began after attempt {newer.number}")
        known = next((a for a in call.attempts if a.number == marker.attempt), None)
        if known is None or known.gang != marker.gang:
            where = known.gang if known else "no gang"
            text = f"attempt {marker.attempt} of {call.id} ran on {marker.gang}; the log gave it to {where}"
            self.findings.add("I5", None, text)

    def _whole_gangs(self) -> None:
        """A result means that every rank began and ended: all or nothing, as the ranks saw it."""
        ran: dict[tuple[str, int], set[int]] = defaultdict(set)
        for span in self._spans:
            if span.stop_ns:
                ran[span.marker.call, span.marker.attempt].add(span.marker.rank)
        marked = {span.marker.gang for span in self._spans}
        for call in self.calls.facts.values():
            gang = self.gangs.facts.get(call.attempts[-1].gang) if call.attempts else None
            if call.state != "succeeded" or gang is None or gang.id not in marked:
                continue
            missing = sorted(set(range(gang.world_size)) - ran[call.id, call.attempts[-1].number])
            if missing:
                self.findings.add(
                    "I6", None, f"{call.id} has a result, but ranks {missing} of {gang.id} did not finish it"
                )


def _overlapping(spans: list[Span]) -> list[tuple[Span, Span]]:
    """Returns pairs that ran at once. A span without a stop ends where it begins: its rank died, when is not known."""
    pairs: list[tuple[Span, Span]] = []
    live: list[Span] = []
    for span in sorted(spans, key=lambda s: s.marker.mono_ns):
        live = [s for s in live if s.stop_ns > span.marker.mono_ns]
        pairs += [(s, span) for s in live]
        live.append(span)
    return pairs
