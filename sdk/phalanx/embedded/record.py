"""cluster.json: what the running embedded cluster tells those who join it. Written whole, read whole, 0600."""

from __future__ import annotations

import json
import os
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from phalanx.core.files import replace_file

T = TypeVar("T", "Record", "Failure")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A running cluster. ``pid`` is the supervisor's; ``build`` changes whenever the installed sources do."""

    version: str
    build: str
    pid: int
    address: str
    agents_address: str
    page: str
    ca: str
    token: str
    simulated_gpus: int
    run_dir: str
    started_ms: int
    simulates: str = ""
    """The machine that its agent looks like."""
    pids: dict[str, int] = field(default_factory=dict[str, int])
    failing: dict[str, int] = field(default_factory=dict[str, int])
    """Parts that have just ended several times in a row, and how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a start failed: the part, where its log is, and the log's last lines."""

    part: str
    message: str
    log: str
    tail: str


def write_json(path: Path, value: Record | Failure) -> None:
    """Replaces ``path`` in one step; a reader sees the old or the new, never a part."""
    replace_file(path, json.dumps(asdict(value), indent=1))


def read_record(path: Path) -> Record | None:
    """Returns the record, or None when there is none or one that this version cannot read."""
    return _made(Record, _read(path))


def read_failure(path: Path) -> Failure | None:
    """Returns what the last start left behind when it failed."""
    return _made(Failure, _read(path))


def tail_of(path: Path, *, lines: int = 15, limit_bytes: int = 16_384) -> str:
    """Returns the last lines of a log file; empty when there is no such file."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - limit_bytes))
            text = log.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _made(cls: type[T], data: dict[str, Any] | None) -> T | None:
    """Takes what another version wrote as well: a cluster of before an upgrade must be found, so as to be replaced."""
    if data is None:
        return None
    known = {f.name: f for f in fields(cls)}
    needed = {f.name for f in known.values() if f.default is MISSING and f.default_factory is MISSING}
    return cls(**{k: v for k, v in data.items() if k in known}) if needed <= data.keys() else None
