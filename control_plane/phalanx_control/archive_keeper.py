"""What the leader does for the archive, round after round: file, drop what is too old, sweep what nobody needs.

    1 enter what a former leader wrote   2 ended calls   3 closed ledger lines   4 old parts and months   5 one sweep

First the file, then the word in the log: a leader that ends in between has written a part too many, and the next one
writes the same records once more; none is lost, and bills count what the log says. Only one leader's word is taken, by
the fence of the log, so a replica that has been replaced does no harm but another part.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from datetime import UTC, datetime
from typing import Protocol

from phalanx.core.clock import Clock
from phalanx.core.errors import PhalanxError
from phalanx_control.archive_calls import CALLS, LEDGER, CallArchive, filed_ms, month_of_part
from phalanx_control.archive_sweep import Sweep
from phalanx_control.lifecycle import filing
from phalanx_control.log.history import KEEP_BYTES, KEEP_MS
from phalanx_control.metering.book import PriceBook
from phalanx_control.metering.filed import sums_of
from phalanx_control.service.ports import ControllerPort
from phalanx_control.state.commands import ArchiveCalls, DropLedgerMonth, FileLines

_logger = logging.getLogger(__name__)

ROUND_S = 5.0
BATCHES_A_ROUND = 20
LEDGER_MONTHS = 13
"""Months of the ledger that are kept besides the present one."""


class FilingController(ControllerPort, Protocol):
    @property
    def schema(self) -> int:
        """The newest schema version that may be written now."""
        ...


class ArchiveKeeper:
    """Works only while ``controller`` leads."""

    def __init__(
        self,
        controller: FilingController,
        archive: CallArchive,
        book: PriceBook,
        clock: Clock,
        sweep: Sweep,
        *,
        keep: filing.Keep = filing.KEEP,
    ) -> None:
        self._keep = keep
        self._controller = controller
        self._archive = archive
        self._book = book
        self._clock = clock
        self._sweep = sweep

    async def run(self) -> None:
        """Goes on until cancelled. What fails is tried again in the next round; until then it stays where it is."""
        while True:
            await asyncio.sleep(ROUND_S)
            if self._controller.is_leader:
                try:
                    await self.round()
                except (PhalanxError, OSError, sqlite3.Error) as e:
                    _logger.warning("archive round failed", extra={"why": str(e), "error": type(e).__name__})

    async def round(self) -> None:
        """Does everything once, each in bounded portions."""
        await self._archive.refresh()
        await self._file_calls()
        await self._file_lines()
        await self._drop_old()
        await self._sweep.once(self._controller.state, self._clock.wall_ms())

    async def _file_calls(self) -> None:
        for _ in range(BATCHES_A_ROUND):
            state = self._controller.state
            call_ids = filing.calls_to_archive(state, state.log_ms, self._keep)
            if not call_ids:
                return
            await self._archive.file_calls([state.calls[call_id] for call_id in call_ids])
            if not await self._controller.execute(ArchiveCalls(call_ids=call_ids)):
                return

    async def _file_lines(self) -> None:
        for _ in range(BATCHES_A_ROUND if self._controller.schema >= filing.FILING_SCHEMA else 0):
            state = self._controller.state
            keys = filing.lines_to_file(state, self._clock.wall_ms(), self._keep)
            if not keys:
                return
            lines = [state.ledger[key] for key in keys]
            month = filing.month_of(lines[0].closed_wall_ms)
            await self._archive.file_lines(month, lines)
            if not await self._controller.execute(FileLines(keys=keys, sums=sums_of(lines, month, self._book))):
                return

    async def _drop_old(self) -> None:
        parts = await self._archive.parts()
        now_ms = self._clock.wall_ms()
        surplus = surplus_calls(parts, now_ms)
        if surplus:
            await self._archive.drop(surplus)
            _logger.info("old calls dropped", extra={"parts": len(surplus)})
        oldest = oldest_month(now_ms)
        months = {each.month for each in self._controller.state.filed.values() if each.month < oldest}
        for month in sorted(months):
            await self._controller.execute(DropLedgerMonth(month=month))
        old = [name for name in parts if name.startswith(LEDGER) and month_of_part(name) < oldest]
        if old:
            await self._archive.drop(old)


def surplus_calls(parts: dict[str, int], now_ms: int) -> list[str]:
    """Returns the oldest parts of calls beyond 7 days, or beyond 10 GB of them all."""
    names = sorted(name for name in parts if name.startswith(CALLS))
    total = sum(parts[name] for name in names)
    surplus: list[str] = []
    for name in names:
        if total <= KEEP_BYTES and filed_ms(name) > now_ms - KEEP_MS:
            break
        surplus.append(name)
        total -= parts[name]
    return surplus


def oldest_month(now_ms: int) -> str:
    """Returns the first month of the ledger that is kept."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    months = now.year * 12 + now.month - 1 - LEDGER_MONTHS
    return f"{months // 12:04}-{months % 12 + 1:02}"
