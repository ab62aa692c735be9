"""Plays the gangs of one node: the control plane's messages in, an agent's words out. No I/O, no clock, no asyncio.

    Prepare ──► PREPARED ── Start ──► READY ── Stop ──► STOPPING (its call ends first) ──► ENDED ── stored ──► forgotten

There are no ranks. A call that the gang is offered takes its simulated time and succeeds with None for each rank that
would return something; its arguments are never looked at. Only functions that ask for played GPUs are played: any
other is refused, whoever sent it here. Nothing is metered, since nothing is used.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from phalanx.core.messages import (
    Body,
    CallFinished,
    CallRefused,
    CallStarted,
    CancelCall,
    ErrorInfo,
    FromAgent,
    GangFacts,
    MemberEnded,
    MemberPrepared,
    MemberReady,
    Offer,
    Prepare,
    Start,
    Stop,
    ToAgent,
)
from phalanx.core.played import PLAYED, asks_for_played
from phalanx.core.serialization import pack
from phalanx.core.spec import FunctionSpec
from phalanx.core.states import Cause, Outcome

Words = tuple[FromAgent, ...]
REFUSAL = f'this node is played and runs no code: only functions with gpu="{PLAYED}" may be sent here'
_MAX_PARTS = 4096
"""Ranks whose None is put into one result: it must stay far below what one message may carry."""


class Stage(StrEnum):
    PREPARED = "prepared"
    READY = "ready"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(slots=True)
class _Gang:
    """This node's part of one gang."""

    prepare: Prepare
    stage: Stage = Stage.PREPARED
    error: ErrorInfo = field(default_factory=ErrorInfo)
    waiting: deque[Offer] = field(default_factory=deque[Offer])
    running: Offer | None = None
    began_ms: int = 0
    idle_since_ms: int = 0
    untold: set[str] = field(default_factory=set[str])
    """Calls that ended, and whose end is not stored yet."""

    @property
    def call_ids(self) -> tuple[str, ...]:
        running = (self.running.call_id,) if self.running is not None else ()
        return (*running, *(offer.call_id for offer in self.waiting), *sorted(self.untold))


