"""The archive of ended calls and closed ledger lines: parts in the blob store, found through an index.

    archive/calls/<wall ms>-<hash>             ended calls, one JSON record a line
    archive/ledger/<month>/<wall ms>-<hash>    closed lines of the ledger, by the month in which their leases ended

A part is written once, whole, before the log says that its records have left the state. The same record may stand in
two parts, after a leader that ended in between: records that may be filed never change, so either is right.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec

from phalanx.core.clock import Clock
from phalanx.core.errors import NotFoundError
from phalanx_control.archive_index import ArchiveIndex, CallFilter, Part, Place
from phalanx_control.blobs import BlobStore
from phalanx_control.state.model import Call, LedgerLine, Record

_logger = logging.getLogger(__name__)

CALLS = "archive/calls/"
LEDGER = "archive/ledger/"
LOOK_EVERY_MS = 250
_encoder = msgspec.json.Encoder()
_calls = msgspec.json.Decoder(Call)
_lines = msgspec.json.Decoder(LedgerLine)


class CallArchive:
    """Reads and writes parts. Any replica that sees the blobs may read; only a leader's are spoken of by the log."""

    def __init__(self, blobs: BlobStore, index: ArchiveIndex, clock: Clock) -> None:
        self._blobs = blobs
        self._index = index
        self._clock = clock
        self._refreshing = asyncio.Lock()
        self._looked_ms = clock.monotonic_ms() - LOOK_EVERY_MS
        self._holds_calls = any(name.startswith(CALLS) for name in index.parts())

    # ---- reading ----

    async def find(self, call_id: str) -> Call | None:
        """Returns an archived call. What is not known yet is looked for among parts that others have written."""
        call = await self.known(call_id)
        if call is None:
            await self._wait_for_news()
            call = await self.known(call_id)
        return call

    async def known(self, call_id: str) -> Call | None:
        """As :meth:`find`, among the parts that this replica has entered."""
        place = await asyncio.to_thread(self._index.call, call_id) if self._holds_calls else None
        return _calls.decode(await self._read(place)) if place is not None else None

    async def states(self, workspace: str, call_ids: Sequence[str]) -> dict[str, str]:
        """Returns the states of those of a workspace's calls that are archived, by id."""
        if self._clock.monotonic_ms() >= self._looked_ms + LOOK_EVERY_MS:
            await self.refresh()
        return await asyncio.to_thread(self._index.states, workspace, call_ids)

    async def newest(self, wanted: CallFilter) -> list[Call]:
        """Returns the newest archived calls that fit."""
        if self._clock.monotonic_ms() >= self._looked_ms + LOOK_EVERY_MS:
            await self.refresh()
        places = await asyncio.to_thread(self._index.newest, wanted)
        found = [await self._read_or_none(place) for place in places]
        return [_calls.decode(data) for data in found if data is not None]

    async def lines_of(self, gang_ids: Iterable[str]) -> list[LedgerLine]:
        """Returns the filed ledger lines of these gangs."""
        wanted = tuple(dict.fromkeys(gang_ids))
        places = await asyncio.to_thread(lambda: [p for gang_id in wanted for p in self._index.lines_of(gang_id)])
        found = [await self._read_or_none(place) for place in places]
        return [_lines.decode(data) for data in found if data is not None]

    async def is_referred_to(self, blob: str) -> bool:
        """Says whether an archived call refers to ``blob``. Only as good as the last :meth:`refresh`."""
        return await asyncio.to_thread(self._index.is_referred_to, blob)

    # ---- writing ----

    async def file_calls(self, calls: Sequence[Call]) -> None:
        """Returns when the calls are durable, and found."""
        await self._file(f"{CALLS}{self._clock.wall_ms():016}", calls)

    async def file_lines(self, month: str, lines: Sequence[LedgerLine]) -> None:
        """Returns when the lines are durable in their month's files, and found."""
        await self._file(f"{LEDGER}{month}/{self._clock.wall_ms():016}", lines)

    async def parts(self) -> dict[str, int]:
        """Returns the parts that this replica has entered, with their bytes, calls first and oldest first."""
        return await asyncio.to_thread(self._index.parts)

    async def drop(self, parts: Sequence[str]) -> None:
        """Deletes parts, with all that stands in them."""
        for name in parts:
            await self._blobs.delete(name)
        await asyncio.to_thread(self._index.drop, parts)

    async def refresh(self) -> None:
        """Enters the parts that others have written, and forgets those that others have dropped."""
        async with self._refreshing:
            there = {*await self._blobs.names(CALLS), *await self._blobs.names(LEDGER)}
            entered = await asyncio.to_thread(self._index.parts)
            for name in sorted(there - entered.keys()):
                await self._enter(name)
            gone = sorted(entered.keys() - there)
            if gone:
                await asyncio.to_thread(self._index.drop, gone)
            self._holds_calls = any(name.startswith(CALLS) for name in there)
            self._looked_ms = self._clock.monotonic_ms()

    async def _wait_for_news(self) -> None:
        """Returns when the archive was looked at since; that is done four times a second at most."""
        asked_ms = self._clock.monotonic_ms()
        rest_ms = self._looked_ms + LOOK_EVERY_MS - asked_ms
        if rest_ms > 0:
            await asyncio.sleep(rest_ms / 1000)
        if self._looked_ms <= asked_ms:
            await self.refresh()

    async def _file(self, stem: str, records: Sequence[Record]) -> None:
        data = b"".join(_encoder.encode(record) + b"\n" for record in records)
        name = f"{stem}-{hashlib.sha256(data).hexdigest()[:16]}"
        async with self._refreshing:
            await self._blobs.put(name, _once(data))
            await asyncio.to_thread(self._index.add, _part(name, data))
            self._holds_calls = self._holds_calls or name.startswith(CALLS)

    async def _enter(self, name: str) -> None:
        try:
            data = b"".join([chunk async for chunk in self._blobs.get(name)])
        except NotFoundError:
            return
        await asyncio.to_thread(lambda: self._index.add(_part(name, data)))
        _logger.debug("part entered", extra={"part": name, "bytes": len(data)})

    async def _read(self, place: Place) -> bytes:
        return await self._blobs.read(place.part, place.start, place.size)

    async def _read_or_none(self, place: Place) -> bytes | None:
        """None for a part that has just been dropped."""
        try:
            return await self._read(place)
        except NotFoundError:
            return None


def filed_ms(part: str) -> int:
    """Returns the wall ms at which a part was written."""
    return int(part.rpartition("/")[2].partition("-")[0])


def month_of_part(part: str) -> str:
    """Returns the month of a part of the ledger."""
    return part.removeprefix(LEDGER).partition("/")[0]


def _part(name: str, data: bytes) -> Part:
    records: list[tuple[bytes, Place]] = []
    start = 0
    for line in data.splitlines(keepends=True):
        records.append((line, Place(name, start, len(line))))
        start += len(line)
    if name.startswith(CALLS):
        return Part(name=name, bytes=len(data), calls=[(_calls.decode(line), place) for line, place in records])
    return Part(name=name, bytes=len(data), lines=[(_lines.decode(line), place) for line, place in records])


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
