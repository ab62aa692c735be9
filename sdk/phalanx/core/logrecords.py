"""What ranks wrote, as records: the format of a gang's spool file and of stored log segments. Bytes only, no I/O.

A record is a fixed 31-byte header and the bytes as the rank wrote them, whole lines or not:

    u32 data bytes | u8 stream | u16 rank | u64 wall ms | 16 bytes call id (NO_ID outside calls) | data

``stream`` is 1 for stdout and 2 for stderr. The platform's own records hold a JSON object: 0 is an attempt's end,
``{"bytes_by_rank": {"0": 12, …}, "complete": true}``, with which a reader can tell that nothing is missing; 3 is a mark
among the output, ``{"attempt": 2}`` before the first output of an attempt after the first, ``{"gap": 4096, "stream":
1}`` where so many bytes of that rank could not be kept, or ``{"note": "…"}``, a line of the platform's own.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.core.frames import NO_ID

_HEADER = struct.Struct("!IBHQ16s")
HEADER_BYTES = _HEADER.size
END = 0
STDOUT = 1
STDERR = 2
MARK = 3
_SILENT_END = b'{"bytes_by_rank":{},"complete":true}'
"""Most short calls write nothing."""
MAX_DATA_BYTES = 1 << 24
"""A larger length means that the bytes are not records."""
LAST_LINES = 50
"""So many of what a rank wrote last stand in the report of a failed call."""


class RecordError(ValueError):
    """Bytes that are not records."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One piece of output. ``call`` is the raw id of the call that ran, or NO_ID."""

    stream: int
    rank: int
    wall_ms: int
    call: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Bytes that the call wrote, by rank; ``complete`` is False where a rank was killed while it could still write."""

    bytes_by_rank: dict[int, int]
    complete: bool


@dataclass(frozen=True, slots=True)
class LogMark:
    """Either the attempt that what follows belongs to, or bytes of one stream that are missing, or a note."""

    attempt: int = 0
    gap: int = 0
    stream: int = STDERR
    note: str = ""


def encode(record: LogRecord) -> bytes:
    """Returns the record as it stands in a spool. Raises struct.error where a number does not fit."""
    head = _HEADER.pack(len(record.data), record.stream, record.rank, record.wall_ms, record.call)
    return head + record.data


def encode_end(end: LogEnd, *, call: bytes, wall_ms: int) -> bytes:
    """Returns the end record of ``call``."""
    if end.complete and not end.bytes_by_rank:
        return _HEADER.pack(len(_SILENT_END), END, 0, wall_ms, call) + _SILENT_END
    value = {"bytes_by_rank": {str(k): v for k, v in sorted(end.bytes_by_rank.items())}, "complete": end.complete}
    data = json.dumps(value, separators=(",", ":")).encode()
    return encode(LogRecord(END, 0, wall_ms, call, data))


def parse_end(record: LogRecord) -> LogEnd:
    """Reads an end record. Raises RecordError on anything else."""
    try:
        value = json.loads(record.data)
        by_rank = {int(k): int(v) for k, v in value["bytes_by_rank"].items()}
        return LogEnd(by_rank, bool(value["complete"]))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise RecordError(f"not an end record: {e}") from e


def encode_mark(mark: LogMark, *, rank: int, call: bytes, wall_ms: int) -> bytes:
    """Returns the mark as a record."""
    value: dict[str, int | str] = {"attempt": mark.attempt}
    if mark.gap:
        value = {"gap": mark.gap, "stream": mark.stream}
    elif mark.note:
        value = {"note": mark.note}
    return encode(LogRecord(MARK, rank, wall_ms, call, json.dumps(value, separators=(",", ":")).encode()))


def parse_mark(data: bytes | bytearray | memoryview) -> LogMark:
    """Reads a mark's data. Raises RecordError on anything else."""
    try:
        value = json.loads(bytes(data))
        return LogMark(
            attempt=int(value.get("attempt", 0)),
            gap=int(value.get("gap", 0)),
            stream=int(value.get("stream", STDERR)),
            note=str(value.get("note", "")),
        )
    except (ValueError, TypeError, AttributeError) as e:
        raise RecordError(f"not a mark: {e}") from e


def decode(data: bytes | bytearray | memoryview, *, offset: int = 0) -> Iterator[tuple[LogRecord, int]]:
    """Yields each whole record from ``offset`` on, with the offset just behind it; a torn last record is left out.

    Raises RecordError where the bytes cannot be records.
    """
    view = memoryview(data)
    end = len(view)
    while end - offset >= HEADER_BYTES:
        size, stream, rank, wall_ms, call = _HEADER.unpack_from(view, offset)
        if size > MAX_DATA_BYTES or stream > MARK:
            raise RecordError(f"no record at byte {offset}: length {size}, stream {stream}")
        start = offset + HEADER_BYTES
        if start + size > end:
            return
        offset = start + size
        yield LogRecord(stream, rank, wall_ms, call, bytes(view[start:offset])), offset


def outside_calls(record: LogRecord) -> bool:
    """Says whether the rank wrote it while no call ran: while starting, between calls or while ending."""
    return record.call == NO_ID
