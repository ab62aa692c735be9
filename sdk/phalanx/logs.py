"""A call's output, from the agents that hold it and from stored segments: as chunks of bytes, or line by line.

What has been read of each gang's output is kept, so that it can be read now and then live, each byte once; and counted,
so that the end records can be held against it.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from phalanx.client import Client, is_terminal
from phalanx.core.errors import ConnectionFailedError, NotFoundError, PhalanxError
from phalanx.core.frames import Decoder, Frame, Kind, encode_head
from phalanx.core.ids import id_raw, new_raw_id
from phalanx.core.logrecords import END, MARK, STDOUT, LogEnd, LogMark, LogRecord, decode, parse_end, parse_mark
from phalanx.core.states import CallState
from phalanx.core.views import CallView, LogSource
from phalanx.log_lines import Chunk, Lines, LogLine, Tally
from phalanx.streams import open_stream
from phalanx.workers import workers

__all__ = ["CallLogs", "Chunk", "LogLine", "Tally", "read_logs"]

_WAITING = (CallState.ACCEPTED, CallState.QUEUED)
_AGAIN_S = (0.2, 10.0)
"""The first pause before a reading that broke off goes on, and the longest."""
_AHEAD = 1024
"""Chunks that are read ahead of a slow consumer; then the agents wait, and it costs nobody memory."""


@dataclass(slots=True)
class _Place:
    """How far one gang's output on one node was read: in its spool, and in data bytes and end records of the call."""

    offset: int = 0
    received: int = 0
    ends: int = 0
    attempt: int = 1


