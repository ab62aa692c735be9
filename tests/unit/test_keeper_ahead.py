"""Calls that wait at a single rank, when their gang ends or they are cancelled. The rank is what the test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx_agent.keeper.calls import QueuedCall
from tests.support.gang_of_fakes import GangOfFakes

WAITING = tuple(bytes([n]) * 16 for n in (101, 102, 103))


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[GangOfFakes]:
    made = GangOfFakes(tmp_path)
    yield made
    made.close()


def given(fakes: GangOfFakes) -> bytes:
    """Returns the call that runs; the rank has three more."""
    running = fakes.call()
    fakes.gang.book.queue.extend(
        QueuedCall(call, 1, 0, {}, b"", [], straight=True, told=False, given=True) for call in WAITING
    )
    return running


def never_began(fakes: GangOfFakes) -> list[bool]:
    return [fakes.outcome(call).meta.get("started") is False for call in WAITING]


@pytest.mark.parametrize("succeeded", [0, 1, 2, 3])
def test_at_the_end_those_may_have_begun_before_which_all_had_succeeded(fakes: GangOfFakes, succeeded: int) -> None:
    running = given(fakes)
    fakes.gang.stop("test", 1000)
    for call in (running, *WAITING)[:succeeded]:
        fakes.returns(0, call)
    fakes.gang.all_gone(clean=True)
    assert never_began(fakes) == [place >= succeeded for place in range(3)]


def test_after_a_failure_the_next_is_handed_over_again(fakes: GangOfFakes) -> None:
    running = given(fakes)
    error = {"cause": "user_exception", "type_name": "ValueError", "message": "no", "rank": 0}
    fakes.says(0, Frame(Kind.FAILURE, running, {"error": error}))
    assert fakes.gang.book.running is not None
    assert (fakes.gang.book.running.id, fakes.gang.book.running.given) == (WAITING[0], False)
    assert not any(call.given for call in fakes.gang.book.queue)


def test_a_cancelled_one_is_passed_over_and_the_next_begins(fakes: GangOfFakes) -> None:
    running = given(fakes)
    fakes.gang.from_agent(Frame(Kind.CANCEL, WAITING[0], {"reason": "cancelled"}))
    fakes.returns(0, running)
    fakes.says(0, Frame(Kind.FAILURE, WAITING[0], {"withdrawn": True}))
    assert fakes.outcome(WAITING[0]).meta["outcome"] == "cancelled"
    assert fakes.gang.book.running is not None
    assert fakes.gang.book.running.id == WAITING[1]
    assert not fakes.ending.begun


def test_one_that_was_cancelled_too_late_keeps_its_result_and_nothing_is_kept_of_it(fakes: GangOfFakes) -> None:
    running = given(fakes)
    fakes.gang.from_agent(Frame(Kind.CANCEL, WAITING[0], {"reason": "cancelled"}))
    fakes.returns(0, running)
    fakes.returns(0, WAITING[0])
    assert fakes.outcome(WAITING[0]).kind is Kind.RESULT
    assert not fakes.gang.ahead.cancels
    fakes.passes(1000)
    assert not fakes.ending.begun


def test_one_that_was_cancelled_too_late_and_runs_on_is_interrupted(fakes: GangOfFakes) -> None:
    running = given(fakes)
    fakes.gang.from_agent(Frame(Kind.CANCEL, WAITING[0], {"reason": "cancelled", "grace_ms": 1000}))
    fakes.returns(0, running)
    fakes.passes(200)
    assert fakes.ending.begun


def test_a_call_that_waits_nowhere_is_not_cancelled_twice(fakes: GangOfFakes) -> None:
    given(fakes)
    fakes.gang.from_agent(Frame(Kind.CANCEL, NO_ID, {"reason": "cancelled"}))
    assert not fakes.gang.ahead.cancels
