"""Following: reads the log, folds it, and takes over when the leader has fallen silent.

A standby is hot: its state is never more than a read behind. It does not lead what it cannot read.
"""

from __future__ import annotations

import asyncio
import logging

from phalanx_control.controller_parts import Parts
from phalanx_control.log.errors import LogLostError, StoreUnavailableError, UnreadableLogError
from phalanx_control.log.folding import fold_batch, load_snapshot
from phalanx_control.log.leadership import LeaderRecord, LeaderWatch

_logger = logging.getLogger(__name__)

SLOW_STORE_MS = 500
"""A store that takes so much longer than asked to has kept the leader from beating, too."""


class Standby:
    """Keeps ``feed`` up to date. ``record`` is the leader's as last read; ``cannot_lead`` is why not to lead."""

    def __init__(self, parts: Parts, *, leader_id: str, address: str) -> None:
        self._log = parts.log
        self._clock = parts.clock
        self._feed = parts.feed
        self._timing = parts.timing
        self._leader_id = leader_id
        self._address = address
        self._watch = LeaderWatch(parts.clock, stale_after_ms=parts.timing.stale_after_ms)
        self._must_load = True
        self._reachable = True
        self.record = LeaderRecord()
        self.cannot_lead = ""

    def reload(self) -> None:
        """The state no longer rests on the log: read snapshot and log afresh."""
        self._must_load = True

    async def until_elected(self) -> LeaderRecord:
        """Follows until this replica is the leader and has folded everything that the former ones wrote."""
        self._watch.forget()
        while True:
            try:
                won = await self._step()
            except StoreUnavailableError as e:
                await self._wait_for_store(e)
            except (UnreadableLogError, LogLostError) as e:
                self._must_load = isinstance(e, LogLostError)
                await self._refuse(str(e))
            else:
                self._reachable, self.cannot_lead = True, ""
                if won is not None:
                    return won

    async def _step(self) -> LeaderRecord | None:
        """1. load 2. follow 3. look at the leader 4. take over 5. read what it still wrote."""
        if self._must_load:
            await self._load()
        began_ms = self._clock.monotonic_ms()
        self.record = await self._log.leader()
        await self._follow(round(self._timing.poll_s * 1000))
        if self._clock.monotonic_ms() - began_ms > self._timing.poll_s * 1000 + SLOW_STORE_MS:
            self._watch.forget()
        if not self._watch.is_gone(self.record):
            return None
        won = await self._log.acquire(
            self.record, leader_id=self._leader_id, address=self._address, min_epoch=self._feed.state.epoch
        )
        if won is not None:
            await self._read_to_the_end(won)
        return won

    async def _load(self) -> None:
        self._feed.replace(await load_snapshot(self._log))
        self._must_load = False
        await self._read_all()

    async def _read_all(self) -> None:
        while await self._follow(0):
            pass

    async def _read_to_the_end(self, won: LeaderRecord) -> None:
        """Nobody else can append any more, so the end is the end."""
        try:
            await self._read_all()
        except (UnreadableLogError, LogLostError):
            await self._log.resign(won.epoch, won.leader_id)
            raise

    async def _follow(self, block_ms: int) -> bool:
        """Folds what is new; False when there was nothing."""
        batches = await self._log.read_after(self._feed.state.seq, block_ms=block_ms)
        for batch in batches:
            if batch.seq != self._feed.state.seq + 1:
                raise LogLostError(
                    f"batch {batch.seq} follows {self._feed.state.seq}: those between were trimmed or lost"
                )
            self._feed.publish(batch.events, fold_batch(self._feed.state, batch))
        if not batches and await self._log.last() < self._feed.state.seq:
            raise LogLostError(f"the store ends before batch {self._feed.state.seq}, which it acknowledged")
        return bool(batches)

    async def _refuse(self, why: str) -> None:
        """Says so once per reason; what was read stays readable, and the log is tried again."""
        if why != self.cannot_lead:
            _logger.error("replica does not lead", extra={"why": why})
        self.cannot_lead = why
        self._watch.forget()
        await asyncio.sleep(self._timing.poll_s)

    async def _wait_for_store(self, error: StoreUnavailableError) -> None:
        if self._reachable:
            _logger.warning("store out of reach", extra={"why": str(error)})
        self._reachable = False
        self._watch.forget()
        await asyncio.sleep(self._timing.retry_s)
