"""What a gang's agent says of a call that is sent again, or asked about: never run twice, never guessed."""

from __future__ import annotations

from phalanx.core.frames import Kind
from phalanx_agent.dataplane.facts import CallEnded, KeeperAttached
from tests.support.fake_keeper import hold
from tests.support.plane import GANG, TestPlane, new_call
from tests.support.wait import wait_until


def test_the_same_id_again_is_answered_and_never_run_again(plane: TestPlane) -> None:
    keeper = plane.open()
    call = new_call()
    with plane.client() as client:
        client.send(Kind.CALL, call, b"x")
        client.expect(Kind.RESULT, call)
    with plane.client() as again:
        again.send(Kind.CALL, call, b"x")
        assert again.expect(Kind.RESULT, call).body == b"x"
    assert keeper.calls() == [call]


def test_a_client_that_lost_its_connection_asks_for_its_outcome(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    call = new_call()
    with plane.client() as client:
        client.send(Kind.CALL, call, b"x")
        keeper.wait_for(Kind.CALL)
    with plane.client() as again:
        again.send(Kind.ASK, call)
        again.expect(Kind.STARTED, call)
        keeper.finish(call, b"late")
        assert again.expect(Kind.RESULT, call).body == b"late"


def test_asking_for_an_id_that_the_gang_never_had_says_so(plane: TestPlane) -> None:
    plane.open()
    plane.wait_for(KeeperAttached)
    with plane.client() as client:
        client.send(Kind.ASK, new_call())
        assert client.expect(Kind.UNKNOWN).meta == {"never_ran": True}


def test_a_call_that_arrives_after_it_was_given_up_is_not_run(plane: TestPlane) -> None:
    """Its sender was told that it never ran, and has sent it elsewhere: an older connection's bytes may come late."""
    keeper = plane.open()
    plane.wait_for(KeeperAttached)
    late = new_call()
    with plane.client() as client, plane.client() as older:
        client.send(Kind.ASK, late)
        assert client.expect(Kind.UNKNOWN).meta["never_ran"]
        older.send(Kind.CALL, late, b"x")
        older.expect(Kind.BUSY, late)
        client.send(Kind.ASK, late)
        assert client.expect(Kind.UNKNOWN).meta["never_ran"], "the first answer may have been lost"
    assert keeper.calls() == []


def test_nobody_says_never_of_a_call_that_is_settled(plane: TestPlane) -> None:
    """Its outcome was pushed out or told elsewhere: it has run."""
    plane.open()
    call = new_call()
    plane.offer(call)
    (ended,) = plane.wait_for(CallEnded)
    plane.plane.acknowledge(GANG, ended.call_id, ended.attempt)
    with plane.client() as client:

        def forgotten() -> bool:
            client.send(Kind.ASK, call)
            return client.receive().kind is Kind.UNKNOWN

        wait_until(forgotten, "the outcome was forgotten")
        client.send(Kind.ASK, call)
        assert client.expect(Kind.UNKNOWN).meta == {"never_ran": False}


def test_an_agent_that_has_not_heard_its_keeper_says_ask_again(plane: TestPlane) -> None:
    plane.open(silent=True)
    with plane.client() as client:
        client.send(Kind.ASK, new_call())
        client.expect(Kind.BUSY)
