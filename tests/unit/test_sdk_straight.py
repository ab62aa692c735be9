"""Calls that leave over the lane: one at a time, never lost with it, and cancelled behind themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from phalanx.core.frames import SENT_AHEAD, Frame, Kind
from phalanx.core.serialization import pack_arguments
from phalanx.dataplane import STRAIGHT_BYTES
from tests.support.fake_gang import FakeGang, echo
from tests.support.gang_connection import Make, call, fake_gangs, result
from tests.support.wait import wait_until


@pytest.fixture
def make() -> Iterator[Make]:
    with fake_gangs(straight=True) as made:
        yield made


def silent(_gang: FakeGang, _frame: Frame) -> list[Frame]:
    return []


def ids(frames: list[Frame], kind: Kind) -> list[bytes]:
    return [f.id for f in frames if f.kind is kind]


def test_calls_one_after_the_other_leave_over_the_lane(make: Make) -> None:
    gang, connection = make(echo)
    assert [result(connection, call(connection, i)) for i in range(3)] == [0, 1, 2]
    assert len(ids(gang.seen_straight, Kind.CALL)) == 3
    assert not ids(gang.seen, Kind.CALL)


def test_further_calls_at_the_same_time_go_to_the_agent(make: Make) -> None:
    gang, connection = make(silent)
    first, second = call(connection, 1), call(connection, 2)
    wait_until(lambda: ids(gang.seen, Kind.CALL), "the second comes")
    assert ids(gang.seen, Kind.CALL) == [second.id]
    wait_until(lambda: ids(gang.seen_straight, Kind.CALL), "the first comes")
    assert ids(gang.seen_straight, Kind.CALL) == [first.id]


@pytest.mark.parametrize("large", [STRAIGHT_BYTES + 1, 4 << 20])
def test_what_a_lane_might_not_take_whole_goes_to_the_agent(make: Make, large: int) -> None:
    gang, connection = make(echo)
    assert len(result(connection, call(connection, bytes(large)))) == large
    assert not gang.seen_straight


def test_of_calls_that_are_sent_together_one_leaves_over_the_lane(make: Make) -> None:
    gang, connection = make(echo)
    first, second = call(connection, 1, flush=False), call(connection, 2, flush=False)
    assert [result(connection, each) for each in (first, second)] == [1, 2]
    assert (ids(gang.seen_straight, Kind.CALL), ids(gang.seen, Kind.CALL)) == ([first.id], [second.id])


def test_a_cancel_follows_its_call(make: Make) -> None:
    gang, connection = make(silent)
    first, second = call(connection, 1), call(connection, 2)
    connection.cancel(first.id)
    connection.cancel(second.id)
    wait_until(lambda: ids(gang.seen, Kind.CANCEL) and ids(gang.seen_straight, Kind.CANCEL), "both come")
    assert [f.kind for f in gang.seen_straight] == [Kind.CALL, Kind.CANCEL]
    assert ids(gang.seen, Kind.CANCEL) == [second.id]


def test_when_the_lane_ends_the_agent_is_asked_for_what_went_over_it(make: Make) -> None:
    gang, connection = make(silent)
    straight, other = call(connection, 1), call(connection, 2)
    gang.asked[straight.id] = echo(gang, Frame(Kind.CALL, straight.id, body=pack_arguments((1,), {}).tobytes()))[0]
    gang.end_lane()
    assert result(connection, straight) == 1
    assert ids(gang.seen, Kind.ASK) == [straight.id]
    assert not other.done
    assert connection.open


def test_without_the_lane_calls_go_to_the_agent(make: Make) -> None:
    gang, connection = make(echo)
    assert result(connection, call(connection, 1)) == 1
    gang.end_lane()
    assert [result(connection, call(connection, i)) for i in range(3)] == [0, 1, 2]
    assert len(ids(gang.seen_straight, Kind.CALL)) == 1


def test_thanks_are_sent_now_and_then(make: Make) -> None:
    gang, connection = make(echo)
    for i in range(300):
        result(connection, call(connection, i))
    wait_until(lambda: len(ids(gang.seen, Kind.ACK)) > 100, "most are acknowledged")


def test_short_calls_leave_together_up_to_what_a_keeper_takes(make: Make) -> None:
    gang, connection = make(silent)
    calls = [call(connection, i, flush=False, short=True) for i in range(SENT_AHEAD + 3)]
    assert not gang.seen_straight
    connection.flush()
    wait_until(lambda: len(ids(gang.seen, Kind.CALL)) == 3, "the rest comes to the agent")
    wait_until(lambda: len(ids(gang.seen_straight, Kind.CALL)) == SENT_AHEAD, "the others come")
    assert ids(gang.seen_straight, Kind.CALL) == [c.id for c in calls[:SENT_AHEAD]]


def test_what_the_lane_does_not_take_goes_to_the_agent_in_order(make: Make) -> None:
    gang, connection = make(echo)
    assert result(connection, call(connection, 0)) == 0
    waiting = [call(connection, i, flush=False, short=True) for i in (1, 2)]
    gang.end_lane()
    assert [result(connection, each) for each in waiting] == [1, 2]
    assert ids(gang.seen, Kind.CALL) == [each.id for each in waiting]


def test_a_cancel_leaves_behind_calls_that_were_not_sent_yet(make: Make) -> None:
    gang, connection = make(silent)
    waiting = call(connection, 1, flush=False, short=True)
    connection.cancel(waiting.id)
    wait_until(lambda: len(gang.seen_straight) == 2, "both come")
    assert [f.kind for f in gang.seen_straight] == [Kind.CALL, Kind.CANCEL]
