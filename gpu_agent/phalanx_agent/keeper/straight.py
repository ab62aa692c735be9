"""Direct calls that come past the agent: taken where the agent could only say yes, passed on to it where it may not.

The agent's queue stays the only one in which clients wait for each other: a call is taken when it is nobody's turn,
because nothing is here, or only short calls of the same client. The agent hears of it with its outcome, or when it has
run for a while, or when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phalanx.core.frames import SENT_AHEAD, SHORT_CALL_MS, Frame, Kind
from phalanx_agent.keeper.calls import CallBook, QueuedCall
from phalanx_agent.keeper.lanes import Lane, Lanes

MAX_KEPT_OUTCOMES = 512
"""With so many not acknowledged, the agent decides."""
_SMOOTHING = 0.2


@dataclass(slots=True)
class StraightCalls:
    """``idle`` says whether the ranks wait for a call; ``hand_over`` begins the next one that waits."""

    book: CallBook
    lanes: Lanes
    timeout_ms: int
    """Of calls that bring none; 0: none."""
    idle: Callable[[], bool]
    running_ms: Callable[[], int]
    agent_keeps_up: Callable[[], bool]
    hand_over: Callable[[], None]
    tell_started: Callable[[], None]
    tell_of: Callable[[QueuedCall], None]
    """Tells the agent of a call that waits at the rank."""
    tell: Callable[[Frame], None]
    flush: Callable[[], None]
    """Sends outcomes that are held back for a moment."""
    _mean_ms: float = SHORT_CALL_MS
    """Of the last calls that succeeded; until there are some, none is thought short."""

    def __post_init__(self) -> None:
        self.lanes.user = self

    def came(self, lane: Lane, frame: Frame) -> None:
        """A frame of a client."""
        if frame.kind is Kind.CALL and self._takes(lane, frame):
            self.hand_over()
            return
        if frame.kind is Kind.CANCEL and not self._gives_back(frame.id):
            self.tell_started()  # of whatever runs: the agent must know what it is asked to cancel
        self.lanes.pass_on(lane, frame)

    def asked(self, call_id: bytes) -> None:
        """The agent knows nothing of a call that somebody asks for. Says what is here, or that it never came."""
        self.flush()
        done = self.book.outcomes.get(call_id)
        if done is not None:
            self.tell(done.frame)
        elif self.book.running is not None and self.book.running.id == call_id:
            self.tell_started()
        elif not self._gives_back(call_id) and not self.book.knows(call_id):
            self.book.given_up.append(call_id)
            self.tell(Frame(Kind.UNKNOWN, call_id))

    def lane_ends(self, lane: Lane) -> None:
        """What came over it is the agent's from now on: it is told of the call that runs, and gets those that wait."""
        self.flush()
        self.tell_started()
        for call in [c for c in self.book.queue if c.straight and c.lane is lane]:
            self._gives_back(call.id)

    def took(self, busy_ms: int) -> None:
        """Learns from a call that succeeded."""
        self._mean_ms += _SMOOTHING * (busy_ms - self._mean_ms)

    @property
    def short(self) -> bool:
        """Calls take a few milliseconds, as far as is known."""
        return self._mean_ms < SHORT_CALL_MS

    def _takes(self, lane: Lane, frame: Frame) -> bool:
        if not self._is_nobodys_turn(lane) or len(self.book.outcomes) >= MAX_KEPT_OUTCOMES:
            return False
        if frame.id in self.book.given_up or not self.agent_keeps_up():
            return False
        timeout_ms = int(frame.meta.get("timeout_ms") or self.timeout_ms)
        return self.book.offer(
            QueuedCall(frame.id, 1, timeout_ms, frame.meta, frame.body, [], lane, straight=True, told=False)
        )

    def _is_nobodys_turn(self, lane: Lane) -> bool:
        if self.idle():
            return not self.book.queue
        running = self.book.running
        if running is None or not running.straight or not self.short or self.running_ms() >= SHORT_CALL_MS:
            return False
        return len(self.book.queue) < SENT_AHEAD and all(
            c.straight and c.lane is lane for c in (running, *self.book.queue)
        )

    def _gives_back(self, call_id: bytes) -> bool:
        """Passes a call that waits here on to the agent, as if it came now, or tells of it where the rank has it
        already. False where there is none of that id.
        """
        call = next((c for c in self.book.queue if c.straight and c.id == call_id), None)
        if call is None or call.lane is None:
            return False
        if call.given:
            self.tell_of(call)
            return True
        self.book.queue.remove(call)
        self.lanes.pass_on(call.lane, Frame(Kind.CALL, call.id, call.meta, call.body))
        return True
