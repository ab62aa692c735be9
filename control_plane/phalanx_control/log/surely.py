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
    """Returns when the batch is in the log and durable, waiting for a store, or replicas of it, that have gone away.

    The same batch is sent again until the outcome is known: a copy that arrives late is refused, because its number is
    taken. Raises BodiesOverCapError, StoreUnavailableError, and LogLostError where the store has less than it
    acknowledged; then nothing was written. Raises FencedOutError; then nothing was acknowledged, and the new leader has
    read the batch if it was written.
    """
    doubts = _Doubts(batch.seq)
    while not await _try(log, batch, bodies, doubts) and not await _landed(log, batch, retry_s, doubts):
        _logger.info("batch sent again", extra={"seq": batch.seq})
    doubts.end()


class _Doubts:
    """Says why a batch is not known to be durable: each reason once, however often it is found."""

    def __init__(self, seq: int) -> None:
        self._seq = seq
        self._said = ""

    def say(self, why: str) -> None:
        if why != self._said:
            _logger.warning("append uncertain", extra={"seq": self._seq, "why": why})
        self._said = why

    def end(self) -> None:
        if self._said:
            _logger.info("append certain", extra={"seq": self._seq})


async def _try(log: LogStore, batch: Batch, bodies: Sequence[NewBody], doubts: _Doubts) -> bool:
    try:
        await log.append(batch, bodies)
    except AppendUncertainError as e:
        doubts.say(str(e))
        return False
    except OutOfOrderError as e:
        if e.last_seq < batch.seq - 1:
            raise LogLostError(f"the store ends at {e.last_seq}; {batch.seq - 1} was acknowledged") from e
        return False
    return True


async def _landed(log: LogStore, batch: Batch, retry_s: float, doubts: _Doubts) -> bool:
    """Whether the batch is in the log, once it is durable there. Reads the tail until the store answers.
    Raises FencedOutError where another one leads, or the number is another leader's.
    """
    while True:
        try:
            found = await log.read_after(batch.seq - 1, limit=1)
            if found and (found[0].epoch, found[0].leader_id) != (batch.epoch, batch.leader_id):
                raise FencedOutError(found[0].epoch, found[0].leader_id)
            return bool(found) and await log.confirm(batch)
        except AppendUncertainError as e:
            doubts.say(str(e))
        except StoreUnavailableError:
            pass
        await asyncio.sleep(retry_s)
