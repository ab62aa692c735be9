"""Gangs over several nodes that are held after a failure: whoever ends first, and whatever is being decided then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.messages import ErrorInfo
from phalanx.core.spec import Limits
from phalanx.core.states import Cause
from phalanx_agent.keeper.judging import LOOK_WITHIN_MS
from tests.support.gang_of_fakes import GangOfFakes

LOST = ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="RuntimeError", message="Connection closed by peer", rank=1)
OWN = ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="ValueError", message="no data", rank=1)
Start = Callable[..., GangOfFakes]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the second node of a gang of two, with a rank on each, whose function holds."""
    started: list[GangOfFakes] = []

    def begin(*, hold_s: float = 600, nodes: int = 2) -> GangOfFakes:
        limits = Limits(hold_on_failure_s=hold_s)
        node = GangOfFakes(tmp_path, nodes=nodes, node_rank=nodes - 1, limits=limits, slow_looks=True)
        started.append(node)
        return node

    yield begin
    for gang in started:
        gang.close()


def stop(node: GangOfFakes, hold: bytes = b"", reason: str = "a rank failed") -> None:
    node.gang.from_agent(Frame(Kind.STOP, NO_ID, {"reason": reason, "grace_ms": 0, "hold": hold.hex()}))


def decided(node: GangOfFakes) -> None:
    """Lets the look at the ranks end, whose answers do not come."""
    assert node.gang.judging.deciding
    node.passes(2 * LOOK_WITHIN_MS)
    assert not node.gang.judging.deciding


def test_a_node_with_victims_only_is_held_without_being_asked(start: Start) -> None:
    node = start()
    call = node.call()
    node.raises(1, call, LOST, peer=True)
    decided(node)
    assert not node.ending.begun
    assert node.gang.holding.call == call
    assert (node.outcome(call).meta["held"], node.outcome(call).meta["peer"]) == (True, True)


def test_an_asked_hold_that_comes_while_a_node_decides_is_kept(start: Start) -> None:
    node = start()
    call = node.call()
    node.returns(1, call)
    node.raises(1, NO_ID, OWN)  # by itself, after its return
    stop(node, hold=call)
    decided(node)
    assert not node.ending.begun
    assert node.gang.holding.call == call


def test_a_culprit_that_is_found_only_after_its_victims_spoke_is_still_named(start: Start) -> None:
    node = start()
    call = node.call()
    stop(node, hold=call)
    node.raises(1, call, OWN)
    decided(node)
    assert not node.ending.begun
    assert (node.outcome(call).meta["error"]["message"], node.outcome(call).meta["held"]) == ("no data", True)


def test_a_node_that_is_asked_to_hold_ranks_that_do_well_does(start: Start) -> None:
    node = start()
    call = node.call()
    stop(node, hold=call)
    decided(node)
    assert node.gang.holding.on
    assert node.outcome(call).meta["error"]["cause"] == "infrastructure"


@pytest.mark.parametrize("hold_first", [False, True])
def test_an_end_that_is_asked_for_while_a_node_decides_is_no_hold(start: Start, hold_first: bool) -> None:
    node = start()
    call = node.call()
    if hold_first:
        stop(node, hold=call)
    else:
        node.raises(1, call, OWN)
    stop(node, reason="released")
    decided(node)
    assert node.ending.begun


def test_what_the_infrastructure_did_here_is_not_held_for_its_victims(start: Start) -> None:
    node = start()
    call = node.call()
    killed = ErrorInfo(cause=Cause.INFRASTRUCTURE, message="rank 1 was ended by signal 9", rank=1)
    node.raises(1, call, killed)
    stop(node, hold=call)
    decided(node)
    assert node.ending.begun


def test_a_victim_is_not_held_where_the_function_does_not_hold(start: Start) -> None:
    node = start(hold_s=0)
    node.raises(1, node.call(), LOST, peer=True)
    decided(node)
    assert node.ending.begun