@dataclass(slots=True)
class CallLogs:
    """The output of one call. `now`, `live`, or one after the other; ``tally`` says what arrived so far."""

    client: Client
    call_id: str
    passing: bool = False
    tally: Tally = field(default_factory=Tally)
    _fence: int = -1
    _places: dict[tuple[str, str], _Place] = field(default_factory=dict[tuple[str, str], _Place])
    _lines: Lines = field(init=False)

    def __post_init__(self) -> None:
        self._lines = Lines(passing=self.passing)

    def now(self, *, more: bool = False) -> Iterator[LogLine]:
        """Yields what is there, in order of time; an unfinished line too, unless ``more`` is read afterwards."""
        for chunk in self.chunks_now():
            yield from self._lines.take(chunk)
        if not more:
            yield from self._lines.rest()

    def live(self) -> Iterator[LogLine]:
        """Yields what comes until the call has ended."""
        for chunk in self.chunks_live():
            yield from self._lines.take(chunk)
        yield from self._lines.rest()

    def chunks_now(self) -> Iterator[Chunk]:
        """Yields all that is there as bytes. One segment of each gang is held at a time."""
        view = self.client.get_call(self.call_id)
        readers = self._readers(view.gang_id, follow=False)
        for chunk in heapq.merge(*readers, key=lambda chunk: chunk.at_ms):
            yield from self._seen(chunk)

    def chunks_live(self) -> Iterator[Chunk]:
        """Yields bytes of one attempt after the other, each from all of its sources at once, until the call ended.

        Where a reading breaks off, as while an agent restarts, it goes on at the same place.
        """
        broke_off, pause_s = False, _AGAIN_S[0]
        while True:
            view = self._next_attempt(again=broke_off)
            if view.fence > self._fence or broke_off:
                self._fence, received = view.fence, self.tally.received
                for chunk in _at_once(self._readers(view.gang_id, follow=True)):
                    too_early = chunk.last and not chunk.ends and not is_terminal(view)
                    yield from self._seen(replace(chunk, end=None, last=False) if too_early else chunk)
                broke_off = self.tally.ended < self.tally.sources
                pause_s = _AGAIN_S[0] if self.tally.received > received else min(_AGAIN_S[1], 2 * pause_s)
            if is_terminal(view):
                return
            if broke_off:
                threading.Event().wait(pause_s)

    def _next_attempt(self, *, again: bool) -> CallView:
        """Returns the call when it is at a gang, or over; ``again``: also at the same gang. A later attempt is waited
        for until it runs: from then on its agent does not take it for the one before.
        """
        view = self.client.get_call(self.call_id)
        for view in self.client.watch(self.call_id):
            if is_terminal(view):
                break
            begun = self._fence < 0 or view.state != CallState.ASSIGNED
            if view.state not in _WAITING and (begun if view.fence > self._fence else again):
                break
        return view

    def _readers(self, gang_id: str, *, follow: bool) -> list[Iterator[Chunk]]:
        """Returns one iterator for each gang and node that has some of the output."""
        sources = self.client.log_sources(self.call_id)
        readers = [self._from_node(each, gang_id, follow=follow) for each in sources if not each.blob]
        stored = _stored(sources).items()
        readers += [self._from_store(*key, blobs, self._place(*key).received) for key, blobs in stored]
        self.tally.sources, self.tally.ended = len(readers), 0
        return readers

    def _seen(self, chunk: Chunk) -> Iterator[Chunk]:
        place = self._place(chunk.node_id, chunk.gang_id)
        place.offset = chunk.offset or place.offset
        place.received += len(chunk.data)
        place.ends += chunk.ends
        place.attempt = chunk.attempt
        self.tally.see(chunk)
        if chunk.data or chunk.missing or chunk.note:
            yield chunk

    def _place(self, node_id: str, gang_id: str) -> _Place:
        return self._places.setdefault((node_id, gang_id), _Place())

    # ---- stored segments ----

    def _from_store(self, node_id: str, gang_id: str, blobs: list[str], told: int) -> Iterator[Chunk]:
        """What its agent told of the same gang before, ``told`` bytes, is left out."""
        bytes_left, ends_left, attempt, ended = told, self._place(node_id, gang_id).ends, 1, False
        for record in self._records(blobs):
            chunk = _chunk(record, node_id, gang_id, attempt)
            attempt, ended = chunk.attempt, record.stream == END
            if record.stream == END and ends_left:
                ends_left -= 1
                continue
            known = min(bytes_left, len(chunk.data))
            bytes_left -= known
            if known < len(chunk.data):
                yield _behind(chunk, known)
            elif not bytes_left and not chunk.data:
                yield chunk
        yield Chunk(node_id=node_id, gang_id=gang_id, attempt=attempt, last=ended)

    def _records(self, blobs: list[str]) -> Iterator[LogRecord]:
        raw = id_raw(self.call_id)
        for blob in blobs:
            try:
                data = self.client.get_blob(blob)
            except NotFoundError:
                continue
            yield from (record for record, _ in decode(data) if record.call == raw)

    # ---- agents ----

    def _from_node(self, source: LogSource, gang_id: str, *, follow: bool) -> Iterator[Chunk]:
        """Its agent tells it, and what has just become a stored output, while this was on its way, comes from there."""
        told, ended = self._place(source.node_id, gang_id).received, False
        for chunk in self._from_agent(source, gang_id, follow=follow):
            told, ended = told + len(chunk.data), chunk.end is not None
            yield chunk
        blobs = [] if ended else _stored(self.client.log_sources(self.call_id)).get((source.node_id, gang_id), [])
        if blobs:
            yield from self._from_store(source.node_id, gang_id, blobs, told)

    def _from_agent(self, source: LogSource, gang_id: str, *, follow: bool) -> Iterator[Chunk]:
        """Ends where the agent is gone, or the gang's spool is. Else the last chunk, without bytes, says what was
        written.
        """
        try:
            stream = open_stream(
                unix_path=source.unix_path, data_address=source.data_address, fingerprint=source.fingerprint
            )
        except ConnectionFailedError:
            return
        place = self._place(source.node_id, gang_id)
        meta = {"ticket": source.ticket, "call": self.call_id, "offset": place.offset, "follow": follow}
        decoder = Decoder()
        attempt = place.attempt
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
                    chunk = _chunk_of(frame, source.node_id, gang_id, attempt)
                    attempt = chunk.attempt
                    yield chunk
                    if frame.kind is Kind.END:
                        return
        except (OSError, ValueError):
            return
        finally:
            stream.close()


