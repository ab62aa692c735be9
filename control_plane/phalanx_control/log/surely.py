"""An append whose outcome is always known: the controller's way to write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from phalanx_control.log.errors import (
    AppendUncertainError,
    FencedOutError,
    LogLostError,
    OutOfOrderError,
    StoreUnavailableError,
)
from phalanx_control.log.log import Batch, LogStore, NewBody

_logger = logging.getLogger(__name__)


async def append_surely(log: LogStore, batch: Batch, bodies: Sequence[NewBody], *, retry_s: float) -> None:
    """Returns when the batch is in the log, waiting for a store that has gone away.

    The same batch is sent again until the outcome is known: a copy that arrives late is refused, because its number is
    taken. Raises FencedOutError, BodiesOverCapError, StoreUnavailableError, and LogLostError where the store has less
    than it acknowledged; then nothing was written.
    """
    while not await _try(log, batch, bodies) and not await _landed(log, batch, retry_s):
        _logger.info("batch sent again", extra={"seq": batch.seq})


async def _try(log: LogStore, batch: Batch, bodies: Sequence[NewBody]) -> bool:
    try:
        await log.append(batch, bodies)
    except AppendUncertainError as e:
        _logger.warning("append uncertain", extra={"seq": batch.seq, "why": str(e)})
        return False
    except OutOfOrderError as e:
        if e.last_seq < batch.seq - 1:
            raise LogLostError(f"the store ends at {e.last_seq}; {batch.seq - 1} was acknowledged") from e
        return False
    return True


async def _landed(log: LogStore, batch: Batch, retry_s: float) -> bool:
    """Reads the tail until the store answers. Raises FencedOutError where the number is another leader's."""
    while True:
        try:
            found = await log.read_after(batch.seq - 1, limit=1)
        except StoreUnavailableError:
            await asyncio.sleep(retry_s)
            continue
        if found and (found[0].epoch, found[0].leader_id) != (batch.epoch, batch.leader_id):
            raise FencedOutError(found[0].epoch, found[0].leader_id)
        return bool(found)
