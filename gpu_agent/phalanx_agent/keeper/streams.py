"""Streams on their way through a keeper: items up, credits and the reader's leave down.

One item is rank 0's, or with ``returns="all"`` the local ranks' together. Where ranks do not end within half of the
grace after their reader left, they are ended as by a cancellation within the other half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.core.clock import Clock
from phalanx.core.frames import Frame, Kind
from phalanx.core.messages import ErrorInfo
from phalanx.core.sockets import close_fds
from phalanx.core.states import Cause, Outcome
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper import bodies
from phalanx_agent.keeper.calls import CallBook, Reply, reply_bytes
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.merging import Merging
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.telling import Why

LEFT = "left"
"""The name of the timer that runs once the reader has left."""
_UNEVEN_GRACE_MS = 1000


@dataclass(slots=True)
class Streams:
    """``interrupt`` ends the running call and its gang within a grace; ``end`` does so for a reason."""

    config: GangConfig
    ranks: list[RankProcess]
    book: CallBook
    loop: Loop
    clock: Clock
    tell: Callable[[Frame], None]
    interrupt: Callable[[Outcome, int], None]
    end: Callable[[Why, int], None]
    _merging: Merging = field(default_factory=lambda: Merging(0))
    _items: int = 0
    _waits: bool = False
    """For the reader: it has not come, or has not taken what is there."""

    @property
    def signs(self) -> int:
        """Changes as long as items are made, or wait for their reader: such a gang does not hang."""
        return self.clock.monotonic_ms() if self._waits else self._items

    def begin(self) -> None:
        """Another call begins."""
        self._merging.drop()
        self._merging = Merging(len(self.ranks))
        self._waits = self.book.running is not None and bool(self.book.running.meta.get("held"))

    def item(self, rank: RankProcess, frame: Frame) -> None:
        """A rank has made an item."""
        if self.book.running is None or self.book.running.id != frame.id:
            close_fds(frame.fds)
            return
        self._items += 1
        self._waits = bool(frame.meta.get("full"))
        if self.config.function.returns != "all":
            self._pass_on(frame)
            return
        frames = self._merging.add(self._index(rank), frame)
        if frames is not None:
            self._pass_on(_together(frames))
        self._check_even()

    def replied(self, rank: RankProcess, frame: Frame) -> None:
        """A rank's generator has ended."""
        if self.config.function.streams and self.config.function.returns == "all" and not frame.meta.get("closed"):
            self._merging.end(self._index(rank), int(frame.meta.get("items", 0)))
            self._check_even()

    def credit(self, frame: Frame) -> None:
        """The reader has taken items; one that comes early finds its call in the queue."""
        running = self.book.running
        if running is not None and running.id == frame.id:
            self._waits = False
            self._to_ranks(Frame(Kind.CREDIT, frame.id, frame.meta))
            return
        for call in self.book.queue:
            if call.id == frame.id:
                call.meta.pop("held", None)

    def close(self, outcome: Outcome, grace_ms: int) -> None:
        """The reader of the running call has left. ``outcome``: of a call that must be ended for it."""
        patience_ms = grace_ms // 2
        if not patience_ms or self.book.running is None:
            self.interrupt(outcome, grace_ms)
            return
        self._to_ranks(Frame(Kind.CANCEL, self.book.running.id, {"reason": "closed"}))
        now = self.clock.monotonic_ms()
        self.loop.at(LEFT, now + patience_ms, lambda: self.interrupt(outcome, grace_ms - patience_ms))

    def _index(self, rank: RankProcess) -> int:
        return rank.rank - self.config.member.first_rank

    def _pass_on(self, frame: Frame) -> None:
        self.tell(frame)
        close_fds(frame.fds)

    def _to_ranks(self, frame: Frame) -> None:
        for rank in self.ranks:
            if rank.alive:
                rank.channel.send(frame)
                if rank.channel.wants_write:
                    self.loop.want_write(rank.channel.fd, True)

    def _check_even(self) -> None:
        uneven = self._merging.uneven
        if uneven:
            text = f'with returns="all" every rank must yield as many items, but of this node\'s ranks {uneven}'
            error = ErrorInfo(
                cause=Cause.USER_EXCEPTION, type_name="ValueError", message=text, node_id=self.config.node_id
            )
            self.end(Why("uneven items", error=error, cause=Cause.USER_EXCEPTION), _UNEVEN_GRACE_MS)


class OfGang(Protocol):
    """What streams need of their gang."""

    config: GangConfig
    ranks: list[RankProcess]
    book: CallBook
    loop: Loop
    clock: Clock
    tell: Callable[[Frame], None]

    def end(self, why: Why, grace_ms: int) -> None: ...


def streams_of(gang: OfGang, interrupt: Callable[[Outcome, int], None]) -> Streams:
    return Streams(gang.config, gang.ranks, gang.book, gang.loop, gang.clock, gang.tell, interrupt, gang.end)


def _together(frames: list[Frame]) -> Frame:
    """Returns one item of all local ranks, as results of several ranks travel."""
    replies = [Reply(rank, True, f.meta, f.body, f.fds) for rank, f in enumerate(frames)]
    meta = {key: value for key, value in frames[0].meta.items() if key != "fds"}
    meta["parts"] = [reply_bytes(r) for r in replies]
    body, fds, _slots = bodies.result_of(replies, meta, all_parts=True)
    return Frame(Kind.ITEM, frames[0].id, meta, body, fds=fds)
