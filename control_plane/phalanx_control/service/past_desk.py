"""The cell as it was at a moment, as the log had it then: nodes, gangs, calls that were alive, and who waited for what.

Callers see of the past what they may see of the present: their own workspace, and operators everybody's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from phalanx.core.clock import Clock
from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import GangFacts
from phalanx.core.views import PastView
from phalanx_control.archive_calls import CallArchive
from phalanx_control.log.past import Moment, in_words
from phalanx_control.metering.book import PriceBook
from phalanx_control.service.pictures import StatePictures
from phalanx_control.service.queries import MAX_LIMIT, Queries
from phalanx_control.service.queue_desk import queue_at
from phalanx_control.state.commands import Now
from phalanx_control.state.model import State

StateAt = Callable[[int], Awaitable[tuple[Moment, State]]]
"""Takes wall milliseconds."""


@dataclass(frozen=True, slots=True)
class _Still:
    """What does not change any more."""

    state: State


class _NoFacts:
    """What agents reported then is not kept."""

    def gang(self, gang_id: str, node_id: str) -> GangFacts | None:
        del gang_id, node_id

    def last_heard_wall_ms(self, node_id: str) -> int:
        del node_id
        return 0


class PastDesk:
    """Looks back for the present caller; one look at a time."""

    def __init__(self, state_at: StateAt, archive: CallArchive, book: PriceBook, clock: Clock) -> None:
        self._state_at = state_at
        self._archive = archive
        self._pictures = StatePictures(_NoFacts(), book)
        self._clock = clock
        self._one = asyncio.Lock()

    async def at(self, wall_ms: int) -> PastView:
        """Raises InvalidSpecError for a time to come, NotFoundError for one before the history."""
        if not 0 < wall_ms <= self._clock.wall_ms():
            raise InvalidSpecError(f"{in_words(wall_ms)} is not in the past", hint="gpuctl at 10m")
        async with self._one:
            moment, state = await self._state_at(wall_ms)
        queries = Queries(_Still(state), self._pictures, self._archive)
        return PastView(
            at_ms=moment.wall_ms,
            seq=moment.seq,
            nodes=queries.nodes(),
            gangs=queries.gangs(),
            calls=await queries.calls(limit=MAX_LIMIT),
            queue=queue_at(state, Now(log_ms=state.log_ms, wall_ms=wall_ms)),
        )
