"""Breakpoints, holds and terminals on the data plane: over two nodes, and past agents that come and go."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.tickets import sign
from phalanx_agent.dataplane.facts import CallEnded, KeeperAttached, PeerSpec, RankSaid
from tests.support.fake_keeper import FakeKeeper, hold
from tests.support.frame_client import FrameClient, make_ticket
from tests.support.plane import GANG, KEY, TestPlane, new_call
from tests.support.wait import wait_until

WHERE = "train.py:7"


@pytest.fixture
def nodes() -> Iterator[tuple[TestPlane, TestPlane]]:
    with tempfile.TemporaryDirectory(prefix="pxd", dir="/tmp") as directory:
        lead = TestPlane(Path(directory) / "0")
        other = TestPlane(Path(directory) / "1", node_id="n1")
        yield lead, other
        lead.close()
        other.close()


def peer(other: TestPlane) -> PeerSpec:
    ticket = make_ticket(kind="peer", node_id="n1", gang_id=GANG, expires_wall_ms=1)
    address = f"127.0.0.1:{other.plane.port}"
    return PeerSpec(node_id="n1", data_address=address, fingerprint=other.fingerprint, ticket=sign(ticket, KEY))


def gang_of_two(nodes: tuple[TestPlane, TestPlane]) -> tuple[FakeKeeper, FakeKeeper, bytes]:
    """Returns the keepers of a gang whose call runs."""
    lead, other = nodes
    theirs = other.open(lead=False, answer=hold)
    mine = lead.open(peers=(peer(other),), answer=hold)
    call = new_call()
    lead.offer(call)
    theirs.wait_for(Kind.CALL)
    mine.wait_for(Kind.CALL)
    return mine, theirs, call


def stops(keeper: FakeKeeper, rank: int, call: bytes) -> None:
    meta = {"rank": rank, "event": "breakpoint", "where": WHERE, "call": call.hex()}
    keeper.say(Frame(Kind.RANK, NO_ID, meta))


def until_told(keeper: FakeKeeper, **ranks: str) -> Frame:
    """Waits until a keeper was told last that these ranks wait elsewhere."""
    want = {name.removeprefix("r"): where for name, where in ranks.items()}

    def told() -> bool:
        said = keeper.of_kind(Kind.PAUSE)
        return bool(said) and said[-1].meta["ranks"] == want

    wait_until(told, f"PAUSE with {want}")
    return keeper.of_kind(Kind.PAUSE)[-1]


def successor_of(lead: TestPlane, keeper: FakeKeeper, other: TestPlane) -> TestPlane:
    """Returns the agent that takes over the lead's gang."""
    successor = TestPlane(lead.directory)
    successor.attach(keeper, peers=(peer(other),))
    successor.wait_for(KeeperAttached)
    return successor


# ---- breakpoints ----


def test_a_keeper_hears_who_waits_elsewhere_and_in_which_call(nodes: tuple[TestPlane, TestPlane]) -> None:
    mine, theirs, call = gang_of_two(nodes)
    stops(theirs, 1, call)
    assert until_told(mine, r1=WHERE).meta["call"] == call.hex()
    theirs.say(Frame(Kind.RANK, NO_ID, {"rank": 1, "event": "goes_on"}))
    until_told(mine)


def test_a_keeper_that_could_not_be_reached_hears_who_waits_when_it_can(nodes: tuple[TestPlane, TestPlane]) -> None:
    lead, other = nodes
    mine = lead.open(peers=(peer(other),))
    stops(mine, 0, new_call())
    wait_until(lambda: any(e.event == "breakpoint" for e in lead.heard(RankSaid)), "the lead knows")
    theirs = other.open(lead=False)
    until_told(theirs, r0=WHERE)


def test_a_rank_that_stops_while_the_lead_agent_is_away_pauses_the_other_nodes(
    nodes: tuple[TestPlane, TestPlane],
) -> None:
    lead, other = nodes
    mine, theirs, call = gang_of_two(nodes)
    lead.plane.stop()
    stops(theirs, 1, call)
    wait_until(lambda: any(e.event == "breakpoint" for e in other.heard(RankSaid)), "its own agent knows")
    successor = successor_of(lead, mine, other)
    assert until_told(mine, r1=WHERE).meta["call"] == call.hex()
    successor.plane.stop()
    lead.plane = successor.plane


def test_a_rank_that_goes_on_while_the_lead_agent_is_away_keeps_no_other_node_paused(
    nodes: tuple[TestPlane, TestPlane],
) -> None:
    lead, other = nodes
    mine, theirs, call = gang_of_two(nodes)
    stops(theirs, 1, call)
    until_told(mine, r1=WHERE)
    lead.plane.stop()
    theirs.say(Frame(Kind.RANK, NO_ID, {"rank": 1, "event": "goes_on"}))
    wait_until(lambda: any(e.event == "goes_on" for e in other.heard(RankSaid)), "its own agent knows")
    successor = successor_of(lead, mine, other)
    until_told(mine)
    successor.plane.stop()
    lead.plane = successor.plane


