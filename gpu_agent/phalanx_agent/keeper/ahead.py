"""Calls handed to a rank before the one that it runs has ended, so that neither side waits to be woken for each.

Only for a single rank, and only short direct calls of one client. After a call that succeeded the rank goes on by
itself; after one that failed it passes over what it has been given, and is given it again. Before each such call it
writes a boundary into its output, which tells apart what belongs to which, whenever it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from phalanx.core.frames import LANE_BITS, Frame, Kind, encode_head
from phalanx.core.sockets import Part
from phalanx.core.states import Outcome
from phalanx_agent.keeper import bodies
from phalanx_agent.keeper.calls import QueuedCall

if TYPE_CHECKING:
    from phalanx_agent.keeper.gang import Gang

AT_ONCE = 8
_FEW = 1
"""With more than so many at the rank, no further ones are given: they go together later."""
_MAX_BODY_BYTES = 4096
_TOO_LATE_MS = 100
"""A call that had begun when it was withdrawn is interrupted if it runs for so long; most end by themselves."""


@dataclass(slots=True)
class Ahead:
    """Of one gang on this node. ``cancels``: asked for while the call waited at the rank."""

    gang: Gang
    cancels: dict[bytes, Frame] = field(default_factory=dict[bytes, Frame])
    _went_on: set[bytes] = field(default_factory=set[bytes])
    """Calls that did not run here any more when the rank said that it goes on after them: the gang's end has begun."""

    def give(self) -> None:
        """Hands over what waits behind the running call, as far as that may be done."""
        queue, rank = self.gang.book.queue, self.gang.ranks[0]
        enough = len(queue) > _FEW and queue[_FEW].given
        if not queue or queue[-1].given or enough or not self._may_be_given():
            return
        parts: list[Part] = []
        for call in islice(queue, AT_ONCE):
            if not call.straight or call.told or len(call.body) > _MAX_BODY_BYTES:
                break
            if not call.given:
                call.given = True
                parts += [encode_head(bodies.for_ranks(call, ahead=True)), call.body]
        rank.channel.send_encoded(b"".join(parts))
        if rank.channel.wants_write:
            self.gang.loop.want_write(rank.channel.fd, True)

    def _may_be_given(self) -> bool:
        gang, config = self.gang, self.gang.config
        running = gang.book.running
        return (
            config.world_size == 1
            and not config.function.streams
            and not gang.holding.wanted_ms
            and gang.phase == "busy"
            and running is not None
            and running.straight
            and gang.straight.short
            and not gang.leftovers.has_some(gang.ranks[0])
        )

    def begins(self, call: QueuedCall) -> None:
        """It is the running one from now on, and the rank has it already."""
        for pipe in self.gang.ranks[0].pipes:
            pipe.passes_boundary(self.gang.spool)
        wanted = self.cancels.get(call.id)
        if wanted is not None:
            due = self.gang.clock.monotonic_ms() + _TOO_LATE_MS
            self.gang.loop.at("withdrawn", due, lambda: self.gang.from_agent(wanted))

    def withdraw(self, frame: Frame) -> None:
        """A CANCEL of a call that waits at the rank: it passes over it, or has begun it a moment ago."""
        self.cancels[frame.id] = frame
        self.gang.send_to_ranks(Frame(Kind.CANCEL, frame.id))

    def withdrawn(self, call: QueuedCall) -> Outcome:
        """The rank has passed over ``call``. Returns how it is to be said to have ended."""
        frame = self.cancels.pop(call.id)
        return Outcome.TIMED_OUT if frame.meta.get("reason") == "timed_out" else Outcome.CANCELLED

    def goes_on(self, call: QueuedCall) -> bool:
        """``call`` has succeeded: says whether the rank has the next one already. Reads its output to the end."""
        queue = self.gang.book.queue
        goes_on = bool(queue) and queue[0].given
        self.read_output(call, goes_on=goes_on)
        return goes_on

    def read_output(self, call: QueuedCall, *, goes_on: bool = False) -> None:
        """Reads what ``call`` wrote, up to the next boundary. Otherwise the loop has done so before its answer."""
        self.cancels.pop(call.id, None)  # it has ended before it could be withdrawn
        if not call.given and not goes_on:
            return
        for pipe in self.gang.ranks[0].pipes:
            if pipe.fd >= 0:
                pipe.drain(self.gang.spool)

    def over(self) -> None:
        """Nothing begins any more."""
        for rank in self.gang.ranks:
            for pipe in rank.pipes:
                pipe.passes_all(self.gang.spool)

    def take_back(self) -> None:
        """The rank passes over what it has: a call has failed."""
        cancels, self.cancels = self.cancels, {}
        for call in self.gang.book.queue:
            call.given = False
        for frame in cancels.values():
            self.gang.from_agent(frame)

    def has(self, call_id: bytes) -> bool:
        """Says whether the call waits at the rank."""
        return any(c.given and c.id == call_id for c in self.gang.book.queue)

    def tell_of(self, call: QueuedCall) -> None:
        """The agent must know it: it cannot be given back."""
        if not call.told:
            call.told = True
            flags = call.lane.number << LANE_BITS if call.lane is not None else 0
            meta = {"waits": True, "timeout_ms": call.timeout_ms}
            self.gang.tell(Frame(Kind.STARTED, call.id, meta, flags=flags))

    def heard(self, frame: Frame) -> None:
        """The rank's answer to a call that is not the running one."""
        if self.has(frame.id) and (frame.kind is Kind.RESULT or frame.meta.get("withdrawn")):
            self._went_on.add(frame.id)

    def begun_unseen(self) -> list[QueuedCall]:
        """At the gang's end: calls that the rank may have begun, each because it had succeeded with the one before."""
        begun: list[QueuedCall] = []
        book = self.gang.book
        went_on = book.running is not None and any(reply.ok for reply in book.replies.values())
        while went_on and book.queue and book.queue[0].given:
            begun.append(book.queue.popleft())
            went_on = begun[-1].id in self._went_on
        return begun
