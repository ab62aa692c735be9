"""Readers of a gang's output: records of one call, from a given place in the spool, live or up to its end.

Reads at most READ_BYTES per reader and round, and none while the reader has not taken what it was sent, so that a
slow terminal costs nothing but its own delay. The spool stays open until its reader has it all: a gang that ends in the
meantime removes its directory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from phalanx.core.frames import Frame, Kind
from phalanx.core.logrecords import END, MARK, LogEnd, LogRecord, RecordError, decode, parse_end

READ_BYTES = 1 << 20
EVERY_MS = 50
SETTLE_NS = 200_000_000
"""How long after a call's end its end record may still reach the spool."""
_SLOW_READER_BYTES = 4 << 20


class Reader(Protocol):
    """The connection that follows."""

    @property
    def open(self) -> bool: ...

    @property
    def queued_bytes(self) -> int: ...

    def send(self, frame: Frame) -> None: ...


@dataclass(slots=True)
class Follower:
    """``fd`` is the gang's spool, and closed at the end. ``ended_ns`` is when the call was first seen to be over."""

    reader: Reader
    request: bytes
    fd: int
    call: bytes
    node_id: str
    offset: int
    live: bool
    over: Callable[[], bool]
    bytes_by_rank: dict[int, int] = field(default_factory=dict[int, int])
    ends: list[LogEnd] = field(default_factory=list[LogEnd])
    """What the end records said, one for each attempt that this gang ran; ``at_end``: nothing came behind the last."""
    at_end: bool = False
    ended_ns: int = 0
    done: bool = False

    def step(self, now_ns: int) -> None:
        """Sends what is new; END when the call is over and everything was sent."""
        if self.done or not self.reader.open:
            self.close()
            return
        if self.reader.queued_bytes > _SLOW_READER_BYTES:
            return
        was_over = self._over_for(now_ns)
        try:
            read_all = self._send_new()
        except (OSError, RecordError):
            self.at_end, read_all, was_over = False, True, True
        if read_all and (was_over or self.at_end or not self.live):
            self._end()

    def _over_for(self, now_ns: int) -> bool:
        if not self.over():
            return False
        self.ended_ns = self.ended_ns or now_ns
        return now_ns - self.ended_ns > SETTLE_NS

    def _send_new(self) -> bool:
        """Returns whether that was all there is."""
        data = read_records(self.fd, self.offset)
        start = self.offset
        for record, end in decode(data):
            self.offset = start + end
            if record.call != self.call:
                continue
            self.at_end = record.stream == END
            if self.at_end:
                self.ends.append(parse_end(record))
            else:
                self._send(record)
        return len(data) < READ_BYTES

    def _send(self, record: LogRecord) -> None:
        if record.stream != MARK:
            self.bytes_by_rank[record.rank] = self.bytes_by_rank.get(record.rank, 0) + len(record.data)
        meta = {
            "rank": record.rank,
            "node": self.node_id,
            "stream": record.stream,
            "at_ms": record.wall_ms,
            "offset": self.offset,
        }
        self.reader.send(Frame(Kind.LOG, self.request, meta, record.data))

    def close(self) -> None:
        """Sends nothing more."""
        self.done = True
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _end(self) -> None:
        self.close()
        counts = Counter(self.bytes_by_rank)
        if self.at_end:
            counts = sum((Counter(end.bytes_by_rank) for end in self.ends), Counter[int]())
        by_rank = {str(rank): count for rank, count in sorted(counts.items())}
        complete = self.at_end and all(end.complete for end in self.ends)
        meta = {"bytes_by_rank": by_rank, "complete": complete, "ends": len(self.ends), "offset": self.offset}
        self.reader.send(Frame(Kind.END, self.request, meta))


def read_spool(path: Path, offset: int) -> bytes:
    """Returns what `read_records` does of the file at ``path``. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_records(fd, offset)
    finally:
        os.close(fd)


def read_records(fd: int, offset: int) -> bytes:
    """Returns up to READ_BYTES from ``offset``, more where a single record is longer. Raises OSError."""
    data = os.pread(fd, READ_BYTES, offset)
    if len(data) == READ_BYTES and next(decode(data), None) is None:
        data = os.pread(fd, READ_BYTES * 17, offset)
    return data
