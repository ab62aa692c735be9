"""The data plane with one node: tickets, direct and durable calls, outcomes, duplicates, memory. Real sockets."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import id_text
from phalanx.core.states import Outcome
from phalanx_agent.dataplane.facts import (
    CallBegan,
    CallEnded,
    CallTurnedAway,
    KeeperAttached,
    KeeperEnded,
    RankSaid,
)
from phalanx_agent.dataplane.lead import REPORT_AFTER_MS
from tests.support.fake_keeper import echo, hold, keep
from tests.support.frame_client import FrameClient
from tests.support.plane import GANG, KEY, TestPlane, new_call
from tests.support.wait import wait_until


@pytest.mark.parametrize("tls", [False, True])
def test_a_direct_call_gets_its_result(plane: TestPlane, tls: bool) -> None:
    keeper = plane.open()
    with plane.client(tls=tls) as client:
        call = new_call()
        client.send(Kind.CALL, call, b"args", timeout_ms=0)
        assert client.expect(Kind.RESULT, call).body == b"args"
        client.send(Kind.ACK, call)
        assert keeper.wait_for(Kind.ACK)[0].id == call


@pytest.mark.parametrize("tls", [False, True])
def test_large_bodies_arrive_whole_in_both_directions(plane: TestPlane, tls: bool) -> None:
    plane.open()
    body = bytes(range(256)) * 20_000
    with plane.client(tls=tls) as client:
        call = new_call()
        client.send(Kind.CALL, call, body)
        assert client.expect(Kind.RESULT, call).body == body


def test_memory_of_a_client_is_passed_on_and_its_slot_comes_back(plane: TestPlane) -> None:
    keeper = plane.open()
    with plane.client() as client:
        call = new_call()
        client.send_memory(Kind.CALL, call, b"m" * 2_000_000, slot=5)
        answer = client.expect(Kind.RESULT, call)
        assert answer.meta["released"] == [5]
        assert keeper.bodies[call] == b"m" * 2_000_000


def test_a_result_in_memory_is_read_out_for_a_client_over_tls(plane: TestPlane) -> None:
    import os

    fd = os.memfd_create("result")
    os.write(fd, b"r" * 1_500_000)

    def in_memory(frame: Frame) -> list[Frame]:
        meta = {"busy_ms": 1, "fds": [{"size": 1_500_000, "slot": 3}]}
        return [Frame(Kind.RESULT, frame.id, meta, fds=[fd])]

    keeper = plane.open(answer=in_memory)
    with plane.client(tls=True) as client:
        call = new_call()
        client.send(Kind.CALL, call)
        assert client.expect(Kind.RESULT, call).body == b"r" * 1_500_000
        assert keeper.wait_for(Kind.RELEASE)[0].id == call
    os.close(fd)


@pytest.mark.parametrize(
    ("ticket", "words"),
    [
        ({"expires_wall_ms": 1}, "expired"),
        ({"node_id": "n9"}, "for node n9"),
        ({"kind": "logs"}, "does not open"),
        ({"gang_id": id_text("g", b"x" * 16)}, "is not on node"),
    ],
)
def test_a_ticket_that_does_not_fit_is_refused(plane: TestPlane, ticket: dict[str, Any], words: str) -> None:
    plane.open()
    with FrameClient(plane.directory / "agent.sock") as client:
        fields: dict[str, Any] = {"gang_id": GANG, **ticket}
        answer = client.hello(KEY, **fields)
        assert answer.kind is Kind.REFUSED
        assert words in answer.meta["error"]


def test_a_ticket_of_another_key_is_refused(plane: TestPlane) -> None:
    plane.open()
    with FrameClient(plane.directory / "agent.sock") as client:
        assert client.hello(b"other", gang_id=GANG).kind is Kind.REFUSED


def test_a_call_without_hello_is_refused(plane: TestPlane) -> None:
    keeper = plane.open()
    with FrameClient(plane.directory / "agent.sock") as client:
        client.send(Kind.CALL, new_call(), b"x")
        client.expect(Kind.REFUSED)
    assert not keeper.calls()


def test_revoking_a_token_closes_its_connections_and_refuses_its_tickets(plane: TestPlane) -> None:
    plane.open()
    with plane.client(token_id="t1") as client, plane.client(token_id="t2") as other:
        plane.plane.revoke("t1")
        assert client.is_closed()
        other.send(Kind.PING)
        other.expect(Kind.PONG)
    with FrameClient(plane.directory / "agent.sock") as again:
        assert again.hello(KEY, gang_id=GANG, token_id="t1").kind is Kind.REFUSED


def test_bytes_that_are_no_frames_close_only_their_own_connection(plane: TestPlane) -> None:
    plane.open()
    with plane.client() as good, plane.client() as bad:
        bad.send_raw(b"\xff" * 64)
        assert bad.is_closed()
        call = new_call()
        good.send(Kind.CALL, call, b"x")
        good.expect(Kind.RESULT, call)


def test_a_direct_call_that_lasts_is_reported_and_its_delivery_as_well(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    call = new_call()
    with plane.client() as client:
        client.send(Kind.CALL, call, b"x")
        (began,) = plane.wait_for(CallBegan)
        assert began.direct
        assert (began.attempt, began.fence, began.user) == (1, 0, "ann")
        keeper.finish(call, b"y")
        client.expect(Kind.RESULT, call)
        client.send(Kind.ACK, call)
        (ended,) = plane.wait_for(CallEnded)
        assert ended.delivered
        assert ended.body == b""


def test_a_direct_call_that_never_began_is_not_reported_however_long_it_is_at_the_keeper(plane: TestPlane) -> None:
    """Were it, the control plane would hold the end of its gang against it, though it goes the durable way."""
    keeper = plane.open(answer=keep)
    call, clock = new_call(), SystemClock()
    with plane.client() as client:
        client.send(Kind.CALL, call, b"x")
        keeper.wait_for(Kind.CALL)
        until_ms = clock.monotonic_ms() + 2 * REPORT_AFTER_MS
        wait_until(lambda: clock.monotonic_ms() > until_ms, "twice the time after which it would be reported")
        keeper.say(Frame(Kind.FAILURE, call, {"outcome": "failed", "started": False, "error": {}}))
        client.expect(Kind.BUSY, call)
    assert not plane.heard(CallBegan)


def test_a_reported_call_whose_client_is_gone_is_stored_instead(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    call = new_call()
    with plane.client() as client:
        client.send(Kind.CALL, call, b"x")
        plane.wait_for(CallBegan)
    keeper.finish(call, b"y")
    (ended,) = plane.wait_for(CallEnded)
    assert not ended.delivered
    assert ended.body == b"y"


def test_short_direct_calls_are_counted_together(plane: TestPlane) -> None:
    plane.open()
    with plane.client() as client:
        for _ in range(5):
            call = new_call()
            client.send(Kind.CALL, call, b"x")
            client.expect(Kind.RESULT, call)
    (report,) = plane.plane.take_direct().result(5)
    assert (report.succeeded, report.failed, report.user) == (5, 0, "ann")
    assert plane.plane.take_direct().result(5) == []
    assert not plane.heard(CallBegan)


def test_a_durable_call_is_started_finished_and_forgotten_once_it_is_stored(plane: TestPlane) -> None:
    keeper = plane.open()
    call = new_call()
    assert plane.offer(call, b"args", attempt=2)
    (ended,) = plane.wait_for(CallEnded)
    assert (ended.outcome, ended.body, ended.attempt, ended.fence) == (Outcome.SUCCEEDED, b"args", 2, 8)
    assert not plane.wait_for(CallBegan)[0].direct
    assert not keeper.of_kind(Kind.ACK)
    plane.plane.acknowledge(GANG, ended.call_id, 2)
    assert keeper.wait_for(Kind.ACK)[0].id == call


def test_an_offer_repeated_changes_nothing(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    call = new_call()
    plane.offer(call)
    plane.offer(call)
    keeper.wait_for(Kind.CALL)
    keeper.finish(call)
    plane.wait_for(CallEnded)
    plane.offer(call)
    plane.wait_for(CallEnded, 2)
    assert keeper.calls() == [call]


def test_a_new_attempt_of_a_finished_call_runs(plane: TestPlane) -> None:
    keeper = plane.open()
    call = new_call()
    plane.offer(call, attempt=1)
    plane.wait_for(CallEnded)
    plane.offer(call, attempt=2)
    assert plane.wait_for(CallEnded, 2)[1].attempt == 2
    assert keeper.calls() == [call, call]


def test_an_offer_that_comes_again_after_the_outcome_was_stored_runs_nothing(plane: TestPlane) -> None:
    keeper = plane.open()
    call = new_call()
    plane.offer(call)
    plane.wait_for(CallEnded)
    plane.plane.acknowledge(GANG, id_text("c", call), 1)
    assert plane.offer(call)
    assert plane.offer(call, attempt=2)
    plane.wait_for(CallEnded, 2)
    assert keeper.calls() == [call, call]


def test_an_offer_that_comes_after_its_cancel_runs_nothing(plane: TestPlane) -> None:
    keeper = plane.open()
    call, other = new_call(), new_call()
    assert plane.plane.cancel(GANG, id_text("c", call), 1000, fence=7).result(5) is False
    plane.offer(call)
    plane.offer(other)
    plane.wait_for(CallEnded)
    assert keeper.calls() == [other]


def test_an_offer_for_a_gang_that_is_not_here_is_not_taken(plane: TestPlane) -> None:
    assert not plane.offer(new_call(), gang_id="g-unknown")


def test_calls_run_one_at_a_time_and_turn_by_turn_between_clients(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    mine = [new_call() for _ in range(3)]
    theirs = new_call()
    for call in mine:
        plane.offer(call, queue_key="user ann")
    plane.offer(theirs, queue_key="user bob")
    keeper.wait_for(Kind.CALL)
    assert keeper.calls() == [mine[0]]
    for done in (1, 2, 3):
        keeper.finish(keeper.calls()[done - 1])
        keeper.wait_for(Kind.CALL, done + 1)
    assert [call for call in keeper.calls() if call != theirs] == mine
    assert keeper.calls().index(theirs) in (1, 2)


def test_a_failure_carries_its_error_and_pickled_exception(plane: TestPlane) -> None:
    def failing(frame: Frame) -> list[Frame]:
        error = {"cause": "user_exception", "type_name": "E", "message": "boom", "rank": 0}
        meta = {"outcome": "failed", "error": error, "busy_ms": 3}
        return [Frame(Kind.FAILURE, frame.id, meta, b"pickled")]

    plane.open(answer=failing)
    call = new_call()
    plane.offer(call)
    (ended,) = plane.wait_for(CallEnded)
    assert ended.outcome is Outcome.FAILED
    assert (ended.error.type_name, ended.error.pickled, ended.busy_ms) == ("E", b"pickled", 3)


def test_cancelling_a_queued_call_takes_it_back_at_once(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    running, queued = new_call(), new_call()
    plane.offer(running)
    plane.offer(queued)
    assert plane.plane.cancel(GANG, id_text("c", queued), 1000).result(5)
    (ended,) = plane.wait_for(CallEnded)
    assert ended.outcome is Outcome.CANCELLED
    keeper.wait_for(Kind.CALL)
    assert keeper.calls() == [running]


def test_cancelling_a_running_call_asks_the_keeper_with_its_grace(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    call = new_call()
    plane.offer(call)
    keeper.wait_for(Kind.CALL)
    assert plane.plane.cancel(GANG, id_text("c", call), 1500).result(5)
    (asked,) = keeper.wait_for(Kind.CANCEL)
    assert (asked.id, asked.meta) == (call, {"reason": "cancelled", "grace_ms": 1500})
    keeper.fail(call, outcome="cancelled", cause="cancelled")
    assert plane.wait_for(CallEnded)[0].outcome is Outcome.CANCELLED


def test_a_call_over_its_time_limit_is_ended_when_the_keeper_does_not(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    call = new_call()
    plane.offer(call, timeout_ms=100)
    (asked,) = keeper.wait_for(Kind.CANCEL)
    assert asked.meta["reason"] == "timed_out"
    keeper.fail(call, cause="user_exception", message="interrupted")
    assert plane.wait_for(CallEnded)[0].outcome is Outcome.TIMED_OUT


def test_a_draining_gang_finishes_what_runs_and_turns_the_rest_away(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    running, queued, late = new_call(), new_call(), new_call()
    plane.offer(running)
    plane.offer(queued)
    keeper.wait_for(Kind.CALL)
    plane.plane.stop_gang(GANG, "scale down", 1000, drain=True)
    assert plane.wait_for(CallTurnedAway)[0].call_id == id_text("c", queued)
    with plane.client() as client:
        client.send(Kind.CALL, late)
        assert client.expect(Kind.BUSY, late).meta["draining"]
    assert not keeper.of_kind(Kind.STOP)
    keeper.finish(running)
    plane.wait_for(CallEnded)
    keeper.wait_for(Kind.STOP)


def test_a_call_that_comes_after_the_ranks_have_ended_is_turned_away(plane: TestPlane) -> None:
    keeper = plane.open()
    with plane.client() as client:
        keeper.end(error={"message": "rank 1 was killed", "signal": 9}, clean=False)
        plane.wait_for(KeeperEnded)
        late = new_call()
        client.send(Kind.CALL, late)
        client.expect(Kind.BUSY, late)


def test_a_client_is_told_busy_when_the_wait_would_be_long(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    with plane.client() as first, plane.client() as second:
        running = new_call()
        first.send(Kind.CALL, running)
        keeper.wait_for(Kind.CALL)
        plane.wait_for(CallBegan)
        wait_until(lambda: _is_busy(second), "a second client is told BUSY", 5)
    assert keeper.calls() == [running]


def _is_busy(client: FrameClient) -> bool:
    call = new_call()
    client.send(Kind.CALL, call)
    client.send(Kind.PING)
    frame = client.receive()
    if frame.kind is Kind.PONG:
        client.send(Kind.CANCEL, call)
        client.expect(Kind.FAILURE, call)
        return False
    client.expect(Kind.PONG)
    return frame.kind is Kind.BUSY


def test_a_keeper_that_dies_fails_the_running_call_and_returns_the_others(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    running, queued = new_call(), new_call()
    plane.offer(running)
    plane.offer(queued)
    keeper.wait_for(Kind.CALL)
    keeper.die()
    (ended,) = plane.wait_for(CallEnded)
    assert ended.error.cause == "infrastructure"
    assert plane.wait_for(CallTurnedAway)[0].call_id == id_text("c", queued)
    (gone,) = plane.wait_for(KeeperEnded)
    assert gone.lost
    assert plane.events.index(ended) < plane.events.index(gone)


def test_calls_that_a_keeper_never_began_are_returned_not_failed(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    call = new_call()
    plane.offer(call)
    keeper.wait_for(Kind.CALL)
    meta = {"outcome": "failed", "error": {"cause": "infrastructure"}, "busy_ms": 0, "started": False}
    keeper.say(Frame(Kind.FAILURE, call, meta))
    assert plane.wait_for(CallTurnedAway)[0].call_id == id_text("c", call)
    assert not plane.heard(CallEnded)
    keeper.say(Frame(Kind.FAILURE, call, meta))
    keeper.say(Frame(Kind.FAILURE, new_call(), meta))
    keeper.wait_for(Kind.ACK, 3)
    assert not plane.heard(KeeperEnded), "what is said twice, or of a call that is gone, ends no connection"


def test_an_end_without_a_cause_is_clean_and_is_acknowledged(plane: TestPlane) -> None:
    keeper = plane.open()
    keeper.end()
    (gone,) = plane.wait_for(KeeperEnded)
    assert gone.clean
    assert not gone.lost
    assert keeper.wait_for(Kind.ACK)[-1].id == bytes(16)


def test_life_signs_reach_the_agent(plane: TestPlane) -> None:
    keeper = plane.open(state={"phase": "starting", "pids": []})
    assert plane.wait_for(KeeperAttached)[0].phase == "starting"
    keeper.say(Frame(Kind.RANK, meta={"rank": -1, "event": "ready", "pids": [5, 6], "backend": "gloo"}))
    (ready,) = plane.wait_for(RankSaid)
    assert (ready.pids, ready.backend) == ((5, 6), "gloo")


def test_calls_wait_until_the_ranks_are_ready(plane: TestPlane) -> None:
    keeper = plane.open(state={"phase": "starting", "pids": []})
    call = new_call()
    plane.offer(call)
    assert not keeper.calls()
    keeper.say(Frame(Kind.RANK, meta={"rank": -1, "event": "ready", "pids": [5]}))
    keeper.wait_for(Kind.CALL)


def test_a_slow_reader_does_not_stall_the_others(plane: TestPlane) -> None:
    keeper = plane.open(answer=echo)
    with plane.client() as slow, plane.client() as quick:
        for count in range(1, 9):
            slow.send(Kind.CALL, new_call(), b"z" * 4_000_000)
            keeper.wait_for(Kind.CALL, count)
        call = new_call()
        quick.send(Kind.CALL, call, b"x")
        quick.expect(Kind.RESULT, call)


def test_the_fast_facts_tell_depth_and_what_is_held(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    running, queued = new_call(), new_call()
    plane.offer(running)
    plane.offer(queued)
    keeper.wait_for(Kind.CALL)
    (facts,) = plane.plane.snapshots().result(5)
    assert (facts.depth, facts.in_flight, facts.idle_ms) == (1, 1, 0)
    assert set(facts.call_ids) == {id_text("c", running), id_text("c", queued)}
