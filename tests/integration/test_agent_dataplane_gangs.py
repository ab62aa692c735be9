"""Gangs over two nodes on the data plane, and taking over from a former agent. Fake keepers, real sockets and TLS."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import id_text
from phalanx.core.states import Outcome
from phalanx.core.tickets import sign
from phalanx_agent.dataplane.facts import CallEnded, CallTurnedAway, KeeperAttached, KeeperEnded, PeerSpec
from tests.support.fake_keeper import FakeKeeper, echo, hold
from tests.support.frame_client import make_ticket
from tests.support.plane import GANG, KEY, TestPlane, new_call
from tests.support.wait import wait_until


@pytest.fixture
def nodes() -> Iterator[tuple[TestPlane, TestPlane]]:
    with tempfile.TemporaryDirectory(prefix="pxg", dir="/tmp") as directory:
        lead = TestPlane(Path(directory) / "0")
        other = TestPlane(Path(directory) / "1", node_id="n1")
        yield lead, other
        lead.close()
        other.close()


def peer(other: TestPlane, *, fingerprint: str = "", kind: str = "peer") -> PeerSpec:
    ticket = make_ticket(kind=kind, node_id="n1", gang_id=GANG, expires_wall_ms=1)
    return PeerSpec(
        node_id="n1",
        data_address=f"127.0.0.1:{other.plane.port}",
        fingerprint=fingerprint or other.fingerprint,
        ticket=sign(ticket, KEY),
    )


def gang_of_two(
    nodes: tuple[TestPlane, TestPlane], *, returns_all: bool = False, held: bool = False
) -> tuple[FakeKeeper, FakeKeeper]:
    lead, other = nodes
    answer = hold if held else echo
    theirs = other.open(lead=False, answer=answer)
    mine = lead.open(peers=(peer(other),), returns_all=returns_all, answer=answer)
    return mine, theirs


def test_a_call_runs_on_both_nodes_and_the_first_ranks_value_returns(nodes: tuple[TestPlane, TestPlane]) -> None:
    mine, theirs = gang_of_two(nodes)
    call = new_call()
    nodes[0].offer(call, b"args")
    (ended,) = nodes[0].wait_for(CallEnded)
    assert (ended.outcome, ended.body) == (Outcome.SUCCEEDED, b"args")
    assert mine.calls() == theirs.calls() == [call]


def test_large_arguments_reach_both_nodes(nodes: tuple[TestPlane, TestPlane]) -> None:
    mine, theirs = gang_of_two(nodes)
    call, body = new_call(), b"b" * 3_500_000
    nodes[0].offer(call, body)
    nodes[0].wait_for(CallEnded)
    assert mine.bodies[call] == theirs.bodies[call] == body


def test_all_values_come_in_rank_order(nodes: tuple[TestPlane, TestPlane]) -> None:
    mine, theirs = gang_of_two(nodes, returns_all=True, held=True)
    call = new_call()
    nodes[0].offer(call)
    theirs.wait_for(Kind.CALL)
    theirs.finish(call, b"cd", parts=[1, 1])
    mine.finish(call, b"ab", parts=[1, 1])
    assert bytes(nodes[0].wait_for(CallEnded)[0].body) == b"abcd"


def test_the_first_dead_rank_stops_every_node_and_stays_the_culprit(nodes: tuple[TestPlane, TestPlane]) -> None:
    mine, theirs = gang_of_two(nodes, held=True)
    call = new_call()
    nodes[0].offer(call)
    theirs.wait_for(Kind.CALL)
    mine.fail(call, cause="infrastructure", message="Connection closed by peer", rank=0)
    theirs.fail(call, cause="user_exception", type_name="ValueError", message="boom", rank=3)
    theirs.end(error={"cause": "user_exception", "message": "boom", "rank": 3})
    mine.wait_for(Kind.STOP)
    mine.end()
    (ended,) = nodes[0].wait_for(CallEnded)
    assert (ended.error.message, ended.error.rank, ended.error.node_id) == ("boom", 3, "n1")
    assert [(r.rank, r.culprit) for r in ended.error.ranks] == [(0, False), (3, True)]


def test_a_node_that_ends_between_calls_takes_the_other_along(nodes: tuple[TestPlane, TestPlane]) -> None:
    mine, theirs = gang_of_two(nodes)
    nodes[0].offer(new_call())
    nodes[0].wait_for(CallEnded)
    theirs.end(error={"cause": "infrastructure", "message": "rank 2 was ended by signal 9", "signal": 9})
    mine.wait_for(Kind.STOP)


def test_the_leads_end_takes_the_other_node_along(nodes: tuple[TestPlane, TestPlane]) -> None:
    mine, theirs = gang_of_two(nodes)
    nodes[0].offer(new_call())
    nodes[0].wait_for(CallEnded)
    mine.end(error={"cause": "infrastructure", "message": "rank 0 was ended by signal 9", "signal": 9})
    theirs.wait_for(Kind.STOP)
    assert nodes[0].wait_for(KeeperEnded)[0].error.signal == 9


def test_the_end_of_the_leads_ranks_is_told_after_the_end_of_their_call(nodes: tuple[TestPlane, TestPlane]) -> None:
    mine, theirs = gang_of_two(nodes, held=True)
    call = new_call()
    nodes[0].offer(call)
    theirs.wait_for(Kind.CALL)
    mine.fail(call, cause="user_exception", type_name="ValueError", message="boom", rank=1)
    mine.end(error={"cause": "user_exception", "message": "boom", "rank": 1})
    theirs.wait_for(Kind.STOP)
    nodes[0].wait_for(KeeperEnded)
    kinds = [type(event) for event in nodes[0].events if isinstance(event, CallEnded | KeeperEnded)]
    assert kinds == [CallEnded, KeeperEnded]


def test_a_cancel_reaches_every_node(nodes: tuple[TestPlane, TestPlane]) -> None:
    mine, theirs = gang_of_two(nodes, held=True)
    call = new_call()
    nodes[0].offer(call)
    theirs.wait_for(Kind.CALL)
    assert nodes[0].plane.cancel(GANG, id_text("c", call), 500).result(5)
    for keeper in (mine, theirs):
        keeper.wait_for(Kind.CANCEL)
        keeper.fail(call, outcome="cancelled", cause="cancelled")
    assert nodes[0].wait_for(CallEnded)[0].outcome is Outcome.CANCELLED


@pytest.mark.parametrize("change", [{"fingerprint": "0" * 64}, {"kind": "call"}])
def test_a_peer_that_is_not_what_it_should_be_gets_no_call(
    nodes: tuple[TestPlane, TestPlane], change: dict[str, str]
) -> None:
    lead, other = nodes
    theirs = other.open(lead=False)
    mine = lead.open(peers=(peer(other, **change),))
    lead.offer(new_call())
    mine.wait_for(Kind.CALL)
    assert not theirs.calls()
    assert not lead.heard(CallEnded)


def test_an_outcome_is_not_lost_when_the_lead_agent_is_replaced(nodes: tuple[TestPlane, TestPlane]) -> None:
    lead, other = nodes
    mine, theirs = gang_of_two(nodes, held=True)
    call = new_call()
    lead.offer(call, attempt=3)
    theirs.wait_for(Kind.CALL)
    lead.plane.stop()
    theirs.finish(call, b"theirs")
    mine.state |= {"running": call.hex(), "phase": "busy"}
    successor = TestPlane(lead.directory)
    successor.attach(mine, peers=(peer(other),))
    successor.wait_for(KeeperAttached)
    mine.finish(call, b"mine")
    (ended,) = successor.wait_for(CallEnded)
    assert (ended.call_id, ended.attempt, ended.fence, ended.body) == (id_text("c", call), 3, 9, b"mine")
    assert mine.calls() == theirs.calls() == [call]
    successor.plane.stop()
    lead.plane = successor.plane


# ---- taking over ----


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pxa", dir="/tmp") as path:
        yield Path(path)


def test_a_call_that_ran_through_the_agents_end_keeps_its_attempt(directory: Path) -> None:
    first = TestPlane(directory)
    keeper = first.open(answer=hold)
    call = new_call()
    first.offer(call, attempt=2)
    keeper.wait_for(Kind.CALL)
    first.plane.stop()
    keeper.state |= {"running": call.hex(), "phase": "busy"}
    second = TestPlane(directory)
    second.attach(keeper)
    second.wait_for(KeeperAttached)
    assert second.plane.snapshots().result(5)[0].in_flight == 1
    second.offer(call, attempt=2)
    keeper.finish(call, b"done")
    (ended,) = second.wait_for(CallEnded)
    assert (ended.attempt, ended.fence, ended.body) == (2, 8, b"done")
    assert keeper.calls() == [call]
    second.close()
    keeper.die()


def test_a_call_keeps_its_own_timeout_through_the_agents_end(directory: Path) -> None:
    first = TestPlane(directory)
    keeper = first.open(answer=hold)
    call = new_call()
    first.plane.stop()
    keeper.state |= {"running": call.hex(), "timeouts_ms": {call.hex(): 100}, "phase": "busy"}
    second = TestPlane(directory)
    second.attach(keeper)
    (asked,) = keeper.wait_for(Kind.CANCEL)
    assert (asked.id, asked.meta["reason"]) == (call, "timed_out")
    second.close()
    keeper.die()


def test_an_outcome_that_came_while_no_agent_was_there_is_told(directory: Path) -> None:
    first = TestPlane(directory)
    keeper = first.open(answer=hold)
    call = new_call()
    first.offer(call)
    keeper.wait_for(Kind.CALL)
    first.plane.stop()
    keeper.unacknowledged[call] = Frame(Kind.RESULT, call, {"busy_ms": 9}, b"kept")
    keeper.state |= {"finished": [call.hex()]}
    second = TestPlane(directory)
    second.attach(keeper)
    (ended,) = second.wait_for(CallEnded)
    assert (ended.body, ended.busy_ms) == (b"kept", 9)
    second.close()
    keeper.die()


def test_a_short_direct_calls_outcome_can_still_be_asked_for(directory: Path) -> None:
    keeper = FakeKeeper(directory / "k.sock")
    call = new_call()
    keeper.unacknowledged[call] = Frame(Kind.RESULT, call, {"busy_ms": 1}, b"kept")
    keeper.state |= {"finished": [call.hex()]}
    plane = TestPlane(directory)
    plane.attach(keeper)
    plane.wait_for(KeeperAttached)
    with plane.client() as client:
        client.send(Kind.ASK, call)
        assert client.expect(Kind.RESULT, call).body == b"kept"
        client.send(Kind.ACK, call)
        wait_until(lambda: call not in keeper.unacknowledged, "the keeper may forget it")
    plane.close()
    keeper.die()


def test_a_call_that_the_keeper_does_not_know_may_be_offered_again(directory: Path) -> None:
    first = TestPlane(directory)
    keeper = first.open(answer=hold)
    call = new_call()
    first.offer(call)
    keeper.wait_for(Kind.CALL)
    first.plane.stop()
    second = TestPlane(directory)
    second.attach(keeper)
    second.wait_for(KeeperAttached)
    second.offer(call)
    keeper.wait_for(Kind.CALL, 2)
    assert not second.heard(CallTurnedAway)
    second.close()
    keeper.die()
