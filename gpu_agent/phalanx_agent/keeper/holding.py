"""A gang that is held after the failure of a call, for people to look at: the caller has its failure, the ranks stay.

Ranks that raised have unwound and wait; the others go on to their next collective and wait there. Nothing new begins.
It ends at its time, when it is told to, or when no rank is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.states import Cause, Outcome, Phase
from phalanx_agent.keeper import closing
from phalanx_agent.keeper.telling import Why

if TYPE_CHECKING:
    from phalanx_agent.keeper.gang import Gang

_NOT_HELD = (Cause.INFRASTRUCTURE, Cause.CANCELLED, Cause.PREEMPTED)


@dataclass(slots=True)
class Holding:
    """Of one gang on this node. ``call``: whose failure it is held for."""

    gang: Gang
    call: bytes = b""
    replied: dict[int, bool] = field(default_factory=dict[int, bool])
    """The ranks that run no user code any more, and whether they ended well."""
    _until_ms: int = 0
    _asked: bytes = b""
    """Another node wants it, and said so before this one had made up its mind."""
    _refused: bool = False

    @property
    def on(self) -> bool:
        return bool(self.call) and not self.gang.ending.begun

    @property
    def wanted_ms(self) -> int:
        return int(self.gang.config.function.limits.hold_on_failure_s * 1000)

    def takes(self, why: Why) -> bool:
        """Says whether the gang is held instead of ended, and if so holds it."""
        call = self._call_of(why)
        if not self.wanted_ms or not call or self.call or not (self._is_watched() or len(self.gang.config.members) > 1):
            return False
        self._begin(call, why)
        return True

    def heard_of(self, why: Why) -> None:
        """An end was asked for that is not the last word: all that counts of it is whether the gang is to be held."""
        self._asked, self._refused = why.hold, not why.hold

    def _call_of(self, why: Why) -> bytes:
        """Returns whose failure it is; empty where nobody wants to look at it. A victim's is held for the culprit's
        sake, whom another node knows."""
        running, asked = self.gang.book.running, why.hold or self._asked
        if self._refused or why.error is None:
            return b"" if self._refused else asked
        victim = why.peer and len(self.gang.config.members) > 1
        if why.outcome is Outcome.CANCELLED or (why.cause in _NOT_HELD and not victim):
            return b""
        return running.id if running is not None else asked

    def _begin(self, call: bytes, why: Why) -> None:
        gang, now = self.gang, self.gang.clock.monotonic_ms()
        self.call = call
        self.replied = {rank: reply.ok for rank, reply in gang.book.replies.items()}
        self._until_ms = now + self.wanted_ms
        gang.why = why
        gang.freeze()
        gang.lanes.close_all()
        gang.counters.enter(Phase.DEBUG, now)
        self._tell()
        closing.fail_running(gang, now)
        closing.fail_queued(gang)
        gang.spool.end(complete=False)
        gang.loop.at("hold", self._until_ms, lambda: gang.end(why, 0))

    def _tell(self) -> None:
        self.gang.tell(Frame(Kind.RANK, NO_ID, {"rank": -1, "event": "paused", **self.meta()}))

    def meta(self) -> dict[str, Any]:
        """Returns what the agent is told."""
        if not self.on:
            return {}
        left = max(0, self._until_ms - self.gang.clock.monotonic_ms())
        return {"held": self.call.hex(), "held_ms": left}

    def heard(self, rank: int, frame: Frame) -> None:
        """A rank's answer to the call whose failure was told before."""
        if frame.id == self.call:
            self.replied[rank] = frame.kind is Kind.RESULT

    def rank_gone(self) -> None:
        """Nobody is left to look at."""
        if self.on and not self._is_watched() and len(self.gang.config.members) == 1:
            assert self.gang.why is not None
            self.gang.end(self.gang.why, 0)

    def _is_watched(self) -> bool:
        return any(rank.alive for rank in self.gang.ranks)
