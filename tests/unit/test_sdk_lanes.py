"""Outcomes over a lane: they count like any other, and a lane that breaks costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.frames import Frame, encode_head
from phalanx.pending import Pending
from tests.support.fake_gang import FakeGang, echo
from tests.support.gang_connection import Make, call, fake_gangs, result
from tests.support.wait import wait_until


@pytest.fixture
def make() -> Iterator[Make]:
    with fake_gangs(lanes=True) as made:
        yield made


def over_the_lane(gang: FakeGang, frame: Frame) -> list[Frame]:
    """The agent itself says nothing."""
    assert gang.lane is not None
    for reply in echo(gang, frame):
        gang.lane.sendall(encode_head(reply) + reply.body)
    return []


def test_an_outcome_may_come_over_the_lane(make: Make) -> None:
    _, connection = make(over_the_lane)
    assert [result(connection, call(connection, i)) for i in range(3)] == [0, 1, 2]


def test_outcomes_over_the_lane_wake_callbacks_and_bounded_waits(make: Make) -> None:
    _, connection = make(over_the_lane)
    done: list[Pending] = []
    pending = call(connection, 1)
    connection.when_done(pending, done.append)
    wait_until(lambda: done == [pending], "the callback was called")
    second = call(connection, 2)
    assert connection.wait(second, until_ms=SystemClock().monotonic_ms() + 30_000)


def test_both_ways_serve_at_once(make: Make) -> None:
    def by_turns(gang: FakeGang, frame: Frame) -> list[Frame]:
        return over_the_lane(gang, frame) if len(gang.seen) % 2 else echo(gang, frame)

    _, connection = make(by_turns)
    wrong: list[object] = []

    def work(n: int) -> None:
        wrong.extend((n, i) for i in range(100) if result(connection, call(connection, (n, i))) != (n, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert not any(t.is_alive() for t in threads)


@pytest.mark.parametrize("last_words", [b"", b"\x01\x05", b"no frame at all, whatever it is: 32 bytes and more"])
def test_a_lane_that_ends_or_talks_nonsense_is_given_up(make: Make, last_words: bytes) -> None:
    def breaks(gang: FakeGang, frame: Frame) -> list[Frame]:
        if gang.lane is not None:
            gang.lane.sendall(last_words)
            gang.lane.close()
            gang.lane = None
        return echo(gang, frame)

    _, connection = make(breaks)
    assert [result(connection, call(connection, i)) for i in range(3)] == [0, 1, 2]
    assert connection.open


def test_what_the_lane_brought_before_the_end_of_the_connection_counts(make: Make) -> None:
    def last(gang: FakeGang, frame: Frame) -> list[Frame]:
        over_the_lane(gang, frame)
        gang.drop_clients()
        return []

    _, connection = make(last)
    assert result(connection, call(connection, 7)) == 7


def test_closing_ends_a_wait_on_both(make: Make) -> None:
    _, connection = make(lambda _gang, _frame: [])
    pending = call(connection, 1)
    waiting = threading.Thread(target=connection.wait, args=(pending,))
    waiting.start()
    connection.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert pending.lost
