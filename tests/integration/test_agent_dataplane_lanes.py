"""Lanes at the agent: it passes them on, keeps outcomes that have gone there, and sends those that have not."""

from __future__ import annotations

import socket

from phalanx.core.frames import LANE_BITS, MAX_LANES, Frame, Kind
from phalanx_agent.dataplane.facts import PeerSpec
from tests.support.fake_keeper import FakeKeeper, hold
from tests.support.frame_client import FrameClient
from tests.support.plane import GANG, KEY, TestPlane, new_call
from tests.support.wait import wait_until


def finish(keeper: FakeKeeper, call: bytes, body: bytes, *, lane: int) -> None:
    """Says that the outcome has gone over ``lane``."""
    keeper.say(Frame(Kind.RESULT, call, {"busy_ms": 1}, body, lane << LANE_BITS))


def call_of(keeper: FakeKeeper, client: FrameClient, count: int = 1) -> Frame:
    """Sends a call and returns it as the keeper got it."""
    client.send(Kind.CALL, new_call(), b"x")
    return keeper.wait_for(Kind.CALL, count)[-1]


def test_a_clients_lane_reaches_the_keeper_before_its_first_call(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    with plane.client(lane=True) as client:
        call = call_of(keeper, client)
        (lane,) = keeper.of_kind(Kind.LANE)
        assert call.lane == lane.lane != 0
        keepers_end = socket.socket(fileno=lane.fds[0])
        keepers_end.send(b"hello")
        assert client.lane is not None
        assert client.lane.recv(16) == b"hello"
        keepers_end.close()
        assert client.lane.recv(16) == b"", "nobody else holds the other end"


def test_an_outcome_that_went_over_the_lane_is_not_sent_again_but_kept(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    with plane.client(lane=True) as client:
        call = call_of(keeper, client)
        finish(keeper, call.id, b"there", lane=call.lane)
        client.send(Kind.PING)
        client.expect(Kind.PONG)
        client.send(Kind.ASK, call.id)
        assert client.expect(Kind.RESULT, call.id).body == b"there"
        client.send(Kind.ACK, call.id)
        keeper.wait_for(Kind.ACK)


def test_an_outcome_that_did_not_go_over_the_lane_is_sent(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    with plane.client(lane=True) as client:
        call = call_of(keeper, client)
        finish(keeper, call.id, b"here", lane=0)
        assert client.expect(Kind.RESULT, call.id).body == b"here"


def test_whoever_asks_for_a_call_gets_its_outcome_though_it_went_to_another(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    with plane.client(lane=True) as first, plane.client(lane=True) as second:
        call = call_of(keeper, first)
        second.send(Kind.ASK, call.id)
        second.expect(Kind.STARTED, call.id)
        finish(keeper, call.id, b"both", lane=call.lane)
        assert second.expect(Kind.RESULT, call.id).body == b"both"


def test_a_client_that_goes_takes_its_lane_along(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    with plane.client(lane=True):
        (opened,) = keeper.wait_for(Kind.LANE)
    closed = keeper.wait_for(Kind.LANE, 2)[1]
    assert (closed.lane, closed.fds) == (opened.lane, [])


def test_a_client_that_says_hello_again_has_one_lane(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    with plane.client(lane=True) as client:
        for _ in range(MAX_LANES + 1):
            assert client.lane is not None
            client.lane.close()
            assert client.hello(KEY, lane=True, gang_id=GANG, node_id="n0").kind is Kind.WELCOME
        assert call_of(keeper, client).lane != 0


def test_clients_beyond_the_last_lane_are_served_without(plane: TestPlane) -> None:
    keeper = plane.open()
    clients = [plane.client(lane=True) for _ in range(MAX_LANES + 2)]
    for client in clients:
        call = new_call()
        client.send(Kind.CALL, call, b"x")
        client.expect(Kind.RESULT, call)
    assert len({f.lane for f in keeper.of_kind(Kind.LANE)}) == MAX_LANES
    assert [f.lane for f in keeper.of_kind(Kind.CALL)][-2:] == [0, 0]
    for client in clients:
        client.close()
    wait_until(lambda: len(keeper.of_kind(Kind.LANE)) == 2 * MAX_LANES, "every lane was closed")


def test_a_gang_on_two_nodes_has_none(plane: TestPlane) -> None:
    peer = PeerSpec(node_id="n1", data_address="127.0.0.1:1", fingerprint="", ticket="t")
    keeper = plane.open(answer=hold, peers=(peer,))
    with plane.client(lane=True) as client:
        assert client.lane is not None
        assert client.lane.recv(1) == b"", "the client's end is closed"
        assert call_of(keeper, client).lane == 0
    assert keeper.of_kind(Kind.LANE) == []


def test_a_refused_client_keeps_nothing_open(plane: TestPlane) -> None:
    client = FrameClient(plane.directory / "agent.sock")
    assert client.hello(b"w" * 32, lane=True, gang_id="g-none", node_id="n0").kind is Kind.REFUSED
    assert client.lane is not None
    assert client.lane.recv(1) == b""
    client.close()
