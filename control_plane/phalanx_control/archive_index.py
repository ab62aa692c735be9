"""Where in the archive's parts each call and each ledger line stands: one SQLite file beside the replica.

A cache and nothing more: the parts are the truth, and a file that is lost, damaged or of another version is made anew
from them. Blocks; callers run it in a thread.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx_control.state.model import Call, LedgerLine

_logger = logging.getLogger(__name__)

_VERSION = 2
_BUSY_S = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (
    id TEXT PRIMARY KEY, part TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    workspace TEXT NOT NULL, function_id TEXT NOT NULL, state TEXT NOT NULL, submitted_ms INTEGER NOT NULL,
    parent TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_parent ON calls (parent, submitted_ms) WHERE parent != '';
CREATE INDEX IF NOT EXISTS calls_newest ON calls (workspace, submitted_ms, id);
CREATE INDEX IF NOT EXISTS calls_part ON calls (part);
CREATE TABLE IF NOT EXISTS lines (
    id TEXT PRIMARY KEY, part TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lines_part ON lines (part);
CREATE TABLE IF NOT EXISTS refs (blob TEXT NOT NULL, part TEXT NOT NULL, PRIMARY KEY (blob, part)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS refs_part ON refs (part);
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of one record within a part."""

    part: str
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFilter:
    """Which calls are asked for; empty fields ask for all. ``function_ids`` None is every function."""

    workspace: str
    state: str = ""
    function_ids: tuple[str, ...] | None = None
    limit: int = 100
    parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part as it is entered: its records with where they stand."""

    name: str
    bytes: int
    calls: Sequence[tuple[Call, Place]] = field(default_factory=list[tuple[Call, Place]])
    lines: Sequence[tuple[LedgerLine, Place]] = field(default_factory=list[tuple[LedgerLine, Place]])


class ArchiveIndex:
    """Opened at once; safe to use from several threads and beside other processes on the same file."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = _open(path)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def parts(self) -> dict[str, int]:
        """Returns the parts that are entered, oldest first, with their bytes."""
        return {row[0]: row[1] for row in self._all("SELECT name, bytes FROM parts ORDER BY name")}

    def add(self, part: Part) -> None:
        """Enters a part whole; again is once."""
        calls = [_call_row(call, place) for call, place in part.calls]
        lines = [(_line_id(line), place.part, place.start, place.size) for line, place in part.lines]
        refs = [(blob, part.name) for call, _ in part.calls for blob in blobs_of(call)]
        with self._lock, self._db:
            self._db.executemany("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", calls)
            self._db.executemany("INSERT OR REPLACE INTO lines VALUES (?, ?, ?, ?)", lines)
            self._db.executemany("INSERT OR IGNORE INTO refs VALUES (?, ?)", refs)
            self._db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?)", (part.name, part.bytes))

    def drop(self, parts: Iterable[str]) -> None:
        """Forgets parts with all that stands in them."""
        names = [(name,) for name in parts]
        with self._lock, self._db:
            self._db.executemany("DELETE FROM calls WHERE part = ?", names)
            self._db.executemany("DELETE FROM lines WHERE part = ?", names)
            self._db.executemany("DELETE FROM refs WHERE part = ?", names)
            self._db.executemany("DELETE FROM parts WHERE name = ?", names)

    def call(self, call_id: str) -> Place | None:
        found = self._all("SELECT part, start, size FROM calls WHERE id = ?", call_id)
        return _place(found[0]) if found else None

    def lines_of(self, gang_id: str) -> list[Place]:
        """Returns the places of a gang's filed lines, one per node."""
        rows = self._all("SELECT part, start, size FROM lines WHERE id >= ? AND id < ?", f"{gang_id}/", f"{gang_id}0")
        return [_place(row) for row in rows]

    def newest(self, wanted: CallFilter) -> list[Place]:
        """Returns the places of the newest calls that fit, by the time of their submission."""
        where, values = ["workspace = ?"], [wanted.workspace]
        if wanted.state:
            where.append("state = ?")
            values.append(wanted.state)
        if wanted.parent:
            where.append("parent = ?")
            values.append(wanted.parent)
        if wanted.function_ids is not None:
            where.append(f"function_id IN ({', '.join('?' * len(wanted.function_ids))})")
            values += wanted.function_ids
        query = f"SELECT part, start, size FROM calls WHERE {' AND '.join(where)}"  # noqa: S608 (fixed words only)
        rows = self._all(f"{query} ORDER BY submitted_ms DESC, id DESC LIMIT {wanted.limit:d}", *values)
        return [_place(row) for row in rows]

    def states(self, workspace: str, call_ids: Sequence[str]) -> dict[str, str]:
        """Returns the states of those of the calls that are entered, by id."""
        marks = ", ".join("?" * len(call_ids))
        query = f"SELECT id, state FROM calls WHERE workspace = ? AND id IN ({marks})"  # noqa: S608 (marks only)
        return dict(self._all(query, workspace, *call_ids))

    def is_referred_to(self, blob: str) -> bool:
        """Says whether an archived call has its arguments, result or exception in ``blob``."""
        return bool(self._all("SELECT 1 FROM refs WHERE blob = ? LIMIT 1", blob))

    def _all(self, query: str, *values: str) -> list[Any]:
        with self._lock:
            return self._db.execute(query, values).fetchall()


def blobs_of(call: Call) -> set[str]:
    """Returns the blobs that hold a call's arguments, result and exception."""
    return {ref.blob for ref in (call.args, call.result, call.error_body)} - {""}


def _open(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path)
    except sqlite3.DatabaseError as e:
        _logger.warning("index of the archive is made anew", extra={"path": str(path), "why": str(e)})
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            name.unlink(missing_ok=True)
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    """Durability is not needed: what is lost is entered again."""
    db = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False)
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"version {version}, not {_VERSION}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(_SCHEMA)
        db.execute(f"PRAGMA user_version = {_VERSION}")
    except sqlite3.DatabaseError:
        with contextlib.suppress(sqlite3.Error):
            db.close()
        raise
    return db


def _call_row(call: Call, place: Place) -> tuple[str, str, int, int, str, str, str, int, str]:
    owner = call.owner.workspace
    where = (place.part, place.start, place.size)
    return (call.id, *where, owner, call.function_id, call.state.value, call.submitted_wall_ms, call.parent)


def _line_id(line: LedgerLine) -> str:
    return f"{line.gang_id}/{line.node_id}"


def _place(row: tuple[str, int, int]) -> Place:
    return Place(*row)
