"""Getting ranks' output off the node: spool files are read as they grow and uploaded in segments, call by call.

A segment is spool records of one call, as `phalanx.core.logrecords` defines them, stored as
``logs/<call_id>/<node_id>/<gang_id>.<n>``; the last one ends with an attempt's end record. ``n`` is where its first
record stands in the spool, so that no attempt replaces another. Segments go out every 5 s, at 1 MiB, and when a
call ends. How far the upload has come stands beside the spool, so a restarted agent goes on from there and
repeats at most one segment, under the same name. While nothing can be uploaded nothing is read: the spool is the
buffer.
Output outside calls stays in the spool. Reports of failed calls are stored beside their output, as
``logs/<call_id>/<node_id>/<gang_id>.report``, before the gang's end is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from phalanx.core.clock import Clock
from phalanx.core.files import replace_file
from phalanx.core.ids import id_text
from phalanx.core.logrecords import END, LogRecord, RecordError, decode, encode, outside_calls, parse_end
from phalanx_agent import traces
from phalanx_agent.dataplane.follow import read_spool
from phalanx_agent.keeper.failure_report import SUFFIX

log = logging.getLogger(__name__)

SEGMENT_BYTES = 1 << 20
SEGMENT_MS = 5_000
STORE_ALL_BOUND_S = 5.0
FIRST_KNOWN = 20_000
"""Of so many calls it is kept where their output begins."""
_LOOK_EVERY_S = 0.5

Put = Callable[[str, bytes], Awaitable[None]]


@dataclass(slots=True)
class _Progress:
    """How far one gang's spool has been stored. ``open``: calls with a stored segment and no end yet."""

    offset: int = 0
    open: frozenset[str] = frozenset()


class SpoolUploader:
    """One gang's spool. ``node_id`` and call ids make the segments' names."""

    def __init__(self, gang_dir: Path, *, node_id: str, put: Put, clock: Clock) -> None:
        self._gang_id = gang_dir.name
        self._spool = gang_dir / "spool.log"
        self._progress_path = gang_dir / "uploaded.json"
        self._node_id = node_id
        self._put = put
        self._clock = clock
        self._progress = _load(self._progress_path)
        self._read_to = self._from = self._progress.offset
        self._first: dict[str, int] = {}
        """Where the first record of each call stands, the calls that came last."""
        self._parts: dict[str, list[bytes]] = {}
        self._starts: dict[str, int] = {}
        self._bytes = 0
        self._ended: set[str] = set()
        self._oldest_ms = 0

    async def step(self, *, last: bool = False) -> bool:
        """Reads what is new, and stores what is due; ``last`` stores everything. Returns whether there was anything.

        Raises grpc.aio.AioRpcError when the control plane refuses a segment, OSError when the spool cannot be read.
        """
        if last:
            await self._store_reports()
        new = self._read()
        age_ms = self._clock.monotonic_ms() - self._oldest_ms if self._parts else 0
        due = self._bytes >= SEGMENT_BYTES or age_ms >= SEGMENT_MS or bool(self._ended) or last
        if self._parts and due:
            await self._store()
        elif not self._parts:
            self._progress.offset = self._read_to
        return new

    async def _store_reports(self) -> None:
        """What its keeper wrote of failed calls goes beside their output."""
        for path in sorted(self._spool.parent.glob(f"*{SUFFIX}")):
            data = await asyncio.to_thread(path.read_bytes)
            await self._put(f"logs/{path.stem}/{self._node_id}/{self._gang_id}{SUFFIX}", data)
            path.unlink()

    def _read(self) -> bool:
        if self._bytes >= SEGMENT_BYTES:
            return True
        if not self._spool.exists():
            return False
        data = read_spool(self._spool, self._read_to)
        start = self._read_to
        for record, end in decode(data):
            if not outside_calls(record):
                self._take(record, self._read_to)
            self._read_to = start + end  # last: `starts_at` is asked from another thread
        return self._read_to > start

    def starts_at(self, call_id: str) -> int:
        """Returns a place in the spool before which there is nothing of a call. May be called from any thread."""
        read_to, known = self._read_to, self._first.get(call_id)
        if known is not None:
            return known
        return read_to if self._from == 0 else 0

    def _take(self, record: LogRecord, at: int) -> None:
        call_id = id_text("c", record.call)
        if call_id not in self._first:
            if len(self._first) >= FIRST_KNOWN:
                del self._first[next(iter(self._first))]
                self._from = 1  # not of all calls is it known any more
            self._first[call_id] = at
        if record.stream == END:
            if call_id not in self._parts and call_id not in self._progress.open and not _wrote(record):
                return
            self._ended.add(call_id)
        if not self._parts:
            self._oldest_ms = self._clock.monotonic_ms()
        data = encode(record)
        self._starts.setdefault(call_id, at)
        self._parts.setdefault(call_id, []).append(data)
        self._bytes += len(data)

    async def _store(self) -> None:
        for call_id, parts in self._parts.items():
            name = f"logs/{call_id}/{self._node_id}/{self._gang_id}.{self._starts[call_id]}"
            await self._put(name, b"".join(parts))
        self._progress = _Progress(self._read_to, (self._progress.open | self._parts.keys()) - self._ended)
        _save(self._progress_path, self._progress)
        self._parts.clear()
        self._starts.clear()
        self._ended.clear()
        self._bytes = 0


