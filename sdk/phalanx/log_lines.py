"""From pieces of output to lines: joined per rank and stream, progress bars as one line, long lines cut. Pure.

A carriage return begins the line anew, as it does on a terminal: of a progress bar its last state is the line. The
bytes themselves are not touched here; what is shown of them is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from phalanx.core.logrecords import STDERR, STDOUT, LogEnd

MAX_LINE_BYTES = 64 * 1024
"""What is longer is cut, and says by how much."""
STREAM_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line without its end. ``at_ms`` is the node's wall clock when its first byte was written.

    ``missing``: bytes that could not be kept, which the line stands for. ``passing``: the present state of a line that
    is not ended, which another one will replace.
    """

    rank: int
    node_id: str
    stream: str
    at_ms: int
    text: str
    attempt: int = 1
    missing: int = 0
    passing: bool = False

    def __str__(self) -> str:
        return f"[{self.rank}] {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Bytes as one rank wrote them, whole lines or not; or, without bytes, what the platform says at that place.

    ``offset``: where an agent's spool goes on behind it. ``end`` stands for ``ends`` end records.
    """

    rank: int = 0
    node_id: str = ""
    gang_id: str = ""
    stream: int = STDOUT
    at_ms: int = 0
    data: bytes = b""
    attempt: int = 1
    offset: int = 0
    missing: int = 0
    note: str = ""
    end: LogEnd | None = None
    ends: int = 0
    last: bool = False
    """Its source has said all, an end record included."""


@dataclass(slots=True)
class _Open:
    """A line that has not ended. ``anew``: a carriage return was the last byte, and what follows replaces the text."""

    first: Chunk
    text: bytearray = field(default_factory=bytearray)
    cut: int = 0
    anew: bool = False

    def add(self, part: bytes) -> None:
        before, returned, after = part.rpartition(b"\r")
        if not returned:
            self._append(part)
        elif after:
            self._begin(after)
        else:
            self._last_state(before.rstrip(b"\r"))
            self.anew = True

    def _last_state(self, before: bytes) -> None:
        _, returned, state = before.rpartition(b"\r")
        if returned:
            self._begin(state)
        elif before:
            self._append(before)

    def _begin(self, text: bytes) -> None:
        self.anew = True
        self._append(text)

    def _append(self, text: bytes) -> None:
        if self.anew and text:
            self.text.clear()
            self.cut, self.anew = 0, False
        room = MAX_LINE_BYTES - len(self.text)
        self.text += text[:room]
        self.cut += max(0, len(text) - room)

    def line(self, *, passing: bool = False) -> LogLine:
        text = self.text.decode("utf-8", errors="replace")
        if self.cut:
            text += f" … [phalanx: {self.cut:,} more bytes of this line; `gpuctl logs --raw` has them]"
        return _line(self.first, text, passing=passing)


class Lines:
    """Joins the chunks of one call. ``passing`` asks for the states of lines that are not ended, too."""

    def __init__(self, *, passing: bool = False) -> None:
        self._passing = passing
        self._open: dict[tuple[str, int, int], _Open] = {}

    def take(self, chunk: Chunk) -> Iterator[LogLine]:
        """Yields the lines that ``chunk`` ends."""
        key = (chunk.node_id, chunk.rank, chunk.stream)
        if chunk.missing:
            yield from self._cut_off(key)
            yield _gap(chunk)
        if chunk.note:
            yield _line(chunk, f"[phalanx] {chunk.note}")
        at = self._open.pop(key, None)
        if at is not None and at.first.attempt != chunk.attempt:
            yield at.line()
            at = None
        *whole, rest = chunk.data.split(b"\n")
        for part in whole:
            line = at or _Open(chunk)
            line.add(part)
            yield line.line()
            at = None
        if rest or at is not None:
            at = self._open[key] = at or _Open(chunk)
            at.add(rest)
            if self._passing and at.anew | (b"\r" in rest):
                yield at.line(passing=True)

    def rest(self) -> Iterator[LogLine]:
        """Yields what has no line end: nothing more comes."""
        for line in self._open.values():
            yield line.line()
        self._open.clear()

    def _cut_off(self, key: tuple[str, int, int]) -> Iterator[LogLine]:
        line = self._open.pop(key, None)
        if line is not None:
            yield line.line()


def _gap(chunk: Chunk) -> LogLine:
    words = f"[phalanx] {chunk.missing:,} bytes are missing here: the node's disk or the log limit was full"
    return _line(chunk, words, missing=chunk.missing)


def _line(first: Chunk, text: str, *, missing: int = 0, passing: bool = False) -> LogLine:
    return LogLine(
        rank=first.rank,
        node_id=first.node_id,
        stream=STREAM_NAMES.get(first.stream, "stdout"),
        at_ms=first.at_ms,
        text=text,
        attempt=first.attempt,
        missing=missing,
        passing=passing,
    )


@dataclass(slots=True)
class Tally:
    """What was read of a call's output, against what the end records say. Bytes."""

    received: int = 0
    written: int = 0
    dropped: int = 0
    """Told by gap records."""
    sources: int = 0
    ended: int = 0
    """Sources, and those of them that told an end."""
    cut_off: bool = False
    """Ranks were ended while they could still write."""

    def see(self, chunk: Chunk) -> None:
        self.received += len(chunk.data)
        self.dropped += chunk.missing
        if chunk.end is not None:
            self.written += sum(chunk.end.bytes_by_rank.values())
            self.cut_off |= not chunk.end.complete
        self.ended += chunk.last

    @property
    def missing(self) -> int:
        """Bytes that were written, as far as is known, and did not arrive."""
        return max(0, self.written - self.received, self.dropped)

    @property
    def complete(self) -> bool:
        return self.ended >= self.sources and not self.cut_off and not self.missing

    @property
    def words(self) -> str:
        """One line for people."""
        if self.missing:
            why = " (the node's disk or the log limit was full)" if self.dropped else ""
            return f"{self.missing:,} bytes are missing{why}"
        if self.ended < self.sources:
            return f"the end of the output is missing: a node is out of reach, or gone ({self.received:,} bytes)"
        if self.cut_off:
            return f"{self.received:,} bytes, up to where ranks were ended"
        return f"complete: {self.received:,} bytes"