def test_an_agent_that_takes_over_a_paused_gang_tells_that_it_is_debugged(nodes: tuple[TestPlane, TestPlane]) -> None:
    lead = nodes[0]
    lead.open(state={"phase": "busy", "debug": "rank 0 waits", "paused_ms": 5, "stopped": {"0": WHERE}})
    lead.wait_for(RankSaid)
    kinds = [type(e) for e in lead.events if isinstance(e, KeeperAttached | RankSaid)]
    assert kinds == [KeeperAttached, RankSaid]
    assert lead.heard(RankSaid)[0].event == "debug"


@pytest.mark.parametrize("meta", [{"step": float("inf")}, {"pids": ["x"]}, {"pairs": [[1]]}, {"step": [1]}])
def test_a_rank_whose_words_are_no_numbers_is_not_heard(
    nodes: tuple[TestPlane, TestPlane], meta: dict[str, Any]
) -> None:
    keeper = nodes[0].open()
    keeper.say(Frame(Kind.RANK, NO_ID, {"rank": 0, "event": "context", **meta}))
    keeper.say(Frame(Kind.RANK, NO_ID, {"rank": 0, "event": "paused", "held": "00" * 16}))
    keeper.say(Frame(Kind.RANK, NO_ID, {"rank": -1, "event": "ready"}))
    nodes[0].wait_for(RankSaid, 2)
    assert [e.event for e in nodes[0].heard(RankSaid)] == ["paused", "ready"]
    assert not nodes[0].plane.snapshots().result(5)[0].debug


# ---- holds ----


def fail(keeper: FakeKeeper, call: bytes, **meta: Any) -> None:
    error = {"cause": "user_exception", "message": "no"}
    keeper.say(Frame(Kind.FAILURE, call, {"outcome": "failed", "error": error, "busy_ms": 1, **meta}))


@pytest.mark.parametrize("first", [0, 1])
def test_once_a_node_holds_no_other_failure_ends_the_gang(nodes: tuple[TestPlane, TestPlane], first: int) -> None:
    mine, theirs, call = gang_of_two(nodes)
    culprit, victim = (mine, theirs) if first == 0 else (theirs, mine)
    fail(culprit, call, held=True)
    assert victim.wait_for(Kind.STOP)[0].meta["hold"] == call.hex()
    fail(victim, call, peer=True)
    nodes[0].wait_for(CallEnded)
    nodes[0].plane.stop_gang(GANG, "released", 0)
    assert [f.meta["reason"] for f in victim.wait_for(Kind.STOP, 2)] == ["a rank failed", "released"]
    assert [f.meta["reason"] for f in culprit.wait_for(Kind.STOP)] == ["released"]


# ---- terminals ----


def open_terminal(client: FrameClient, gang_id: str, **meta: Any) -> bytes:
    ticket = make_ticket(kind="debug", node_id="n0", gang_id=gang_id, call_id=id_text("c", new_call()))
    terminal = new_raw_id()
    client.send(Kind.TERMINAL, terminal, ticket=sign(ticket, KEY), **meta)
    return terminal


@pytest.mark.parametrize("mode", ["shell", "", "Attach", None])
def test_an_agent_without_shells_opens_nothing_but_debuggers(mode: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="pxd", dir="/tmp") as directory:
        node = TestPlane(Path(directory), shells=False)
        keeper = node.open()
        with FrameClient(node.directory / "agent.sock") as client:
            refused = open_terminal(client, GANG, mode=mode)
            assert "--no-shells" in client.expect(Kind.REFUSED, refused).meta["error"]
            allowed = open_terminal(client, GANG, mode="attach")
            assert [f.id for f in keeper.wait_for(Kind.TERMINAL)] == [allowed]
        node.close()


def test_a_client_that_goes_closes_its_terminals_in_all_gangs(nodes: tuple[TestPlane, TestPlane]) -> None:
    node, second = nodes[0], id_text("g", new_raw_id())
    keepers = {GANG: node.open(), second: node.open(gang_id=second)}
    client = FrameClient(node.directory / "agent.sock")
    opened = {gang: open_terminal(client, gang, mode="attach", rank=0) for gang in keepers}
    for keeper in keepers.values():
        keeper.wait_for(Kind.TERMINAL)
    client.send(Kind.TYPED, opened[GANG], b"p 1\n")
    assert keepers[GANG].wait_for(Kind.TYPED)[0].body == b"p 1\n"
    client.close()
    for gang, keeper in keepers.items():
        assert [f.id for f in keeper.wait_for(Kind.CLOSED)] == [opened[gang]]
    assert not keepers[second].of_kind(Kind.TYPED)