class Player:
    """``call_ms``: how long each call takes."""

    def __init__(self, *, call_ms: int) -> None:
        self._call_ms = call_ms
        self._gangs: dict[str, _Gang] = {}

    def handle(self, message: ToAgent, now_ms: int) -> Words:
        """Returns what is to be said because of ``message``, which may be a repetition. ``now_ms`` is monotonic."""
        match message:
            case Prepare():
                return self._prepare(message)
            case Start():
                return self._start(message, now_ms)
            case Stop():
                return self._stop(message)
            case Offer():
                return self._offer(message, now_ms)
            case CancelCall():
                return self._cancel(message, now_ms)
            case _:
                return ()

    def tick(self, now_ms: int) -> Words:
        """Ends the calls whose time has come, and begins the next ones."""
        said: list[FromAgent] = []
        for gang in self._gangs.values():
            ends_ms = self._ends_ms(gang)
            if ends_ms is not None and ends_ms <= now_ms:
                said += self._end_call(gang, now_ms)
        return tuple(said)

    def due_ms(self) -> int | None:
        """Returns when `tick` has something to do next; None for never."""
        return min((ends for gang in self._gangs.values() if (ends := self._ends_ms(gang)) is not None), default=None)

    def end_all(self, reason: str) -> Words:
        """Ends every gang at once; calls that it holds are not finished."""
        said: list[FromAgent] = []
        for gang in self._gangs.values():
            if gang.stage is not Stage.ENDED:
                gang.error = ErrorInfo(cause=Cause.INFRASTRUCTURE, message=reason)
                said += self._end(gang)
        return tuple(said)

    def stored(self, message: FromAgent) -> None:
        """The control plane has what was said: ends may be forgotten."""
        gang = self._gangs.get(message.gang_id) if isinstance(message, CallFinished | MemberEnded) else None
        if gang is None:
            return
        if isinstance(message, CallFinished):
            gang.untold.discard(message.call_id)
        elif isinstance(message, MemberEnded):
            del self._gangs[message.gang_id]

    def facts(self, now_ms: int) -> tuple[GangFacts, ...]:
        """Returns what reports say of the gangs."""
        return tuple(
            GangFacts(
                gang_id=gang.prepare.gang_id,
                fence=gang.prepare.fence,
                state=gang.stage.value,
                depth=len(gang.waiting),
                in_flight=int(gang.running is not None),
                idle_ms=now_ms - gang.idle_since_ms if gang.stage is Stage.READY and gang.running is None else 0,
                call_ids=gang.call_ids,
            )
            for gang in self._gangs.values()
        )

    # ---- gangs ----

    def _prepare(self, message: Prepare) -> Words:
        gang = self._gangs.get(message.gang_id)
        if gang is None:
            if not asks_for_played(message.function.resources.gpu):
                return (MemberPrepared(gang_id=message.gang_id, fence=message.fence, error=REFUSAL),)
            gang = self._gangs[message.gang_id] = _Gang(message)
        if gang.prepare.fence != message.fence or gang.stage is not Stage.PREPARED:
            return ()
        return (MemberPrepared(gang_id=message.gang_id, fence=message.fence, rendezvous=PLAYED),)

    def _start(self, message: Start, now_ms: int) -> Words:
        gang = self._gangs.get(message.gang_id)
        if gang is None:
            return (_ended(message, "this node does not hold the gang"),)
        if gang.prepare.fence != message.fence or gang.stage not in (Stage.PREPARED, Stage.READY):
            return ()
        if gang.stage is Stage.PREPARED:
            gang.stage, gang.idle_since_ms = Stage.READY, now_ms
        return (MemberReady(gang_id=message.gang_id, fence=message.fence, backend=PLAYED),)

    def _stop(self, message: Stop) -> Words:
        gang = self._gangs.get(message.gang_id)
        if gang is None:
            return (_ended(message),)
        if gang.prepare.fence != message.fence or gang.stage is Stage.ENDED:
            return ()
        if message.drain and gang.running is not None:
            gang.stage = Stage.STOPPING
            return ()
        return self._end(gang)

    def _end(self, gang: _Gang) -> Words:
        gang.stage, gang.running = Stage.ENDED, None
        gang.waiting.clear()
        return (MemberEnded(gang_id=gang.prepare.gang_id, fence=gang.prepare.fence, error=gang.error),)

    # ---- calls ----

    def _offer(self, message: Offer, now_ms: int) -> Words:
        gang = self._gangs.get(message.gang_id)
        if gang is None or gang.stage is not Stage.READY or gang.prepare.node_rank:
            reason = "the gang is not led by this node" if gang is None else f"the gang is {gang.stage.value}"
            return (_refused(message, reason),)
        if message.call_id in gang.call_ids:
            return ()
        gang.waiting.append(message)
        return self._begin_next(gang, now_ms)

    def _begin_next(self, gang: _Gang, now_ms: int) -> Words:
        if gang.running is not None:
            return ()
        if not gang.waiting:
            gang.idle_since_ms = now_ms
            return self._end(gang) if gang.stage is Stage.STOPPING else ()
        offer = gang.running = gang.waiting.popleft()
        gang.began_ms = now_ms
        return (
            CallStarted(
                call_id=offer.call_id,
                attempt=offer.attempt,
                fence=offer.fence,
                gang_id=offer.gang_id,
                user=offer.user,
                timeout_ms=offer.timeout_ms,
            ),
        )

    def _ends_ms(self, gang: _Gang) -> int | None:
        if gang.running is None:
            return None
        return gang.began_ms + min(self._call_ms, gang.running.timeout_ms or self._call_ms)

    def _end_call(self, gang: _Gang, now_ms: int) -> Words:
        offer, gang.running = gang.running, None
        assert offer is not None
        gang.untold.add(offer.call_id)
        late = 0 < offer.timeout_ms < self._call_ms
        result = Body() if late else _nothing(gang.prepare.function)
        outcome = Outcome.TIMED_OUT if late else Outcome.SUCCEEDED
        finished = _finished(offer, outcome, now_ms - gang.began_ms, result)
        return (finished, *self._begin_next(gang, now_ms))

    def _cancel(self, message: CancelCall, now_ms: int) -> Words:
        gang = self._gangs.get(message.gang_id)
        if gang is None or message.call_id not in gang.call_ids:
            return (_refused(message, "it is not on this node"),)
        offer = gang.running
        if offer is not None and offer.call_id == message.call_id:
            gang.running = None
            gang.untold.add(offer.call_id)
            ended = _finished(offer, Outcome.CANCELLED, now_ms - gang.began_ms)
            return (ended, *self._begin_next(gang, now_ms))
        for offer in gang.waiting:
            if offer.call_id == message.call_id:
                gang.waiting.remove(offer)
                gang.untold.add(offer.call_id)
                return (_finished(offer, Outcome.CANCELLED, 0),)
        return ()


def _nothing(function: FunctionSpec) -> Body:
    """Returns the result of a function that returned None on every rank."""
    ranks = min(function.world_size, _MAX_PARTS) if function.returns == "all" else 1
    data = pack(None).tobytes() * ranks
    return Body(data=data, size=len(data))


def _finished(offer: Offer, outcome: Outcome, busy_ms: int, result: Body | None = None) -> CallFinished:
    return CallFinished(
        call_id=offer.call_id,
        attempt=offer.attempt,
        fence=offer.fence,
        gang_id=offer.gang_id,
        outcome=outcome,
        result=result or Body(),
        busy_ms=busy_ms,
    )


def _refused(message: Offer | CancelCall, reason: str) -> CallRefused:
    return CallRefused(
        call_id=message.call_id,
        attempt=message.attempt,
        fence=message.fence,
        gang_id=message.gang_id,
        reason=reason,
    )


def _ended(message: Start | Stop, reason: str = "") -> MemberEnded:
    error = ErrorInfo(cause=Cause.INFRASTRUCTURE, message=reason)
    return MemberEnded(gang_id=message.gang_id, fence=message.fence, error=error)
