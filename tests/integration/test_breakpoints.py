"""Ranks that stop at breakpoints, shells beside them, gangs that are held: keepers, spoken to as an agent would."""

from __future__ import annotations

import time
from typing import Any

import pytest

from phalanx.core.frames import TERMINAL_WINDOW, Frame, Kind
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.spec import Limits
from tests.support.gang_driver import Gangs, Keeper, process_exists
from tests.support.wait import wait_until


def stops(rank: int) -> Any:
    import torch
    import torch.distributed as dist

    import phalanx

    me = phalanx.current().rank
    total = torch.ones(1)
    if me == rank:
        answer = 41
        breakpoint()
        total += answer
    dist.all_reduce(total)
    return float(total)


class Terminal:
    """The agent's end of a terminal."""

    def __init__(self, keeper: Keeper, call: bytes, **meta: Any) -> None:
        self.keeper = keeper
        self.id = new_raw_id()
        keeper.send(Frame(Kind.TERMINAL, self.id, {"call": id_text("c", call), **meta}))
        self.first = keeper.wait_for(lambda f: f.id == self.id, "an answer to TERMINAL")

    def type(self, text: str, **meta: Any) -> None:
        self.keeper.send(Frame(Kind.TYPED, self.id, {"taken": len(self.text), **meta}, text.encode()))

    @property
    def text(self) -> str:
        return b"".join(bytes(f.body) for f in self.keeper.seen if f.id == self.id and f.kind is Kind.SHOWN).decode()

    def until(self, text: str) -> str:
        self.keeper.wait_for(lambda _: text in self.text, f"{text!r} is shown")
        return self.text

    def closed(self) -> dict[str, Any]:
        return self.keeper.wait_for(lambda f: f.id == self.id and f.kind is Kind.CLOSED, "CLOSED").meta

    def leave(self) -> None:
        self.keeper.send(Frame(Kind.CLOSED, self.id))


def fails_on_1() -> None:
    import torch
    import torch.distributed as dist

    import phalanx

    if phalanx.current().rank == 1:
        raise ValueError("no data")
    dist.all_reduce(torch.ones(1))


def stopped_at(keeper: Keeper) -> str:
    frame = keeper.wait_for(lambda f: f.kind is Kind.RANK and bool(f.meta.get("debug")), "a rank waits")
    return frame.meta["debug"]


def test_a_rank_waits_at_its_breakpoint_until_somebody_lets_it_go_on(gangs: Gangs) -> None:
    limits = Limits(timeout_s=1, hang_timeout_s=0.5)
    keeper = gangs.one(stops, ranks=2, limits=limits)
    keeper.ready()
    call = keeper.call(1, timeout_ms=1000)
    assert "rank 1 waits at a breakpoint, test_breakpoints.py:" in stopped_at(keeper)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 1.5, "longer than both limits")
    terminal = Terminal(keeper, call, mode="attach", rank=1)
    assert terminal.first.kind is Kind.TERMINAL
    terminal.until("(Pdb) ")
    terminal.type("p answer + 1\n")
    terminal.until("42\n")
    terminal.type("c\n")
    assert keeper.result(call) == 43
    assert keeper.stop()["counters"]["debug"] > 1500


def test_one_person_is_at_a_rank_and_whoever_comes_back_sees_where_it_stands(gangs: Gangs) -> None:
    keeper = gangs.one(stops)
    keeper.ready()
    call = keeper.call(0)
    stopped_at(keeper)
    first = Terminal(keeper, call, mode="attach", rank=-1, user="anna")
    first.until("(Pdb) ")
    second = Terminal(keeper, call, mode="attach", rank=0)
    assert second.first.kind is Kind.REFUSED
    assert "anna is attached to rank 0" in second.first.meta["error"]
    first.type("answer\n")
    first.until("41\n(Pdb) ")
    first.leave()
    again = Terminal(keeper, call, mode="attach", rank=0)
    assert "41\n(Pdb) " in again.until("(Pdb) ")
    again.type("", interrupt=True)
    again.until("KeyboardInterrupt")
    keeper.send(Frame(Kind.CANCEL, call, {"reason": "cancelled", "grace_ms": 5000}))
    assert keeper.error(call)["cause"] == "cancelled"
    assert again.closed()["reason"] in ("the gang has ended", "rank 0 has ended")