def read_logs(client: Client, call_id: str, *, follow: bool) -> Iterator[LogLine]:
    """Yields what the call wrote: all that is there now in order of time, or live until the call has ended."""
    logs = CallLogs(client, call_id)
    return logs.live() if follow else logs.now()


def _at_once(readers: list[Iterator[Chunk]]) -> Iterator[Chunk]:
    merged: queue.Queue[Chunk | None] = queue.Queue(_AHEAD)
    left_alone = threading.Event()
    for reader in readers:
        workers().run(_reading(reader, merged, left_alone))
    left = len(readers)
    try:
        while left:
            chunk = merged.get()
            if chunk is None:
                left -= 1
            else:
                yield chunk
    finally:
        left_alone.set()
        with contextlib.suppress(queue.Empty):
            while True:
                merged.get_nowait()


def _reading(
    reader: Iterator[Chunk], merged: queue.Queue[Chunk | None], left_alone: threading.Event
) -> Callable[[], None]:
    def read() -> None:
        try:
            for chunk in reader:
                if left_alone.is_set():
                    return
                merged.put(chunk)
        except PhalanxError:
            pass
        merged.put(None)

    return read


def _stored(sources: Iterable[LogSource]) -> dict[tuple[str, str], list[str]]:
    """Returns the names of stored segments, by node and gang."""
    stored: dict[tuple[str, str], list[str]] = {}
    for source in sources:
        if source.blob:
            stored.setdefault((source.node_id, _gang_of(source.blob)), []).append(source.blob)
    return stored


def _gang_of(blob: str) -> str:
    return blob.rpartition("/")[2].partition(".")[0]


def _chunk(record: LogRecord, node_id: str, gang_id: str, attempt: int) -> Chunk:
    mark = parse_mark(record.data) if record.stream == MARK else LogMark()
    end = parse_end(record) if record.stream == END else None
    return Chunk(
        rank=record.rank,
        node_id=node_id,
        gang_id=gang_id,
        stream=mark.stream if record.stream == MARK else record.stream,
        at_ms=record.wall_ms,
        data=b"" if record.stream in (END, MARK) else record.data,
        attempt=mark.attempt or attempt,
        missing=mark.gap,
        note=mark.note,
        end=end,
        ends=end is not None,
    )


def _chunk_of(frame: Frame, node_id: str, gang_id: str, attempt: int) -> Chunk:
    """Reads an agent's LOG or END."""
    meta, stream = frame.meta, int(frame.meta.get("stream", STDOUT))
    mark = parse_mark(frame.body) if stream == MARK else LogMark()
    end = None
    if frame.kind is Kind.END:
        by_rank = {int(rank): int(count) for rank, count in meta.get("bytes_by_rank", {}).items()}
        end = LogEnd(by_rank, bool(meta.get("complete")))
    return Chunk(
        rank=int(meta.get("rank", 0)),
        node_id=str(meta.get("node", node_id)),
        gang_id=gang_id,
        stream=mark.stream if stream == MARK else stream,
        at_ms=int(meta.get("at_ms", 0)),
        data=b"" if stream == MARK or end is not None else bytes(frame.body),
        attempt=mark.attempt or attempt,
        offset=int(meta.get("offset", 0)),
        missing=mark.gap,
        note=mark.note,
        end=end,
        ends=int(meta.get("ends", 0)),
        last=end is not None,
    )


def _behind(chunk: Chunk, known: int) -> Chunk:
    return replace(chunk, data=chunk.data[known:]) if known else chunk
