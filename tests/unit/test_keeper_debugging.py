"""Ranks at breakpoints: what stands still meanwhile, on which node, and what goes on when they do."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.core.frames import TERMINAL_WINDOW, Frame, Kind
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.spec import Limits
from phalanx.core.states import Outcome
from phalanx_agent.keeper.debugging import DEBUG_WAIT_MS
from tests.support.gang_of_fakes import GangOfFakes

Start = Callable[..., GangOfFakes]
LIMITS = Limits(timeout_s=10, hang_timeout_s=2)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a gang's node."""
    started: list[GangOfFakes] = []

    def begin(**options: object) -> GangOfFakes:
        started.append(GangOfFakes(tmp_path, **options))  # pyright: ignore[reportArgumentType]
        return started[-1]

    yield begin
    for gang in started:
        gang.close()


def attach(node: GangOfFakes, call: bytes, **meta: object) -> bytes:
    """Opens a terminal at a rank; returns its id."""
    terminal = new_raw_id()
    node.gang.from_agent(Frame(Kind.TERMINAL, terminal, {"call": id_text("c", call), "mode": "attach", **meta}))
    return terminal


def test_a_pause_after_the_leads_ranks_have_returned_names_the_call_that_is_waited_for(start: Start) -> None:
    node = start(nodes=2, ranks=1, limits=LIMITS)
    call = node.call(timeout_ms=10_000)
    node.returns(0, call)
    node.elsewhere(call, r1="train.py:7")
    assert node.paused["debug"] == (
        f"rank 1 waits at a breakpoint, train.py:7: gpuctl attach {id_text('c', call)} --rank 1"
    )


def test_the_leads_hang_watch_goes_on_after_a_pause_though_its_own_ranks_have_returned(start: Start) -> None:
    node = start(nodes=2, ranks=1, limits=LIMITS)
    call = node.call()
    node.returns(0, call)
    node.elsewhere(call, r1="train.py:7")
    node.told.clear()
    node.passes(60_000)
    assert not node.heard(Kind.LOOK)
    node.elsewhere(call)
    node.passes(3000)
    assert node.heard(Kind.LOOK)


def test_a_gang_whose_ranks_have_all_returned_is_not_watched_after_a_pause(start: Start) -> None:
    node = start(limits=LIMITS)
    call = node.call()
    node.stops(0)
    node.goes_on(0)
    node.returns(0, call)
    node.elsewhere(call, r1="train.py:7")
    node.elsewhere(call)
    node.told.clear()
    node.passes(60_000)
    assert not node.told


def test_a_call_is_not_charged_for_the_pause_of_the_one_before(start: Start) -> None:
    node = start(nodes=2, ranks=1, limits=LIMITS)
    first = node.call(timeout_ms=10_000)
    node.returns(0, first)
    node.elsewhere(first, r1="train.py:7")
    node.passes(50_000)
    node.elsewhere(first)
    assert node.paused["paused_ms"] == 50_000
    second = node.call(timeout_ms=10_000)
    assert node.paused["paused_ms"] == 0
    node.passes(1000)
    node.returns(0, second)
    assert node.outcome(second).meta["busy_ms"] == 1000


def test_the_agent_still_knows_how_long_the_call_stood_still_when_the_local_ranks_return(start: Start) -> None:
    node = start(nodes=2, ranks=1, limits=LIMITS)
    call = node.call(timeout_ms=10_000)
    node.elsewhere(call, r1="train.py:7")
    node.passes(50_000)
    node.returns(0, call)
    assert (node.paused["debug"] != "", node.paused["paused_ms"]) == (True, 50_000)
    node.passes(1000)
    node.elsewhere(call)
    node.elsewhere(call, r1="train.py:9")
    assert node.paused["paused_ms"] == 51_000


def test_a_call_that_begins_while_another_node_still_waits_in_the_one_before_stands_still_too(start: Start) -> None:
    node = start(nodes=2, ranks=1, limits=LIMITS)
    first = node.call(timeout_ms=1000)
    second = node.call(timeout_ms=1000)
    node.elsewhere(first, r1="train.py:7")
    node.passes(5000)
    node.returns(0, first)
    node.passes(5000)
    assert not node.ending.begun
    assert node.paused["paused_ms"] == 0
    node.elsewhere(first)
    assert node.paused["paused_ms"] == 5000
    node.passes(500)
    node.returns(0, second)
    assert node.outcome(second).meta["busy_ms"] == 500


def test_the_time_limit_counts_on_from_where_it_stood(start: Start) -> None:
    node = start(limits=LIMITS)
    call = node.call(timeout_ms=1000)
    node.passes(900)
    node.stops(0)
    node.passes(60_000)
    node.goes_on(0)
    node.passes(90)
    assert not node.ending.begun
    node.passes(20)
    assert node.ending.begun
    assert node.gang.why is not None
    assert node.gang.why.outcome is Outcome.TIMED_OUT
    assert node.gang.book.running is not None
    assert node.gang.book.running.id == call


def test_a_breakpoint_to_which_nobody_comes_ends_its_call_after_an_hour(start: Start) -> None:
    node = start()
    node.call()
    node.stops(0)
    node.passes(DEBUG_WAIT_MS - 1)
    assert not node.ending.begun
    node.passes(1)
    assert node.ending.begun
    why = node.gang.why
    assert why is not None
    assert why.error is not None
    assert why.outcome is Outcome.TIMED_OUT
    assert why.error.message == "rank 0 waits at a breakpoint, train.py:7, and nobody attached within 60 minutes"


def test_the_hour_counts_from_when_the_last_person_left(start: Start) -> None:
    node = start()
    call = node.call()
    ours, theirs = socket.socketpair()
    node.stops(0, fds=[ours.detach()])
    node.passes(DEBUG_WAIT_MS // 2)
    terminal = attach(node, call, rank=0)
    node.passes(3 * DEBUG_WAIT_MS)
    assert not node.ending.begun
    node.gang.from_agent(Frame(Kind.CLOSED, terminal))
    node.passes(DEBUG_WAIT_MS - 1)
    assert not node.ending.begun
    node.passes(1)
    assert node.ending.begun
    theirs.close()


def test_what_is_pasted_into_a_debugger_that_does_not_read_does_not_stop_the_keeper(start: Start) -> None:
    node = start()
    call = node.call()
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    os.set_blocking(ours.fileno(), True)
    node.stops(0, fds=[ours.detach()])
    terminal = attach(node, call, rank=0)
    node.gang.from_agent(Frame(Kind.TYPED, terminal, {}, b"x" * TERMINAL_WINDOW))
    assert not node.heard(Kind.CLOSED)
    taken = 0
    while taken < TERMINAL_WINDOW:
        taken += len(theirs.recv(1 << 16))
        node.turn()
    assert node.heard(Kind.SHOWN)[-1].meta == {"taken": TERMINAL_WINDOW}
    theirs.close()


def test_a_new_agent_hears_who_waits_here(start: Start) -> None:
    node = start(nodes=2, ranks=1)
    node.call()
    node.stops(0, "train.py:7")
    node.elsewhere(bytes(16), r1="train.py:8")
    node.gang.attached(Frame(Kind.ATTACH))
    (state,) = node.heard(Kind.STATE)
    assert state.meta["stopped"] == {"0": "train.py:7"}
