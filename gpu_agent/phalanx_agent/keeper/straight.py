"""Direct calls that come past the agent: taken where the agent could only say yes, passed on to it where it may not.

The agent's queue stays the only one: a call is taken when nothing runs and nothing waits here, so it is nobody's turn.
The agent hears of it with its outcome, or when it has run for a while, or when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phalanx.core.frames import Frame, Kind
from phalanx_agent.keeper.calls import CallBook, QueuedCall
from phalanx_agent.keeper.lanes import Lane, Lanes

MAX_KEPT_OUTCOMES = 512
"""With so many not acknowledged, the agent decides."""


@dataclass(slots=True)
class StraightCalls:
    """``idle`` says whether the ranks wait for a call; ``hand_over`` begins the next one that waits."""

    book: CallBook
    lanes: Lanes
    timeout_ms: int
    """Of calls that bring none; 0: none."""
    idle: Callable[[], bool]
    agent_keeps_up: Callable[[], bool]
    hand_over: Callable[[], None]
    tell_started: Callable[[], None]
    tell: Callable[[Frame], None]

    def came(self, lane: Lane, frame: Frame) -> None:
        """A frame of a client."""
        if frame.kind is Kind.CALL and self._takes(lane, frame):
            self.hand_over()
            return
        if frame.kind is Kind.CANCEL:
            self.tell_started()  # of whatever runs: the agent must know what it is asked to cancel
        self.lanes.pass_on(lane, frame)

    def asked(self, call_id: bytes) -> None:
        """The agent knows nothing of a call that somebody asks for. Says what is here, or that it never came."""
        done = self.book.outcomes.get(call_id)
        if done is not None:
            self.tell(done.frame)
        elif self.book.running is not None and self.book.running.id == call_id:
            self.tell_started()
        elif not self.book.knows(call_id):
            self.book.given_up.append(call_id)
            self.tell(Frame(Kind.UNKNOWN, call_id))

    def _takes(self, lane: Lane, frame: Frame) -> bool:
        book = self.book
        if not self.idle() or book.queue or len(book.outcomes) >= MAX_KEPT_OUTCOMES:
            return False
        if frame.id in book.given_up or not self.agent_keeps_up():
            return False
        timeout_ms = int(frame.meta.get("timeout_ms") or self.timeout_ms)
        return book.offer(QueuedCall(frame.id, 1, timeout_ms, frame.meta, frame.body, [], lane, straight=True))
