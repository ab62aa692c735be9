"""The two inputs, read strictly: batches of the log, and the marks that ranks left around the user's function."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant. ``seq`` is the batch that broke it, 0 when the markers did."""

    rule: str
    seq: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.seq}: {self.text}" if self.seq else f"{self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class Batch:
    seq: int
    epoch: int
    leader: str
    log_ms: int
    wall_ms: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """``op``: start and stop of the user's function on one rank, or double_hold: the GPU's lock was taken already."""

    op: str
    call: str = ""
    attempt: int = 0
    gang: str = ""
    fence: int = 0
    rank: int = 0
    pid: int = 0
    gpu: str = ""
    mono_ns: int = 0
    wall_ns: int = 0


@dataclass(slots=True)
class Findings:
    """Collects violations; every part of the checker writes here."""

    found: list[Violation] = field(default_factory=list[Violation])

    def add(self, rule: str, batch: Batch | None, text: str) -> None:
        self.found.append(Violation(rule, batch.seq if batch else 0, text))


def read_history(path: Path) -> list[Batch]:
    """Reads one batch per line. Raises ValueError naming the line that is not one."""
    batches: list[Batch] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            batches.append(parse_batch(json.loads(line)))
        except (KeyError, TypeError, ValueError) as e:
            raise ValueError(f"{path.name} line {number} is not a batch: {e!r}") from e
    return batches


def parse_batch(data: dict[str, Any]) -> Batch:
    """Raises KeyError, TypeError or ValueError when a part is missing or of the wrong kind."""
    events = data["events"]
    if not isinstance(events, list) or any(not isinstance(e, dict) or "kind" not in e for e in events):
        raise ValueError("events must be a list of objects with a kind")
    numbers = [int(data[name]) for name in ("seq", "epoch", "log_ms", "wall_ms")]
    return Batch(numbers[0], numbers[1], str(data["leader"]), numbers[2], numbers[3], tuple(events))


def batch_of_entry(entry: Mapping[str, str]) -> Batch:
    """Reads one entry of the Redis stream as it stands there, with its ``id``. Raises KeyError or ValueError."""
    names = {"epoch": "e", "leader": "l", "log_ms": "t", "wall_ms": "w"}
    data: dict[str, Any] = {name: entry[field] for name, field in names.items()}
    return parse_batch({**data, "seq": entry["id"].partition("-")[0], "events": json.loads(entry["d"])})


def read_markers(folder: Path) -> list[Marker]:
    """Reads every rank's file. The last line of a file may be torn by a kill; any other raises ValueError."""
    markers: list[Marker] = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text(errors="replace").split("\n")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                markers.append(_marker(json.loads(line)))
            except (TypeError, ValueError) as e:
                if number < len(lines):
                    raise ValueError(f"{path.name} line {number} is not a marker: {e!r}") from e
    return sorted(markers, key=lambda m: m.mono_ns)


def _marker(data: dict[str, Any]) -> Marker:
    return Marker(**{name: data[name] for name in Marker.__slots__ if name in data})


def shares(members: Iterable[Event]) -> dict[str, tuple[str, float]]:
    """Returns GPU → (node, leased part of it) for the members of a gang as they stand in an event."""
    out: dict[str, tuple[str, float]] = {}
    for state in members:
        member = state["member"]
        for gpu in member.get("gpus", ()):
            out[gpu] = (member["node_id"], float(member.get("share", 1)))
    return out
