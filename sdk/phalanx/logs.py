"""A call's output, line by line, from the agents that hold it and from stored segments."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phalanx.client import Client, is_terminal
from phalanx.core.errors import ConnectionFailedError, NotFoundError, PhalanxError
from phalanx.core.frames import Decoder, Frame, Kind, encode_head
from phalanx.core.ids import id_raw, new_raw_id
from phalanx.core.logrecords import STDERR, STDOUT, LogRecord, decode
from phalanx.core.views import LogSource
from phalanx.streams import open_stream
from phalanx.workers import workers

MAX_LINE_CHARS = 64 * 1024
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
    """Bytes as one rank wrote them, whole lines or not."""

    rank: int
    node_id: str
    stream: int
    at_ms: int
    data: bytes


def read_logs(client: Client, call_id: str, *, follow: bool) -> Iterator[LogLine]:
    """Yields what the call wrote: all that is there now in order of time, or live until the call has ended."""
    if follow:
        yield from _lines(_live(client, call_id))
        return
    chunks = [c for source in client.log_sources(call_id) for c in chunks_of(client, call_id, source, follow=False)]
    yield from _lines(iter(sorted(chunks, key=lambda c: c.at_ms)))


def chunks_of(client: Client, call_id: str, source: LogSource, *, follow: bool) -> Iterator[Chunk]:
    """Yields one source's output. A source that is gone meanwhile yields nothing."""
    if not source.blob:
        yield from _from_agent(call_id, source, follow=follow)
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
    """All sources at once; a call that has no gang yet is waited for."""
    sources = _wait_for_sources(client, call_id)
    merged: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
    for source in sources:
        workers().run(_reader(client, call_id, source, merged))
    left = len(sources)
    while left:
        chunk = merged.get()
        if chunk is None:
            left -= 1
        else:
            yield chunk


def _wait_for_sources(client: Client, call_id: str) -> tuple[LogSource, ...]:
    for view in client.watch(call_id):
        if view.gang_id or is_terminal(view):
            sources = client.log_sources(call_id)
            if sources or is_terminal(view):
                return sources
    return client.log_sources(call_id)


def _reader(
    client: Client, call_id: str, source: LogSource, merged: queue.SimpleQueue[Chunk | None]
) -> Callable[[], None]:
    def read() -> None:
        try:
            for chunk in chunks_of(client, call_id, source, follow=True):
                merged.put(chunk)
        except PhalanxError:
            pass
        merged.put(None)

    return read


def _from_agent(call_id: str, source: LogSource, *, follow: bool) -> Iterator[Chunk]:
    try:
        stream = open_stream(
            unix_path=source.unix_path, data_address=source.data_address, fingerprint=source.fingerprint
        )
    except ConnectionFailedError:
        return
    meta = {"ticket": source.ticket, "call": call_id, "offset": 0, "follow": follow}
    decoder = Decoder()
    try:
        stream.send([encode_head(Frame(Kind.FOLLOW, new_raw_id(), meta))])
        while True:
            data, _ = stream.receive()
            if not data:
                return
            decoder.feed(data)
            for frame in decoder.frames():
                if frame.kind is not Kind.LOG:
                    return
                yield Chunk(
                    rank=int(frame.meta.get("rank", 0)),
                    node_id=str(frame.meta.get("node", source.node_id)),
                    stream=int(frame.meta.get("stream", STDOUT)),
                    at_ms=int(frame.meta.get("at_ms", 0)),
                    data=bytes(frame.body),
                )
    except (OSError, ValueError):
        return
    finally:
        stream.close()


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
