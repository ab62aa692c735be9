"""Ranks' output: from pipes to the spool file, as bytes. Ranks never wait for the disk's space or for a reader.

A full disk or a spool above its limit drops output. A gap record with the number of bytes takes its place as soon as
there is room again, and the call's end record, which waits for room too, says that the output is not complete.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.frames import NO_ID
from phalanx.core.logrecords import LogEnd, LogMark, LogRecord, encode, encode_end, encode_mark

READ_BYTES = 64 * 1024
READS_PER_TURN = 8
LAST_BYTES = 4096
TAIL_BYTES = 64 * 1024
SPOOL_LIMIT_BYTES = 4 << 30
_OWED_RECORDS = 4096
"""Gap and end records that wait for room on a full disk; older ones are forgotten."""


class Tail:
    """The end of what one rank wrote, in the pieces in which it came: ``TAIL_BYTES``, where it wrote so much."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._pieces.append(data[-TAIL_BYTES:])
        self._size += len(self._pieces[-1])
        while self._size - len(self._pieces[0]) >= TAIL_BYTES:
            self._size -= len(self._pieces.popleft())

    def end(self, limit_bytes: int) -> bytes:
        return b"".join(self._pieces)[-limit_bytes:]


class Spool:
    """Appends records to one file; output beyond ``limit_bytes`` is dropped, gap and end records are not."""

    def __init__(self, path: Path, clock: Clock, *, limit_bytes: int = SPOOL_LIMIT_BYTES) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._size = os.fstat(self._fd).st_size
        self._call = NO_ID
        self._attempt = 1
        self._bytes_by_rank: dict[int, int] = {}
        self._complete = True
        self._gaps: dict[tuple[int, int], int] = {}
        """Bytes of the present call, by rank and stream, that were dropped and are not told yet."""
        self._owed: deque[bytes] = deque(maxlen=_OWED_RECORDS)
        self._tails: dict[int, Tail] = {}

    def begin(self, call: bytes, attempt: int = 1) -> None:
        """From now on output belongs to ``call``."""
        if self._gaps:
            self._owe_gaps()
        self._call = call
        self._attempt = attempt
        self._bytes_by_rank = {}
        self._complete = True
        if call != NO_ID:
            self._tails.clear()  # what others wrote before is none of its last lines

    def end(self, *, complete: bool = True) -> None:
        """Writes the running call's end record, behind a record of what was dropped."""
        if self._call == NO_ID:
            return
        self._owe_gaps()
        end = LogEnd(self._bytes_by_rank, complete and self._complete)
        self._owed.append(encode_end(end, call=self._call, wall_ms=self._clock.wall_ms()))
        self._pay()
        self.begin(NO_ID)

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Appends one piece of output, or counts it as dropped."""
        if self._attempt > 1 and not self._bytes_by_rank:
            self._owe(LogMark(attempt=self._attempt), rank)
        self._bytes_by_rank[rank] = self._bytes_by_rank.get(rank, 0) + len(data)
        self._tails.setdefault(rank, Tail()).add(data)
        fits = self._size + len(data) <= self._limit_bytes
        if not fits or not self._settled() or not self._append(self._record(rank, stream, data)):
            self._gaps[rank, stream] = self._gaps.get((rank, stream), 0) + len(data)
            self._complete = False

    def last_lines(self, rank: int, *, limit_bytes: int = LAST_BYTES) -> str:
        """Returns the end of what ``rank`` wrote, as text, of ``TAIL_BYTES`` at most."""
        return self._tails.get(rank, Tail()).end(limit_bytes).decode("utf-8", "replace")

    @property
    def written(self) -> int:
        """Bytes that the present call has written."""
        return sum(self._bytes_by_rank.values())

    def note(self, rank: int, text: str) -> None:
        """Puts a line of the platform's own among what ``rank`` wrote; it counts as nobody's output."""
        self._owe(LogMark(note=text), rank)
        self._pay()

    def close(self) -> None:
        self._owe_gaps()
        self._pay()
        os.close(self._fd)

    def _record(self, rank: int, stream: int, data: bytes) -> bytes:
        return encode(LogRecord(stream, rank, self._clock.wall_ms(), self._call, data))

    def _settled(self) -> bool:
        """Says whether output may follow: what is missing before it has been told."""
        if not self._gaps and not self._owed:
            return True
        if not self._pay():
            return False
        self._owe_gaps()
        return self._pay()

    def _owe_gaps(self) -> None:
        for (rank, stream), count in self._gaps.items():
            self._owe(LogMark(gap=count, stream=stream), rank)
        self._gaps.clear()

    def _owe(self, mark: LogMark, rank: int) -> None:
        self._owed.append(encode_mark(mark, rank=rank, call=self._call, wall_ms=self._clock.wall_ms()))

    def _pay(self) -> bool:
        """Writes what is owed; False where there is no room for it."""
        while self._owed:
            if not self._append(self._owed[0]):
                return False
            self._owed.popleft()
        return True

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

    def __init__(self, fd: int, *, rank: int, stream: int, boundary: bytes = b"") -> None:
        """``boundary``: what the rank writes before a call that it begins by itself; no output has these bytes."""
        os.set_blocking(fd, False)
        self.fd = fd
        self.rank = rank
        self.stream = stream
        self._boundary = boundary
        self._early = b""
        """Output of a call that has not begun here, behind a boundary."""
        self._boundaries = 0
        """So many have been read, less those that were passed."""

    def drain(self, spool: Spool, *, reads: int = READS_PER_TURN) -> bool:
        """Moves what is there into the spool, at most ``reads`` pieces, as far as it belongs to the present call.
        Returns False at the end of the stream.
        """
        for _ in range(reads):
            if self._boundaries > 0:
                return True
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._take(spool, self._with_rest(data) if len(data) == READ_BYTES else data)
            if len(data) < READ_BYTES // 2:
                return True
        return True

    def passes_boundary(self, spool: Spool) -> None:
        """A call that the rank begins by itself is the present one from now on."""
        self._boundaries -= 1
        early, self._early = self._early, b""
        if early:
            self._take(spool, early)

    def passes_all(self, spool: Spool) -> None:
        """Nothing begins any more: what is read from now on belongs to the present call."""
        self._boundaries = -1 << 30
        self.passes_boundary(spool)

    def _take(self, spool: Spool, data: bytes) -> None:
        while data and self._boundaries <= 0:
            own, boundary, data = data.partition(self._boundary) if self._boundary else (data, b"", b"")
            self._boundaries += bool(boundary)
            if own:
                spool.write(self.rank, self.stream, own)
        self._early = data

    def _with_rest(self, data: bytes) -> bytes:
        """Returns ``data`` with the rest of a boundary that a full read may have cut: written at once, it is there."""
        while missing := _missing(self._boundary, data):
            try:
                more = os.read(self.fd, missing)
            except BlockingIOError:
                return data
            if not more:
                return data
            data += more
        return data


def _missing(boundary: bytes, data: bytes) -> int:
    """Returns how many bytes are missing to a boundary that ``data`` ends with the beginning of; 0: it does not."""
    begun = (size for size in range(len(boundary) - 1, 0, -1) if data.endswith(boundary[:size]))
    return next((len(boundary) - size for size in begun), 0)