class LogKeeper:
    """Uploads the output of every gang on this node."""

    def __init__(self, gangs_dir: Path, *, node_id: str, put: Put, clock: Clock) -> None:
        self._dir = gangs_dir
        self._node_id = node_id
        self._put = put
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closing: set[str] = set()
        self._wake: dict[str, asyncio.Event] = {}
        self._all_stored: dict[str, asyncio.Event] = {}
        self._uploaders: dict[str, SpoolUploader] = {}

    def open(self, gang_id: str) -> None:
        """Begins, or goes on, with a gang's spool."""
        if gang_id not in self._tasks:
            self._wake[gang_id] = asyncio.Event()
            self._tasks[gang_id] = asyncio.create_task(self._keep(gang_id))

    def finish(self, gang_id: str) -> None:
        """The gang is over and stored: what is left of its output is uploaded, then its directory is removed."""
        self.open(gang_id)
        self._closing.add(gang_id)
        self._wake[gang_id].set()

    async def store_all(self, gang_id: str) -> None:
        """Returns when all that the gang has written is stored, or at a bound: what is left then follows later.

        Whoever asks for the output of a gang that has ended asks for what is stored.
        """
        if gang_id not in self._tasks:
            return
        stored = self._all_stored[gang_id] = asyncio.Event()
        self._wake[gang_id].set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORE_ALL_BOUND_S):
                await stored.wait()
        self._all_stored.pop(gang_id, None)

    async def close(self) -> None:
        """Stops uploading; spools stay for the next agent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def open_spool(self, gang_id: str, call_id: str) -> tuple[int, int] | None:
        """Returns a descriptor of the gang's spool where it is still here, and where in it to look for the call; may be
        called from any thread.
        """
        if not gang_id:
            return None
        try:
            fd = os.open(self._dir / gang_id / "spool.log", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        uploader = self._uploaders.get(gang_id)
        return fd, uploader.starts_at(call_id) if uploader is not None else 0

    async def _keep(self, gang_id: str) -> None:
        gang_dir = self._dir / gang_id
        uploader = SpoolUploader(gang_dir, node_id=self._node_id, put=self._put, clock=self._clock)
        self._uploaders[gang_id] = uploader
        try:
            await self._upload(gang_id, uploader)
        finally:
            self._tasks.pop(gang_id, None)
            self._uploaders.pop(gang_id, None)
            self._wake.pop(gang_id, None)
        self._closing.discard(gang_id)
        await asyncio.to_thread(traces.remove, gang_dir)

    async def _upload(self, gang_id: str, uploader: SpoolUploader) -> None:
        while True:
            closing = gang_id in self._closing
            stored = self._all_stored.get(gang_id)
            try:
                more = await uploader.step(last=closing or stored is not None)
                if stored is not None and not more:
                    stored.set()
            except (grpc.aio.AioRpcError, OSError, RecordError) as e:
                log.warning("a log segment was not stored", extra={"gang": gang_id, "reason": str(e)})
                if closing:
                    return
                more = False
            if closing and not more:
                return
            if not more:
                await self._pause(gang_id)

    async def _pause(self, gang_id: str) -> None:
        try:
            async with asyncio.timeout(_LOOK_EVERY_S):
                await self._wake[gang_id].wait()
            self._wake[gang_id].clear()
        except TimeoutError:
            return


def _wrote(record: LogRecord) -> bool:
    return any(parse_end(record).bytes_by_rank.values())


def _load(path: Path) -> _Progress:
    try:
        data = json.loads(path.read_text())
        return _Progress(int(data["offset"]), frozenset(map(str, data.get("open", data.get("segments", ())))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Progress()


def _save(path: Path, progress: _Progress) -> None:
    replace_file(path, json.dumps({"offset": progress.offset, "open": sorted(progress.open)}))
