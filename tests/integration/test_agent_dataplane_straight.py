"""Calls that came past the agent: it answers for them as for any other, and knows when it does not know."""

from __future__ import annotations

import pytest

from phalanx.core.frames import LANE_BITS, Frame, Kind
from phalanx.core.ids import id_text
from phalanx_agent.dataplane.facts import CallBegan, CallEnded, KeeperAttached, KeeperEnded
from tests.support.fake_keeper import FakeKeeper, echo, hold, keep
from tests.support.frame_client import FrameClient
from tests.support.plane import GANG, TestPlane, new_call
from tests.support.wait import wait_until

STRAIGHT = {"straight": True}


@pytest.fixture
def keeper(plane: TestPlane) -> FakeKeeper:
    keeper = plane.open(answer=hold, state=STRAIGHT)
    plane.wait_for(KeeperAttached)
    return keeper


def lane_of(keeper: FakeKeeper) -> int:
    return keeper.wait_for(Kind.LANE)[-1].lane


def say(keeper: FakeKeeper, kind: Kind, call: bytes, flagged: int, /, **meta: object) -> None:
    keeper.say(Frame(kind, call, dict(meta), b"", flagged << LANE_BITS))


def quiet(client: FrameClient) -> None:
    """Nothing stands before the answer to a PING."""
    client.send(Kind.PING, bytes(16))
    client.expect(Kind.PONG)


def test_a_client_hears_whether_the_keeper_takes_calls(plane: TestPlane) -> None:
    plane.open(answer=hold)
    plane.wait_for(KeeperAttached)
    with plane.client(lane=True) as client:
        assert "straight" not in client.welcome.meta, "a keeper of an older version"
    plane.open(gang_id=GANG[:-1] + "1", answer=hold, state=STRAIGHT)
    plane.wait_for(KeeperAttached, 2)
    with plane.client(lane=True, gang_id=GANG[:-1] + "1") as client, plane.client(gang_id=GANG[:-1] + "1") as without:
        assert client.welcome.meta["straight"]
        assert "straight" not in without.welcome.meta


def test_an_outcome_that_has_gone_over_the_lane_is_counted_kept_and_acknowledged(
    plane: TestPlane, keeper: FakeKeeper
) -> None:
    call = new_call()
    with plane.client(lane=True) as client:
        say(keeper, Kind.RESULT, call, lane_of(keeper), busy_ms=4)
        wait_until(lambda: bool(plane.heard(KeeperAttached)), "attached")
        client.send(Kind.ASK, call)
        client.expect(Kind.RESULT, call)
        client.send(Kind.ACK, call)
        wait_until(lambda: call not in keeper.unacknowledged, "the keeper lets go of it")
        quiet(client)
    (direct,) = plane.plane.take_direct().result(5)
    assert (direct.succeeded, direct.busy_ms, direct.user) == (1, 4, "ann")


def test_an_outcome_that_has_not_gone_there_is_sent(plane: TestPlane, keeper: FakeKeeper) -> None:
    call = new_call()
    with plane.client(lane=True) as client:
        say(keeper, Kind.RESULT, call, 0, lane=lane_of(keeper))
        client.expect(Kind.RESULT, call)


def test_one_that_takes_long_becomes_a_logged_call(plane: TestPlane, keeper: FakeKeeper) -> None:
    call = new_call()
    with plane.client(lane=True) as client:
        lane = lane_of(keeper)
        say(keeper, Kind.STARTED, call, lane, busy_ms=100)
        (began,) = plane.wait_for(CallBegan)
        assert (began.direct, began.user) == (True, "ann")
        assert [s.in_flight for s in plane.plane.snapshots().result(5)] == [1]
        say(keeper, Kind.RESULT, call, lane, busy_ms=300)
        client.send(Kind.ACK, call)
        (ended,) = plane.wait_for(CallEnded)
        assert ended.delivered
    assert plane.plane.snapshots().result(5)[0].busy_ms >= 100


