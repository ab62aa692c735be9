"""Which schema version every live replica reads: said by each, kept in the store, asked again and again.

A replica that says nothing is not known: one that is too old to say anything does not lead once it meets an event that
it cannot read. Until the first answer, only what the first version had may be written.
"""

from __future__ import annotations

import asyncio
import logging

from phalanx_control.log.errors import StoreUnavailableError
from phalanx_control.log.log import LogStore
from phalanx_control.state.model import SCHEMA_VERSION, State

_logger = logging.getLogger(__name__)

ANNOUNCE_EVERY_S = 2.0
ANNOUNCE_TTL_MS = 15_000
"""A replica that was silent for so long does not count."""


class Peers:
    """``schema`` is what this replica announces."""

    def __init__(self, log: LogStore, replica: str, *, schema: int = SCHEMA_VERSION) -> None:
        self._log = log
        self._replica = replica
        self._schema = schema
        self._agreed = 1

    def writable(self, state: State) -> int:
        """Returns the newest schema version that may be written: what is in the log already may go on."""
        return max(self._agreed, min(state.schema, self._schema))

    async def run(self) -> None:
        while True:
            try:
                await self._announce()
            except StoreUnavailableError as e:
                _logger.debug("not announced", extra={"why": str(e)})
            await asyncio.sleep(ANNOUNCE_EVERY_S)

    async def _announce(self) -> None:
        agreed = await self._log.announce(self._replica, self._schema, ttl_ms=ANNOUNCE_TTL_MS)
        if agreed != self._agreed:
            _logger.info("schema version agreed on", extra={"schema": agreed, "own": self._schema})
        self._agreed = agreed
