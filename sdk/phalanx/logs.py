"""A call's output, line by line, from the agents that hold it and from stored segments."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from phalanx.client import Client, is_terminal
from phalanx.core.errors import ConnectionFailedError, NotFoundError, PhalanxError
from phalanx.core.frames import Decoder, Frame, Kind, encode_head
from phalanx.core.ids import id_raw, new_raw_id
from phalanx.core.logrecords import STDERR, STDOUT, LogRecord, decode
from phalanx.core.states import CallState
from phalanx.core.views import CallView, LogSource
from phalanx.streams import open_stream
from phalanx.workers import workers

MAX_LINE_CHARS = 64 * 1024
_WAITING = (CallState.ACCEPTED, CallState.QUEUED)
_STREAM_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line without its end. ``at_ms`` is the node's wall clock when its first byte was written."""

    rank: int
    node_id: str
    stream: str
    at_ms: int
    text: str

    def __str__(self) -> str:
        return f"[{self.rank}] {self.text}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes as one rank wrote them, whole lines or not. ``offset``: where an agent's spool goes on behind them."""

    rank: int
    node_id: str
    stream: int
    at_ms: int
    data: bytes
    offset: int = 0


@dataclass(slots=True)
class _Seen:
    """What of a call's output was read: up to which attempt's fence, and how far in each (node, gang)'s spool."""

    fence: int = -1
    read_to: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def has(self, source: LogSource) -> bool:
        """Says whether a stored segment was read while its gang lived: its name says where in the spool it begins."""
        gang_id, _, start = source.blob.rpartition("/")[2].partition(".")
        return bool(start) and int(start) < self.read_to.get((source.node_id, gang_id), 0)


def read_logs(client: Client, call_id: str, *, follow: bool) -> Iterator[LogLine]:
    """Yields what the call wrote: all that is there now in order of time, or live until the call has ended."""
    if follow:
        yield from _lines(_live(client, call_id))
        return
    chunks = [c for source in client.log_sources(call_id) for c in chunks_of(client, call_id, source, follow=False)]
    yield from _lines(iter(sorted(chunks, key=lambda c: c.at_ms)))


def chunks_of(client: Client, call_id: str, source: LogSource, *, follow: bool, offset: int = 0) -> Iterator[Chunk]:
    """Yields one source's output, an agent's from ``offset`` in its spool on. A source that is gone yields nothing."""
    if not source.blob:
        yield from _from_agent(call_id, source, follow=follow, offset=offset)
        return
    try:
        data = client.get_blob(source.blob)
    except NotFoundError:
        return
    raw = id_raw(call_id)
    for record, _ in decode(data):
        if record.call == raw and record.stream in _STREAM_NAMES:
            yield _chunk(record, source.node_id)


def _live(client: Client, call_id: str) -> Iterator[Chunk]:
    """One attempt after the other, each from all of its sources at once, until the call has ended."""
    seen = _Seen()
    while True:
        view = _next_attempt(client, call_id, seen)
        if view.fence > seen.fence:
            seen.fence = view.fence
            yield from _attempt(client, call_id, view.gang_id, seen)
        if is_terminal(view):
            return


def _next_attempt(client: Client, call_id: str, seen: _Seen) -> CallView:
    """Returns the call when it is at a gang, or over. A later attempt is waited for until it runs: from then on its
    agent does not take it for the one before.
    """
    view = client.get_call(call_id)
    for view in client.watch(call_id):
        new = view.fence > seen.fence and view.state not in _WAITING
        if is_terminal(view) or (new and (seen.fence < 0 or view.state != CallState.ASSIGNED)):
            break
    return view


def _attempt(client: Client, call_id: str, gang_id: str, seen: _Seen) -> Iterator[Chunk]:
    sources = [each for each in client.log_sources(call_id) if not seen.has(each)]
    merged: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
    for source in sources:
        offset = seen.read_to.get((source.node_id, gang_id), 0)
        workers().run(_reader(client, call_id, source, offset, merged))
    left = len(sources)
    while left:
        chunk = merged.get()
        if chunk is None:
            left -= 1
            continue
        if chunk.offset:
            seen.read_to[chunk.node_id, gang_id] = chunk.offset
        if chunk.data:
            yield chunk


def _reader(
    client: Client, call_id: str, source: LogSource, offset: int, merged: queue.SimpleQueue[Chunk | None]
) -> Callable[[], None]:
    def read() -> None:
        try:
            for chunk in chunks_of(client, call_id, source, follow=True, offset=offset):
                merged.put(chunk)
        except PhalanxError:
            pass
        merged.put(None)

    return read


def _from_agent(call_id: str, source: LogSource, *, follow: bool, offset: int) -> Iterator[Chunk]:
    """The last chunk holds no bytes: it says how far the spool was read."""
    try:
        stream = open_stream(
            unix_path=source.unix_path, data_address=source.data_address, fingerprint=source.fingerprint
        )
    except ConnectionFailedError:
        return
    meta = {"ticket": source.ticket, "call": call_id, "offset": offset, "follow": follow}
    decoder = Decoder()
    try:
        stream.send([encode_head(Frame(Kind.FOLLOW, new_raw_id(), meta))])
        while True:
            data, _ = stream.receive()
            if not data:
                return
            decoder.feed(data)
            for frame in decoder.frames():
                if frame.kind not in (Kind.LOG, Kind.END):
                    return
                yield _chunk_of(frame, source.node_id)
                if frame.kind is Kind.END:
                    return
    except (OSError, ValueError):
        return
    finally:
        stream.close()


def _chunk_of(frame: Frame, node_id: str) -> Chunk:
    return Chunk(
        rank=int(frame.meta.get("rank", 0)),
        node_id=str(frame.meta.get("node", node_id)),
        stream=int(frame.meta.get("stream", STDOUT)),
        at_ms=int(frame.meta.get("at_ms", 0)),
        data=bytes(frame.body),
        offset=int(frame.meta.get("offset", 0)),
    )


def _chunk(record: LogRecord, node_id: str) -> Chunk:
    return Chunk(record.rank, node_id, record.stream, record.wall_ms, record.data)


def _lines(chunks: Iterator[Chunk]) -> Iterator[LogLine]:
    """Joins pieces into lines per rank and stream; what has no line end comes last."""
    open_lines: dict[tuple[str, int, int], tuple[Chunk, bytearray]] = {}
    for chunk in chunks:
        key = (chunk.node_id, chunk.rank, chunk.stream)
        first, buffer = open_lines.pop(key, (chunk, bytearray()))
        buffer += chunk.data
        *whole, rest = buffer.split(b"\n")
        for text in whole:
            yield _line(first, text)
            first = chunk
        if len(rest) > MAX_LINE_CHARS:
            yield _line(first, rest)
        elif rest:
            open_lines[key] = (first, bytearray(rest))
    for first, buffer in open_lines.values():
        yield _line(first, buffer)


def _line(first: Chunk, text: bytes | bytearray) -> LogLine:
    shown = text.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]
    return LogLine(
        rank=first.rank,
        node_id=first.node_id,
        stream=_STREAM_NAMES.get(first.stream, "stdout"),
        at_ms=first.at_ms,
        text=shown,
    )
