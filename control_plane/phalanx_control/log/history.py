"""The archive's files: every batch there ever was, as JSON lines, and the snapshots folded from them.

    history/<first>-<last>.jsonl     append-only, contiguous; one batch a line
    snapshots/<seq>.json.gz          the state after <seq>; the newest few

Files are written under another name and renamed, so that a name stands for a whole file. Nothing is ever changed; the
oldest history is dropped when a snapshot stands for it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import NotFoundError
from phalanx_control.log.log import Batch, Snapshot, batch_from_line, batch_to_line

KEEP_SNAPSHOTS = 3
KEEP_MS = 7 * 24 * 3600 * 1000
KEEP_BYTES = 10_000_000_000
"""How much history is kept, whichever is reached first."""
_DIGITS = 16


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of the history: batches ``first`` to ``last``."""

    first: int
    last: int
    path: Path

    def batches(self, *, after: int = 0) -> Iterator[Batch]:
        """Yields the batches after ``after``. Raises UnreadableLogError."""
        with self.path.open("rb") as lines:
            for line in lines:
                batch = batch_from_line(line)
                if batch.seq > after:
                    yield batch


class Archive:
    """History and snapshots below one folder."""

    def __init__(self, folder: Path) -> None:
        self._history = folder / "history"
        self._snapshots = folder / "snapshots"

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keeps other writers out. Raises BlockingIOError when there is one."""
        self._history.mkdir(parents=True, exist_ok=True)
        self._snapshots.mkdir(parents=True, exist_ok=True)
        with (self._history / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def segments(self) -> list[Segment]:
        """Returns the history's files in order."""
        found: list[Segment] = []
        for path in self._history.glob("*.jsonl"):
            first, _, last = path.stem.partition("-")
            found.append(Segment(int(first), int(last), path))
        return sorted(found)

    def last_seq(self) -> int:
        """Returns the last batch in the history, 0 for none."""
        return max((s.last for s in self.segments()), default=0)

    def add_history(self, batches: Sequence[Batch]) -> None:
        """Writes ``batches`` as one file; nothing for none."""
        if not batches:
            return
        name = f"{batches[0].seq:0{_DIGITS}}-{batches[-1].seq:0{_DIGITS}}.jsonl"
        _write(self._history / name, b"".join(batch_to_line(b) for b in batches))

    def snapshot_seqs(self) -> list[int]:
        """Returns the snapshots that are kept, oldest first."""
        return sorted(int(path.name.partition(".")[0]) for path in self._snapshots.glob("*.json.gz"))

    def snapshot_data(self, seq: int) -> bytes:
        """Raises NotFoundError."""
        try:
            return self._snapshot_path(seq).read_bytes()
        except FileNotFoundError as e:
            raise NotFoundError(f"there is no snapshot of {seq} in {self._snapshots}") from e

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Writes the snapshot and drops all but the newest few and the one that the history begins after."""
        _write(self._snapshot_path(snapshot.seq), snapshot.data)
        base = self.base_seq()
        for seq in self.snapshot_seqs()[:-KEEP_SNAPSHOTS]:
            if seq != base:
                self._snapshot_path(seq).unlink(missing_ok=True)

    def base_seq(self) -> int:
        """Returns the batch before the history's first: folding begins from its snapshot, or from nothing at 0."""
        segments = self.segments()
        return segments[0].first - 1 if segments else 0

    def surplus(self, *, wall_ms: int) -> list[Segment]:
        """Returns the oldest segments beyond KEEP_MS or KEEP_BYTES, never the newest one."""
        segments = self.segments()
        sizes = [s.path.stat() for s in segments]
        total = sum(size.st_size for size in sizes)
        surplus: list[Segment] = []
        for segment, size in zip(segments[:-1], sizes, strict=False):
            if total <= KEEP_BYTES and size.st_mtime_ns // 1_000_000 > wall_ms - KEEP_MS:
                break
            surplus.append(segment)
            total -= size.st_size
        return surplus

    def drop(self, surplus: Sequence[Segment], base: Snapshot) -> None:
        """Removes ``surplus``, after ``base`` stands for all of it."""
        _write(self._snapshot_path(base.seq), base.data)
        for segment in surplus:
            segment.path.unlink()

    def _snapshot_path(self, seq: int) -> Path:
        return self._snapshots / f"{seq:0{_DIGITS}}.json.gz"


def _write(path: Path, data: bytes) -> None:
    """Makes the file durable under its name, whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    with draft.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
