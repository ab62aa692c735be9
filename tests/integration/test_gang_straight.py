"""Calls that come over a lane, at a real keeper with real ranks: taken when nothing else is here, else passed on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.frames import LANE_BITS, SENT_AHEAD, Frame, Kind, encode_head
from phalanx.core.ids import new_raw_id
from phalanx.core.serialization import unpack
from phalanx.core.spec import Limits
from tests.support.gang_driver import Gangs, Keeper, process_exists
from tests.support.lane_client import LANE, Client, count_to, lane_of, learn_that_calls_are_short, of, ran, stopped
from tests.support.wait import wait_until


def echo(value: Any) -> Any:
    return value


def wait_for(path: str) -> str:
    import pathlib
    import threading

    pathlib.Path(path + ".here").touch()
    while not pathlib.Path(path).exists():
        threading.Event().wait(0.01)
    return path


def fail(text: str) -> None:
    raise ValueError(text)


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    opened: list[Client] = []
    yield opened
    for client in opened:
        client.sock.close()


def test_a_call_goes_to_the_ranks_and_back_past_the_agent_which_hears_of_its_end(
    gangs: Gangs, clients: list[Client]
) -> None:
    keeper = gangs.one(echo, gpus=0)
    client = lane_of(keeper, clients)
    for value in range(3):
        call = client.call(value)
        answer = client.answer()
        assert (answer.kind, answer.id, unpack(answer.body)) == (Kind.RESULT, call, value)
        assert of(keeper, Kind.RESULT, call).lane == LANE
    assert not [f for f in keeper.seen if f.kind in (Kind.STARTED, Kind.CALL)]


def test_every_rank_of_a_gang_runs_it(gangs: Gangs, clients: list[Client]) -> None:
    keeper = gangs.one(echo, ranks=2, returns="all")
    client = lane_of(keeper, clients)
    call = client.call("both")
    assert of(keeper, Kind.RESULT, call).meta["parts"]
    assert client.answer().id == call


def test_while_another_call_runs_it_is_the_agents_to_decide(
    gangs: Gangs, clients: list[Client], tmp_path: Path
) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    client = lane_of(keeper, clients)
    running = keeper.call(str(tmp_path / "go"))
    wait_until((tmp_path / "go.here").exists, "the first call runs")
    second = client.call(str(tmp_path / "second"))
    passed_on = of(keeper, Kind.CALL, second)
    assert passed_on.lane == LANE
    assert unpack(passed_on.body) == ((str(tmp_path / "second"),), {})
    (tmp_path / "go").touch()
    assert keeper.result(running) == str(tmp_path / "go")
    assert not (tmp_path / "second.here").exists()


def test_the_agent_hears_of_a_call_that_runs_for_a_while(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    client = lane_of(keeper, clients)
    call = client.call(str(tmp_path / "go"))
    started = of(keeper, Kind.STARTED, call)
    assert started.lane == LANE
    assert started.meta["busy_ms"] >= 100
    (tmp_path / "go").touch()
    assert client.answer().id == call


def test_a_failure_goes_through_the_agent_with_the_lane_that_it_belongs_to(gangs: Gangs, clients: list[Client]) -> None:
    keeper = gangs.one(fail, gpus=0)
    client = lane_of(keeper, clients)
    call = client.call("mine")
    told = of(keeper, Kind.FAILURE, call)
    assert (told.lane, told.meta["lane"], told.meta["error"]["message"]) == (0, LANE, "mine")


def test_the_functions_time_limit_holds(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(wait_for, gpus=0, limits=Limits(timeout_s=0.3, grace_s=0.2))
    client = lane_of(keeper, clients)
    call = client.call(str(tmp_path / "never"))
    told = of(keeper, Kind.FAILURE, call)
    assert told.meta["outcome"] == "timed_out"


def test_a_cancel_comes_to_the_agent_behind_its_call(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    client = lane_of(keeper, clients)
    call = client.call(str(tmp_path / "never"))
    client.sock.sendall(encode_head(Frame(Kind.CANCEL, call, {"reason": "cancelled"})))
    assert of(keeper, Kind.CANCEL, call).lane == LANE
    about_it = [f.kind for f in keeper.seen if f.id == call]
    assert about_it == [Kind.STARTED, Kind.CANCEL]
    keeper.send(Frame(Kind.CANCEL, call, {"reason": "cancelled", "grace_ms": 200}))
    assert of(keeper, Kind.FAILURE, call).meta["outcome"] == "cancelled"


def test_a_call_that_runs_is_told_before_its_lanes_end(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    client = lane_of(keeper, clients)
    call = client.call(str(tmp_path / "go"))
    wait_until((tmp_path / "go.here").exists, "it runs")
    keeper.send(Frame(Kind.LANE, flags=LANE << LANE_BITS))
    keeper.wait_for(lambda f: f.kind is Kind.LANE, "the lane's end")
    assert [f.kind for f in keeper.seen if f.id == call or f.kind is Kind.LANE] == [Kind.STARTED, Kind.LANE]
    assert client.is_closed()
    (tmp_path / "go").touch()
    assert of(keeper, Kind.RESULT, call).lane == 0


def test_a_call_that_was_asked_for_in_vain_is_not_taken_when_it_comes(gangs: Gangs, clients: list[Client]) -> None:
    keeper = gangs.one(echo, gpus=0)
    client = lane_of(keeper, clients)
    late = new_raw_id()
    keeper.send(Frame(Kind.ASK, late))
    of(keeper, Kind.UNKNOWN, late)
    client.call("late", call_id=late)
    of(keeper, Kind.CALL, late)
    assert client.call("next") == client.answer().id
    assert not [f for f in keeper.seen if f.id == late and f.kind is Kind.RESULT]


def test_whoever_asks_hears_of_a_call_that_runs_and_of_one_that_has_ended(
    gangs: Gangs, clients: list[Client], tmp_path: Path
) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    client = lane_of(keeper, clients)
    call = client.call(str(tmp_path / "go"))
    wait_until((tmp_path / "go.here").exists, "it runs")
    keeper.send(Frame(Kind.ASK, call))
    of(keeper, Kind.STARTED, call)
    (tmp_path / "go").touch()
    client.answer()
    of(keeper, Kind.RESULT, call)
    keeper.send(Frame(Kind.ASK, call))
    wait_until(lambda: _results(keeper, call) == 2, "the outcome is told again")


def _results(keeper: Keeper, call: bytes) -> int:
    keeper.send(Frame(Kind.PING))
    count = sum(f.kind is Kind.PONG for f in keeper.seen)
    keeper.wait_for(lambda f: f.kind is Kind.PONG and sum(s.kind is Kind.PONG for s in keeper.seen) > count, "PONG")
    return sum(f.kind is Kind.RESULT and f.id == call for f in keeper.seen)


def test_an_ending_gang_begins_nothing_and_loses_nothing(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    client = lane_of(keeper, clients)
    running = client.call(str(tmp_path / "never"))
    wait_until((tmp_path / "never.here").exists, "it runs")
    second = client.call(str(tmp_path / "second"))
    keeper.stop(grace_ms=200)
    assert of(keeper, Kind.FAILURE, running).meta["error"]["cause"] == "infrastructure"
    of(keeper, Kind.CALL, second)
    with pytest.raises(BrokenPipeError):
        client.call("too late")


def test_without_an_agent_no_call_begins(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    client = lane_of(keeper, clients)
    (tmp_path / "go").touch()
    assert client.call(str(tmp_path / "go")) == client.answer().id
    keeper.detach()
    # the keeper must have seen the end before the call comes: nothing tells, so it is sent until one is not begun
    wait_until(lambda: not _begins(client, tmp_path), "calls are not begun any more")
    again = Keeper(keeper.pid, keeper.gang_dir).attach()
    state = again.wait_for(lambda f: f.kind is Kind.STATE, "STATE")
    assert state.meta["running"] == ""
    assert client.is_closed()
    assert process_exists(keeper.pid)


def _begins(client: Client, tmp_path: Path) -> bool:
    client.call(str(tmp_path / "go"))
    client.sock.settimeout(1)
    try:
        client.answer()
    except TimeoutError:
        return False
    return True


def test_the_next_agent_finds_a_call_of_a_former_ones_lane(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    client = lane_of(keeper, clients)
    call = client.call(str(tmp_path / "go"))
    wait_until((tmp_path / "go.here").exists, "it runs")
    again = Keeper(keeper.pid, keeper.gang_dir).attach()
    assert again.wait_for(lambda f: f.kind is Kind.STATE, "STATE").meta["running"] == call.hex()
    (tmp_path / "go").touch()
    told = again.outcome(call)
    assert (told.lane, "lane" in told.meta) == (0, False), "its lane numbers are its own"


def test_short_calls_of_one_client_run_one_after_the_other(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(count_to, gpus=0)
    client = lane_of(keeper, clients)
    learn_that_calls_are_short(client, tmp_path)
    stopped(keeper)
    calls = [client.call(str(tmp_path), value) for value in range(12)]
    os.kill(keeper.pid, signal.SIGCONT)
    for call in calls:
        assert of(keeper, Kind.RESULT, call).lane == LANE
    assert ran(tmp_path) == list(range(12))
    assert not [f for f in keeper.seen if f.kind is Kind.CALL]


def test_more_than_it_takes_at_once_are_passed_on(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(count_to, gpus=0)
    client = lane_of(keeper, clients)
    learn_that_calls_are_short(client, tmp_path)
    stopped(keeper)
    calls = [client.call(str(tmp_path), value) for value in range(SENT_AHEAD + 4)]
    os.kill(keeper.pid, signal.SIGCONT)
    for call in calls[-3:]:
        assert of(keeper, Kind.CALL, call).lane == LANE
    of(keeper, Kind.RESULT, calls[SENT_AHEAD])
    assert ran(tmp_path) == list(range(SENT_AHEAD + 1))


def test_of_calls_that_are_not_short_one_is_taken(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(count_to, gpus=0)
    client = lane_of(keeper, clients)
    first, second = client.call(str(tmp_path), -1), client.call(str(tmp_path), 2)
    assert of(keeper, Kind.CALL, second).lane == LANE
    (tmp_path / "go").touch()
    of(keeper, Kind.RESULT, first)
    assert ran(tmp_path) == [-1]


def test_another_clients_call_waits_at_the_agent(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    keeper = gangs.one(count_to, gpus=0)
    client, other = lane_of(keeper, clients), lane_of(keeper, clients, LANE + 1)
    learn_that_calls_are_short(client, tmp_path)
    client.call(str(tmp_path), -1)
    wait_until(lambda: ran(tmp_path) == [-1], "it runs")
    theirs = other.call(str(tmp_path), 2)
    assert of(keeper, Kind.CALL, theirs).lane == LANE + 1
    (tmp_path / "go").touch()


@dataclass(slots=True)
class Behind:
    """A call that runs for long, and two behind it, all over one lane. ``folder`` is theirs."""

    keeper: Keeper
    client: Client
    folder: Path
    calls: list[bytes]

    def go(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture
def behind(gangs: Gangs, clients: list[Client], tmp_path: Path) -> Behind:
    keeper = gangs.one(count_to, gpus=0)
    client = lane_of(keeper, clients)
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        learn_that_calls_are_short(client, folder)
        stopped(keeper)
        calls = [client.call(str(folder), value) for value in (-1, 2, 3)]
        os.kill(keeper.pid, signal.SIGCONT)
        wait_until(lambda folder=folder: ran(folder) == [-1], "the first runs")
        made = Behind(keeper, client, folder, calls)
        if not _passed_on(keeper, calls):
            return made
        made.go()  # on a busy machine the keeper was too slow to think it short
        of(keeper, Kind.RESULT, calls[0])
    raise AssertionError("no call waited behind the first")


def _passed_on(keeper: Keeper, calls: list[bytes]) -> bool:
    _results(keeper, calls[0])
    return any(f.kind is Kind.CALL and f.id in calls for f in keeper.seen)


def test_with_their_lane_calls_that_wait_become_the_agents(behind: Behind) -> None:
    keeper, (running, second, third) = behind.keeper, behind.calls
    keeper.send(Frame(Kind.LANE, flags=LANE << LANE_BITS))
    keeper.wait_for(lambda f: f.kind is Kind.LANE, "the lane's end")
    told = [(f.kind, f.id) for f in keeper.seen if f.kind is Kind.LANE or f.id in behind.calls]
    assert told[-4:] == [*((Kind.STARTED, call) for call in (running, second, third)), (Kind.LANE, bytes(16))]
    assert [f.meta.get("waits", False) for f in keeper.seen if f.kind is Kind.STARTED][-3:] == [False, True, True]
    behind.go()
    for call in behind.calls:
        assert not of(keeper, Kind.RESULT, call).lane
    assert ran(behind.folder) == [-1, 2, 3]


def test_a_cancelled_call_that_waits_at_the_rank_is_passed_over(behind: Behind) -> None:
    keeper, client, (running, second, third) = behind.keeper, behind.client, behind.calls
    client.sock.sendall(encode_head(Frame(Kind.CANCEL, second, {"reason": "cancelled"})))
    of(keeper, Kind.CANCEL, second)
    assert [f.kind for f in keeper.seen if f.id == second] == [Kind.STARTED, Kind.CANCEL]
    keeper.send(Frame(Kind.CANCEL, second, {"reason": "cancelled"}))
    keeper.send(Frame(Kind.PING))
    keeper.wait_for(lambda f: f.kind is Kind.PONG, "it has heard of it")
    behind.go()
    of(keeper, Kind.RESULT, running)
    assert of(keeper, Kind.FAILURE, second).meta["outcome"] == "cancelled"
    of(keeper, Kind.RESULT, third)
    assert ran(behind.folder) == [-1, 3]
    assert not [f for f in keeper.seen if f.kind is Kind.ENDED]


def test_whoever_asks_for_a_call_that_waits_at_the_rank_is_told_of_it(behind: Behind) -> None:
    keeper, (_, second, third) = behind.keeper, behind.calls
    keeper.send(Frame(Kind.ASK, second))
    assert of(keeper, Kind.STARTED, second).meta["waits"]
    behind.go()
    of(keeper, Kind.RESULT, third)
    assert ran(behind.folder) == [-1, 2, 3]
