"""Outcomes on their way to clients and to the agent: over the client's lane at once, or a few of short calls together.

While further calls of the same client wait here, its process need not be woken for each that ends. The agent is told
of an outcome when it is known which way it went: "over the lane" is never said of what has not left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from phalanx.core.clock import Clock
from phalanx.core.frames import LANE_BITS, Frame, Kind
from phalanx_agent.keeper import telling
from phalanx_agent.keeper.calls import CallBook, QueuedCall
from phalanx_agent.keeper.lanes import LANE_BYTES, Lane
from phalanx_agent.keeper.loop import Loop

TOGETHER = 8
"""Half of what a client has here at once: it sends the next while the rest runs."""
HELD_MS = 2
"""No outcome waits longer for company."""


@dataclass(frozen=True, slots=True)
class _Held:
    call: QueuedCall
    outcome: Frame
    encoded: bytes


@dataclass(slots=True)
class Outbox:
    """``short`` says whether calls take a few milliseconds. ``tell`` and ``tell_soon`` are the gang's."""

    loop: Loop
    clock: Clock
    book: CallBook
    short: Callable[[], bool]
    tell: Callable[[Frame], None]
    tell_soon: Callable[[Frame, bool], None]
    _held: list[_Held] = field(default_factory=list[_Held])
    """Of one lane."""
    _bytes: int = 0

    def deliver(self, call: QueuedCall, outcome: Frame) -> None:
        """Sends how the call ended, now or in a moment. The next one may run already."""
        lane = self._lane(call, outcome)
        encoded = lane.encoded(outcome) if lane is not None else None
        if lane is None or encoded is None:
            self.flush()
            self._tell(call, outcome, gone=False, more=False)
            return
        if self._held and (self._held[0].call.lane is not lane or self._bytes + len(encoded) > LANE_BYTES):
            self.flush()
        self._held.append(_Held(call, outcome, encoded))
        self._bytes += len(encoded)
        if len(self._held) >= TOGETHER or not self._has_company(call):
            self.flush()
        elif len(self._held) == 1:
            self.loop.at("held", self.clock.monotonic_ms() + HELD_MS, self.flush)

    def flush(self) -> None:
        """Sends what is held, and tells the agent."""
        if not self._held:
            return
        held, gone = self._send()
        for number, each in enumerate(held, 1):
            more = number < len(held) or self._next(each.call) is not None
            self._tell(each.call, each.outcome, gone=gone, more=more)

    def attached(self) -> None:
        """Another agent is there, which is told of every outcome anyway."""
        if self._held:
            self._send()

    def _send(self) -> tuple[list[_Held], bool]:
        held, self._held, self._bytes = self._held, [], 0
        lane = held[0].call.lane
        return held, lane is not None and lane.send(b"".join(h.encoded for h in held))

    def _lane(self, call: QueuedCall, outcome: Frame) -> Lane | None:
        """A call that came through the agent goes back that way where others wait: it sends them together, too."""
        direct = call.straight or self._next(call) is None
        return call.lane if outcome.kind is Kind.RESULT and direct else None

    def _has_company(self, call: QueuedCall) -> bool:
        """Another short call of the same client runs next."""
        following = self._next(call)
        if not call.straight or call.told or following is None:
            return False
        return following.straight and following.lane is call.lane and self.short()

    def _next(self, call: QueuedCall) -> QueuedCall | None:
        """The call that runs after this one, or will."""
        running = self.book.running
        if running is not None and running is not call:
            return running
        return self.book.queue[0] if self.book.queue else None

    def _tell(self, call: QueuedCall, outcome: Frame, *, gone: bool, more: bool) -> None:
        if gone and call.lane is not None:
            outcome.flags = call.lane.number << LANE_BITS
        if call.told:
            self.tell(outcome)
        elif gone:
            self.tell_soon(outcome, more)
        else:
            self.tell(telling.straight(outcome, call))
        outcome.flags = 0  # another agent is told of it as of one that nobody has
