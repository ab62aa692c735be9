"""Ranks' output: from pipes to the spool file, as bytes. Ranks never wait for the disk's space or for a reader.

A full disk or a spool above its limit drops output; a notice with the number of bytes takes its place once there is
room, and the call's end record says that it is not complete.
"""

from __future__ import annotations

import os
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.frames import NO_ID
from phalanx.core.logrecords import STDERR, LogEnd, LogRecord, encode, encode_end

READ_BYTES = 64 * 1024
READS_PER_TURN = 8
LAST_BYTES = 4096
SPOOL_LIMIT_BYTES = 4 << 30


class Spool:
    """Appends records to one file; output beyond ``limit_bytes`` is dropped, notices and end records are not."""

    def __init__(self, path: Path, clock: Clock, *, limit_bytes: int = SPOOL_LIMIT_BYTES) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._size = os.fstat(self._fd).st_size
        self._call = NO_ID
        self._bytes_by_rank: dict[int, int] = {}
        self._complete = True
        self._dropped: dict[int, int] = {}
        self._last: dict[int, bytes] = {}

    def begin(self, call: bytes) -> None:
        """From now on output belongs to ``call``."""
        self._call = call
        self._bytes_by_rank = {}
        self._complete = True

    def end(self, *, complete: bool = True) -> None:
        """Writes the running call's end record, after a notice of what was dropped."""
        if self._call == NO_ID:
            return
        self._tell_dropped()
        end = LogEnd(self._bytes_by_rank, complete and self._complete)
        self._append(encode_end(end, call=self._call, wall_ms=self._clock.wall_ms()))
        self.begin(NO_ID)

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Appends one piece of output, or counts it as dropped."""
        self._bytes_by_rank[rank] = self._bytes_by_rank.get(rank, 0) + len(data)
        self._last[rank] = (self._last.get(rank, b"") + data)[-LAST_BYTES:]
        fits = self._size + len(data) <= self._limit_bytes
        if fits and self._dropped:
            self._tell_dropped()
        if not fits or not self._append(encode(LogRecord(stream, rank, self._clock.wall_ms(), self._call, data))):
            self._dropped[rank] = self._dropped.get(rank, 0) + len(data)
            self._complete = False

    def last_lines(self, rank: int) -> str:
        """Returns the end of what ``rank`` wrote, as text."""
        return self._last.get(rank, b"").decode("utf-8", "replace")

    def close(self) -> None:
        self._tell_dropped()
        os.close(self._fd)

    def _tell_dropped(self) -> None:
        for rank, count in list(self._dropped.items()):
            text = f"\n[phalanx] {count} bytes of output were dropped: the node's disk or the log limit is full\n"
            record = LogRecord(STDERR, rank, self._clock.wall_ms(), self._call, text.encode())
            if self._append(encode(record)):
                del self._dropped[rank]

    def _append(self, record: bytes) -> bool:
        """Writes the whole record or nothing."""
        try:
            written = os.write(self._fd, record)
        except OSError:
            return False
        if written < len(record):
            os.ftruncate(self._fd, self._size)
            return False
        self._size += written
        return True


class OutputPipe:
    """The reading end of one rank's stdout or stderr."""

    def __init__(self, fd: int, *, rank: int, stream: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.rank = rank
        self.stream = stream

    def drain(self, spool: Spool, *, reads: int = READS_PER_TURN) -> bool:
        """Moves what is there into the spool, at most ``reads`` pieces. Returns False at the end of the stream."""
        for _ in range(reads):
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            spool.write(self.rank, self.stream, data)
            if len(data) < READ_BYTES // 2:
                return True
        return True
