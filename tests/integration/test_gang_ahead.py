"""Short calls that a rank has before it has ended the one that it runs, at a real keeper with a real rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from phalanx.core.frames import Frame, Kind
from phalanx.core.logrecords import END, parse_end
from phalanx.core.serialization import unpack
from tests.support.gang_driver import Gangs, Keeper
from tests.support.lane_client import Client, lane_of, learn_that_calls_are_short, of, ran, stopped
from tests.support.wait import wait_until

LONG = -1
FAILS, EXITS, DIES = 100, 101, 102


def work(folder: str, value: int) -> int:
    """Notes the order and writes to both streams; what is special of a ``value`` comes after that."""
    import os
    import pathlib
    import threading

    with (pathlib.Path(folder) / "order").open("a") as out:
        out.write(f"{value}\n")
    print("out", value)
    os.write(2, f"err {value}\n".encode())
    while value < 0 and not (pathlib.Path(folder) / "go").exists():
        threading.Event().wait(0.005)
    if value == 100:
        raise ValueError("no")
    if value == 101:
        raise SystemExit(3)
    if value == 102:
        os._exit(4)
    return value


@dataclass(slots=True)
class Given:
    """A long call runs, and the rank has those behind it. The keeper stands still until `go_on`."""

    keeper: Keeper
    folder: Path
    calls: dict[int, bytes]

    def finish(self) -> None:
        """The rank does all that it can without its keeper, and only then the keeper goes on."""
        stopped(self.keeper)
        (self.folder / "go").touch()

    def go_on(self) -> None:
        os.kill(self.keeper.pid, signal.SIGCONT)

    def outcome(self, value: int) -> Frame:
        return self.keeper.outcome(self.calls[value])

    def told(self, value: int) -> list[Kind]:
        ends = (Kind.RESULT, Kind.FAILURE)
        return [f.kind for f in self.keeper.seen if f.id == self.calls[value] and f.kind in ends]


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    opened: list[Client] = []
    yield opened
    for client in opened:
        client.sock.close()


def given(gangs: Gangs, clients: list[Client], tmp_path: Path, *values: int) -> Given:
    """Behind a long call the rank has the next two. Begins again where a busy machine made calls look long."""
    keeper = gangs.one(work, gpus=0)
    client = lane_of(keeper, clients)
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        learn_that_calls_are_short(client, folder)
        stopped(keeper)
        made = Given(keeper, folder, {value: client.call(str(folder), value) for value in (LONG, *values)})
        made.go_on()
        wait_until(lambda folder=folder: ran(folder) == [LONG], "the first runs")
        second = made.calls[values[1]]
        keeper.send(Frame(Kind.ASK, second))
        asked = keeper.wait_for(lambda f, c=second: f.id == c, "what became of the second")
        if asked.kind is Kind.STARTED and asked.meta.get("waits"):
            return made
        (folder / "go").touch()
        of(keeper, Kind.RESULT, made.calls[LONG])
    raise AssertionError("no call was at the rank behind the first")


def test_the_rank_goes_on_by_itself(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    made = given(gangs, clients, tmp_path, 1, 2, 3)
    made.finish()
    wait_until(lambda: ran(made.folder) == [LONG, 1, 2], "it has run two more while its keeper stood still")
    made.go_on()
    assert [unpack(made.outcome(value).body) for value in made.calls] == [LONG, 1, 2, 3]


def test_what_each_call_wrote_is_its_own(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    made = given(gangs, clients, tmp_path, 1, 2, 3, 4)
    made.finish()
    wait_until(lambda: ran(made.folder) == [LONG, 1, 2], "two more have run")
    made.go_on()
    for value in made.calls:
        made.outcome(value)
    records = made.keeper.records()
    for value, call in made.calls.items():
        mine = [r for r in records if r.call == call]
        written = {stream: b"".join(r.data for r in mine if r.stream == stream) for stream in (1, 2)}
        assert written == {1: f"out {value}\n".encode(), 2: f"err {value}\n".encode()}
        (end,) = (parse_end(r) for r in mine if r.stream == END)
        assert end.bytes_by_rank == {0: len(f"out {value}\nerr {value}\n")}
        assert end.complete


def test_after_one_that_failed_the_others_still_run_once(gangs: Gangs, clients: list[Client], tmp_path: Path) -> None:
    made = given(gangs, clients, tmp_path, FAILS, 2, 3)
    made.finish()
    wait_until(lambda: ran(made.folder) == [LONG, FAILS], "it waits for its keeper after the failure")
    made.go_on()
    kinds = [made.outcome(value).kind for value in made.calls]
    assert kinds == [Kind.RESULT, Kind.FAILURE, Kind.RESULT, Kind.RESULT]
    assert ran(made.folder) == [LONG, FAILS, 2, 3]
    own = b"".join(r.data for r in made.keeper.records() if r.call == made.calls[2] and r.stream == 1)
    assert own == b"out 2\n"


@pytest.mark.parametrize("how", [EXITS, DIES])
def test_behind_one_that_ends_the_rank_none_began(
    gangs: Gangs, clients: list[Client], tmp_path: Path, how: int
) -> None:
    made = given(gangs, clients, tmp_path, how, 2, 3)
    made.finish()
    wait_until(lambda: ran(made.folder) == [LONG, how], "the rank has come to its end")
    made.go_on()
    assert made.keeper.ended()
    assert made.outcome(LONG).kind is Kind.RESULT
    assert "started" not in made.outcome(how).meta
    assert made.outcome(2).meta["started"] is False
    assert made.told(2) == [Kind.FAILURE]
    of(made.keeper, Kind.CALL, made.calls[3])
    assert ran(made.folder) == [LONG, how]
    for stream, word in ((1, "out"), (2, "err")):
        own = (r.data for r in made.keeper.records() if r.call == made.calls[how] and r.stream == stream)
        assert b"".join(own) == f"{word} {how}\n".encode()


def test_at_the_gangs_end_what_may_have_begun_is_not_given_back(
    gangs: Gangs, clients: list[Client], tmp_path: Path
) -> None:
    made = given(gangs, clients, tmp_path, 1, 2)
    made.keeper.send(Frame(Kind.STOP, meta={"reason": "test", "grace_ms": 3000}))
    wait_until(lambda: made.keeper.sock is not None and _ends(made.keeper), "the end has begun")
    (made.folder / "go").touch()
    assert made.keeper.ended()
    never = {value for value in made.calls if made.outcome(value).meta.get("started") is False}
    assert never.isdisjoint(ran(made.folder))


def _ends(keeper: Keeper) -> bool:
    keeper.send(Frame(Kind.PING))
    keeper.wait_for(lambda f: f.kind is Kind.PONG, "PONG")
    return True


def test_a_long_one_that_is_cancelled_gives_the_others_back(
    gangs: Gangs, clients: list[Client], tmp_path: Path
) -> None:
    made = given(gangs, clients, tmp_path, 1, 2)
    made.keeper.send(Frame(Kind.CANCEL, made.calls[LONG], {"reason": "cancelled", "grace_ms": 500}))
    assert made.outcome(LONG).meta["outcome"] == "cancelled"
    for value in (1, 2):
        assert made.outcome(value).meta["started"] is False
    assert ran(made.folder) == [LONG]