def test_a_shell_has_its_ranks_place_and_no_more_is_under_way_than_its_reader_takes(gangs: Gangs) -> None:
    keeper = gangs.one(stops, ranks=2)
    keeper.ready()
    call = keeper.call(0)
    stopped_at(keeper)
    shell = Terminal(keeper, call, mode="shell", rank=1, plain=True, command="echo $RANK of $WORLD_SIZE; exit 3")
    assert shell.closed() == {"exit_code": 3}
    assert shell.text == "1 of 2\n"
    flood = Terminal(keeper, call, mode="shell", rank=0, plain=True, command="(sleep 1000 &) ; seq 1 100000")
    keeper.wait_for(lambda _: len(flood.text) >= TERMINAL_WINDOW, "as much as may be under way")
    assert Terminal(keeper, call, mode="shell", rank=1, command="true").closed()["exit_code"] == 0
    assert len(flood.text) == TERMINAL_WINDOW
    while not flood.text.endswith("100000\n"):
        shown = len(flood.text)
        flood.type("")
        keeper.wait_for(lambda _, shown=shown: len(flood.text) > shown, "more")
    assert flood.closed()["exit_code"] == 0
    assert Terminal(keeper, call, mode="shell", rank=9, command="true").first.meta["elsewhere"]
    keeper.stop(grace_ms=0)


def test_a_gang_is_held_after_a_failure_that_is_told_at_once(gangs: Gangs) -> None:
    keeper = gangs.one(fails_on_1, ranks=2, limits=Limits(hold_on_failure_s=600))
    pids = keeper.pids()
    call = keeper.call()
    failure = keeper.outcome(call, within_s=10)
    assert (failure.kind, failure.meta["held"]) == (Kind.FAILURE, True)
    assert "no data" in failure.meta["error"]["message"]
    held = keeper.wait_for(lambda f: f.kind is Kind.RANK and "held" in f.meta, "HELD").meta
    assert held["held"] == call.hex()
    keeper.send(Frame(Kind.LOOK, new_raw_id(), {"full": True}))
    seen = keeper.wait_for(lambda f: f.kind is Kind.SEEN, "SEEN").meta
    assert [(r["replied"], r["failed"]) for r in seen["ranks"]] == [(False, False), (True, True)]
    assert Terminal(keeper, call, mode="shell", rank=0, command="exit 5").closed() == {"exit_code": 5}
    assert keeper.error(keeper.call())["message"].startswith("the gang ended before the call began")
    assert all(process_exists(pid) for pid in pids)
    assert keeper.stop(grace_ms=0)["counters"]["debug"] > 0
    assert not any(process_exists(pid) for pid in pids)


def test_a_gang_is_held_no_longer_than_asked_and_not_after_a_cancel(gangs: Gangs) -> None:
    keeper = gangs.one(fails_on_1, ranks=2, limits=Limits(hold_on_failure_s=0.3))
    keeper.ready()
    assert keeper.error(keeper.call())["message"] == "no data"
    assert "no data" in keeper.ended(within_s=10)["error"]["message"]
    other = gangs.one(stops, limits=Limits(hold_on_failure_s=600))
    other.ready()
    call = other.call(0)
    stopped_at(other)
    other.send(Frame(Kind.CANCEL, call, {"reason": "cancelled", "grace_ms": 100}))
    other.ended(within_s=10)


def waits_then(raises: bool) -> None:
    breakpoint()
    if raises:
        raise ValueError("no data")


@pytest.mark.parametrize("raises", [False, True])
def test_a_shell_and_what_it_runs_outlive_the_call_beside_which_it_was_opened(gangs: Gangs, raises: bool) -> None:
    keeper = gangs.one(waits_then, gpus=0)
    keeper.ready()
    call = keeper.call(raises)
    stopped_at(keeper)
    shell = Terminal(keeper, call, mode="shell", rank=0)
    shell.type("sleep 600 & echo job $((40 + 2))\n")
    shell.until("job 42")
    debugger = Terminal(keeper, call, mode="attach", rank=0)
    debugger.until("(Pdb) ")
    debugger.type("c\n")
    assert keeper.outcome(call).kind is (Kind.FAILURE if raises else Kind.RESULT)
    shell.type("jobs; echo still $((50 + 5))\n")
    assert "Running" in shell.until("still 55")
    shell.type("exit 9\n")
    assert shell.closed() == {"exit_code": 9}


def starts_a_daemon() -> bool:
    """Says whether a daemon lives on when the process that started it, a session's leader, is gone."""
    import subprocess
    import sys
    import time
    from pathlib import Path

    script = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
daemon = os.fork()
if daemon:
    print(os.getpid(), daemon, flush=True)
    os._exit(0)
os.close(1)
time.sleep(600)
"""
    done = subprocess.run([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, check=True)
    leader, daemon = map(int, done.stdout.split())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{leader}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # what would end it comes with the leader's end
    stat = Path(f"/proc/{daemon}/stat")
    return (
        not Path(f"/proc/{leader}").exists() and stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    )


def test_a_daemon_lives_as_long_as_its_call_though_its_parents_are_gone(gangs: Gangs) -> None:
    keeper = gangs.one(starts_a_daemon, gpus=0)
    keeper.ready()
    assert keeper.result(keeper.call()) is True