def test_what_the_keeper_passes_on_is_the_clients(plane: TestPlane) -> None:
    keeper = plane.open(answer=echo, state=STRAIGHT)
    call = new_call()
    with plane.client(lane=True) as client:
        keeper.say(Frame(Kind.CALL, call, {}, b"x", lane_of(keeper) << LANE_BITS))
        assert client.expect(Kind.RESULT, call).body == b"x"
    assert keeper.calls() == [call]


def test_a_call_of_a_client_that_has_gone_is_not_begun_but_its_cancel_counts(
    plane: TestPlane, keeper: FakeKeeper
) -> None:
    running, late = new_call(), new_call()
    with plane.client(lane=True):
        lane = lane_of(keeper)
    wait_until(lambda: len(keeper.of_kind(Kind.LANE)) == 2, "the lane is being closed")
    say(keeper, Kind.STARTED, running, lane)
    say(keeper, Kind.CALL, late, lane)
    say(keeper, Kind.CANCEL, running, lane)
    assert keeper.wait_for(Kind.CANCEL)[0].id == running
    assert keeper.calls() == []


def test_a_lanes_number_is_free_when_the_keeper_says_so(plane: TestPlane, keeper: FakeKeeper) -> None:
    with plane.client(lane=True):
        first = lane_of(keeper)
    wait_until(lambda: len(keeper.of_kind(Kind.LANE)) == 2, "the lane is being closed")
    with plane.client(lane=True) as other:
        second = keeper.wait_for(Kind.LANE, 3)[-1].lane
        say(keeper, Kind.RESULT, new_call(), 0, lane=first)
        quiet(other)
    wait_until(lambda: len(keeper.of_kind(Kind.LANE)) == 4, "the second too")
    say(keeper, Kind.LANE, bytes(16), first)
    say(keeper, Kind.LANE, bytes(16), second)
    with plane.client(lane=True):
        wait_until(lambda: len(keeper.of_kind(Kind.LANE)) == 5, "a third")
        assert (lane_of(keeper), second) == (first, first + 1)


def test_a_call_that_never_began_goes_back_to_its_client(plane: TestPlane, keeper: FakeKeeper) -> None:
    call = new_call()
    with plane.client(lane=True) as client:
        keeper.say(Frame(Kind.FAILURE, call, {"started": False, "error": {}, "lane": lane_of(keeper)}))
        client.expect(Kind.BUSY, call)
    wait_until(lambda: call not in keeper.unacknowledged, "the keeper lets go of it")


def test_an_acknowledgement_may_come_before_the_outcome(plane: TestPlane, keeper: FakeKeeper) -> None:
    """The client has it from the keeper, and is quicker."""
    call = new_call()
    with plane.client(lane=True) as client:
        lane = lane_of(keeper)
        client.send(Kind.ACK, call)
        quiet(client)
        say(keeper, Kind.RESULT, call, lane)
        wait_until(lambda: call not in keeper.unacknowledged, "the keeper lets go of it")


def test_the_keeper_is_asked_for_what_the_agent_does_not_know(plane: TestPlane, keeper: FakeKeeper) -> None:
    ran, never = new_call(), new_call()
    with plane.client() as client:
        client.send(Kind.ASK, ran)
        assert keeper.wait_for(Kind.ASK)[0].id == ran
        keeper.finish(ran, b"kept")
        assert client.expect(Kind.RESULT, ran).body == b"kept"
        client.send(Kind.ASK, never)
        keeper.wait_for(Kind.ASK, 2)
        say(keeper, Kind.UNKNOWN, never, 0)
        assert client.expect(Kind.UNKNOWN, never).meta["never_ran"]
        client.send(Kind.CALL, never, b"x")
        client.expect(Kind.BUSY, never)


