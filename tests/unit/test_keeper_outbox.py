"""Outcomes go back one by one where somebody waits for each, together where more of the same client follow."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import pytest

from phalanx.core.clock import ManualClock
from phalanx.core.frames import Assembler, Frame, Kind
from phalanx_agent.keeper.calls import CallBook, Outcome, QueuedCall
from phalanx_agent.keeper.lanes import LANE_BYTES, Lane
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.outbox import HELD_MS, TOGETHER, Outbox


@dataclass
class Keeper:
    """A gang's book and outbox, with two clients' lanes."""

    clock: ManualClock = field(default_factory=ManualClock)
    told: list[tuple[Frame, int]] = field(default_factory=list[tuple[Frame, int]])
    soon: list[tuple[Frame, int]] = field(default_factory=list[tuple[Frame, int]])
    short: bool = True

    def __post_init__(self) -> None:
        self.loop = Loop(self.clock)
        self.book = CallBook(1)
        pairs = [socket.socketpair() for _ in range(2)]
        for ours, theirs in pairs:
            ours.setblocking(False)
            theirs.setblocking(False)
        self.clients = [theirs for _, theirs in pairs]
        self.lanes = [Lane(number, ours) for number, (ours, _) in enumerate(pairs, 1)]
        self.outbox = Outbox(
            self.loop,
            self.clock,
            self.book,
            lambda: self.short,
            lambda frame: self.told.append((frame, frame.lane)),
            lambda frame, _more: self.soon.append((frame, frame.lane)),
        )

    def offer(self, number: int, lane: int = 0, *, straight: bool = True) -> None:
        """``lane`` counts from 0."""
        call = QueuedCall(
            bytes([number]) * 16, 1, 0, {}, b"", [], self.lanes[lane], straight=straight, told=not straight
        )
        assert self.book.offer(call)

    def run(self, kind: Kind = Kind.RESULT, body: bytes = b"v") -> None:
        """The next call runs and ends."""
        call = self.book.begin(0)
        assert call is not None
        outcome = Frame(kind, call.id, {}, body)
        self.outbox.deliver(call, outcome)
        self.book.finish(Outcome(outcome))

    def came(self, client: int = 0) -> list[int]:
        """The numbers of the calls whose outcomes the client has got."""
        try:
            return [f.id[0] for f in Assembler().feed(self.clients[client].recv(1 << 20))]
        except BlockingIOError:
            return []


def test_a_lone_call_is_answered_at_once() -> None:
    keeper = Keeper()
    keeper.offer(1)
    keeper.run()
    assert keeper.came() == [1]
    assert [(f.id[0], lane) for f, lane in keeper.soon] == [(1, 1)]


def test_short_calls_with_company_go_together() -> None:
    keeper = Keeper()
    for number in range(TOGETHER + 2):
        keeper.offer(number)
    for _ in range(TOGETHER - 1):
        keeper.run()
    assert keeper.came() == []
    assert keeper.soon == []
    keeper.run()
    assert keeper.came() == list(range(TOGETHER))
    assert [f.id[0] for f, _ in keeper.soon] == list(range(TOGETHER))
    keeper.run()
    assert keeper.came() == []
    keeper.run()
    assert keeper.came() == [TOGETHER, TOGETHER + 1], "the last has no company"


def test_nothing_is_held_for_longer_than_a_moment() -> None:
    keeper = Keeper()
    keeper.offer(1)
    keeper.offer(2)
    keeper.run()
    keeper.book.begin(0)  # and takes its time
    assert keeper.came() == []
    keeper.clock.advance(HELD_MS)
    keeper.loop.turn()
    assert keeper.came() == [1]


def test_calls_that_are_not_short_wait_for_no_company() -> None:
    keeper = Keeper(short=False)
    keeper.offer(1)
    keeper.offer(2)
    keeper.run()
    assert keeper.came() == [1]


def test_another_clients_call_is_no_company() -> None:
    keeper = Keeper()
    keeper.offer(1, 0)
    keeper.offer(2, 1)
    keeper.run()
    assert keeper.came(0) == [1]


def test_a_failure_goes_by_the_agent_and_before_it_what_was_held() -> None:
    keeper = Keeper()
    keeper.offer(1)
    keeper.offer(2)
    keeper.run()
    keeper.run(Kind.FAILURE)
    assert keeper.came() == [1]
    assert [(f.kind, f.id[0], f.meta, lane) for f, lane in keeper.told] == [(Kind.FAILURE, 2, {"lane": 1}, 0)]


def test_nothing_is_called_gone_that_nobody_took() -> None:
    keeper = Keeper()
    for number in range(3):
        keeper.offer(number)
    keeper.run()
    keeper.run()
    keeper.clients[0].close()
    keeper.run()
    assert keeper.soon == []
    assert [(f.id[0], f.meta, lane) for f, lane in keeper.told] == [(n, {"lane": 1}, 0) for n in range(3)]


def test_what_together_is_more_than_a_lane_takes_whole_goes_in_parts() -> None:
    keeper = Keeper()
    for number in range(4):
        keeper.offer(number)
    for _ in range(3):
        keeper.run(body=bytes(LANE_BYTES // 2 - 100))
    assert keeper.came() == [0, 1]
    keeper.outbox.flush()
    assert keeper.came() == [2]


def test_a_new_agent_is_not_told_of_lanes_it_does_not_know() -> None:
    keeper = Keeper()
    keeper.offer(1)
    keeper.offer(2)
    keeper.run()
    keeper.outbox.attached()
    assert keeper.came() == [1]
    assert keeper.soon == keeper.told == []


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with others"])
def test_calls_that_came_through_the_agent_go_back_over_the_lane_only_when_alone(others: int) -> None:
    keeper = Keeper()
    for number in range(1 + others):
        keeper.offer(number, straight=False)
    keeper.run()
    assert keeper.came() == ([] if others else [0])
    assert [lane for _, lane in keeper.told] == [0 if others else 1]