def test_one_that_runs_is_waited_for(plane: TestPlane, keeper: FakeKeeper) -> None:
    call = new_call()
    with plane.client(lane=True), plane.client() as other:
        lane = lane_of(keeper)
        other.send(Kind.ASK, call)
        keeper.wait_for(Kind.ASK)
        say(keeper, Kind.STARTED, call, lane)
        other.expect(Kind.STARTED, call)
        say(keeper, Kind.RESULT, call, lane)
        other.expect(Kind.RESULT, call)


def test_a_cancel_follows_the_question(plane: TestPlane, keeper: FakeKeeper) -> None:
    call = new_call()
    with plane.client() as client:
        client.send(Kind.ASK, call)
        client.send(Kind.CANCEL, call)
        assert keeper.wait_for(Kind.CANCEL)[0].id == call
        assert [k for k in keeper.kinds() if k in (Kind.ASK, Kind.CANCEL)] == [Kind.ASK, Kind.CANCEL]


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_lost_keeper_may_have_run_it(plane: TestPlane, keeper: FakeKeeper, asked_before: bool) -> None:
    call = new_call()
    with plane.client() as client:
        if asked_before:
            client.send(Kind.ASK, call)
            keeper.wait_for(Kind.ASK)
        keeper.die()
        if not asked_before:
            plane.wait_for(KeeperEnded)
            client.send(Kind.ASK, call)
        error = client.expect(Kind.FAILURE, call).meta["error"]
        assert "is gone" in error["message"]


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_gang_that_ended_in_order_has_told_all(plane: TestPlane, keeper: FakeKeeper, asked_before: bool) -> None:
    call = new_call()
    with plane.client() as client:
        if asked_before:
            client.send(Kind.ASK, call)
            keeper.wait_for(Kind.ASK)
        keeper.end()
        keeper.wait_for(Kind.ACK)
        if not asked_before:
            client.send(Kind.ASK, call)
        assert client.expect(Kind.UNKNOWN, call).meta["never_ran"]


def test_a_drained_gang_waits_for_what_is_under_way_on_the_lanes(plane: TestPlane, keeper: FakeKeeper) -> None:
    call = new_call()
    with plane.client(lane=True) as client:
        lane = lane_of(keeper)
        plane.plane.stop_gang(GANG, "idle", 100, drain=True)
        wait_until(lambda: len(keeper.of_kind(Kind.LANE)) == 2, "the lane is being closed")
        say(keeper, Kind.STARTED, call, lane)
        say(keeper, Kind.LANE, bytes(16), lane)
        quiet(client)
        assert not keeper.of_kind(Kind.STOP)
        say(keeper, Kind.RESULT, call, 0)
        client.expect(Kind.RESULT, call)
        keeper.wait_for(Kind.STOP)
        with plane.client(lane=True) as late:
            assert "straight" not in late.welcome.meta


def test_an_idle_gang_is_drained_when_its_lanes_are_closed(plane: TestPlane, keeper: FakeKeeper) -> None:
    with plane.client(lane=True) as client:
        lane = lane_of(keeper)
        plane.plane.stop_gang(GANG, "idle", 100, drain=True)
        wait_until(lambda: len(keeper.of_kind(Kind.LANE)) == 2, "the lane is being closed")
        quiet(client)
        assert not keeper.of_kind(Kind.STOP)
        say(keeper, Kind.LANE, bytes(16), lane)
        keeper.wait_for(Kind.STOP)


def test_a_call_behind_one_of_a_lane_is_not_counted_as_running(plane: TestPlane) -> None:
    keeper = plane.open(answer=keep, state=STRAIGHT)
    first, second = new_call(), new_call()
    with plane.client(lane=True) as client:
        lane = lane_of(keeper)
        client.send(Kind.CALL, second, b"x")
        keeper.wait_for(Kind.CALL)
        say(keeper, Kind.STARTED, first, lane, busy_ms=100)
        (began,) = plane.wait_for(CallBegan)
        say(keeper, Kind.RESULT, first, lane, busy_ms=300)
        say(keeper, Kind.RESULT, second, 0)
        client.expect(Kind.RESULT, second)
    assert began.call_id == id_text("c", first)
