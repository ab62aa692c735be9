"""Looking at ranks from outside: real sockets, files and the real signal; the ranks are this test's own process."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import phalanx_agent
from phalanx.core.clock import ManualClock
from phalanx.core.collectives import RankState, describe
from phalanx_agent.keeper.channel import Channel
from phalanx_agent.keeper.looking import Looker
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.setup import STACK_SIGNAL

CALLS = Path(phalanx_agent.__file__).parent / "worker" / "calls.py"
BUNDLE = "/run/code/abc"
COUNTS = {"entered": {"0": 5}, "completed": {"0": 4}, "members": {}}
ENTRY = {"group": "0", "seq": 5, "op": "all_reduce", "sizes": "4", "dtypes": "float", "done": False}
WORKS = f"""Current thread 0x01 (most recent call first):
  File "{BUNDLE}/train.py", line 88 in step
  File "{CALLS}", line 120 in _call_user
"""
WRITES_DOWN_ITS_FAILURE = f"""Current thread 0x01 (most recent call first):
  File "/usr/lib/python3.11/linecache.py", line 30 in getline
  File "{CALLS}", line 190 in _fail
"""


@dataclass
class Ranks:
    """Ranks that answer only when told to. Rank 0 writes the next of ``dumps`` when it does so, or at a signal."""

    folder: Path
    dumps: list[str] = field(default_factory=list[str])
    replied: dict[int, bool] = field(default_factory=dict[int, bool])
    clock: ManualClock = field(default_factory=ManualClock)
    told: list[list[RankState]] = field(default_factory=list[list[RankState]])
    signals: int = 0

    def __post_init__(self) -> None:
        self.loop = Loop(self.clock)
        self.ends: list[socket.socket] = []
        self.ranks = [self._rank(number) for number in range(2)]
        self.looker = Looker(
            self.loop, self.clock, self.ranks, "n0", bundle_dir=BUNDLE, replied=lambda: dict(self.replied)
        )
        self.looker.watch()

    def _rank(self, number: int) -> RankProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.settimeout(1)
        self.ends.append(theirs)
        path = self.folder / f"rank{number}.stack"
        path.touch()
        rank = RankProcess(number, os.getpid(), 100 + number, Channel(socket.socket()), [], path, ours.detach())
        rank.started = number == 0
        rank.ready = True
        return rank

    def signalled(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.signals += 1
        if self.dumps:
            self.writes(self.dumps.pop(0))

    def writes(self, dump: str) -> None:
        with self.ranks[0].stack_path.open("a") as file:
            file.write(dump)

    def look(self, *, full: bool = True) -> None:
        self.looker.look(self.told.append, full=full, within_ms=150)

    def answer(self, number: int, value: object = None, *, asked: bytes = b"f") -> None:
        assert self.ends[number].recv(64) == asked
        if asked == b"f" and number == 0 and self.dumps:
            self.writes(self.dumps.pop(0))
        text = json.dumps({**COUNTS, "last": [ENTRY]} if value is None else value)
        self.ends[number].send(text.encode())

    def passes(self, ms: int) -> None:
        for _ in range(ms // 10):
            self.clock.advance(10)
            self.loop.at("test", self.clock.monotonic_ms(), lambda: None)
            self.loop.turn()

    @property
    def states(self) -> list[RankState]:
        assert len(self.told) == 1
        return self.told[0]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    former = signal.signal(STACK_SIGNAL, made.signalled)
    yield made
    signal.signal(STACK_SIGNAL, former)
    made.loop.close()
    for end, rank in zip(made.ends, made.ranks, strict=True):
        end.close()
        os.close(rank.look_fd)


def test_a_look_is_told_when_all_have_answered_and_their_stacks_are_whole(ranks: Ranks) -> None:
    ranks.dumps = [WORKS]
    ranks.look()
    ranks.answer(0)
    ranks.answer(1)
    ranks.passes(30)
    assert ranks.signals == 0
    assert [s.answered for s in ranks.states] == [True, True]
    assert [p.short for p in ranks.states[0].places] == ["train.py:88"]
    assert ranks.states[0].places[0].file == "train.py"
    assert describe(ranks.states) == "ranks 0,1 wait in all_reduce #5 of 4 float"


def test_a_rank_that_does_not_answer_is_told_by_its_stack_at_the_deadline(ranks: Ranks) -> None:
    ranks.dumps = [WORKS]
    ranks.look()
    ranks.answer(1)
    ranks.passes(60)
    assert ranks.signals == 0
    ranks.passes(80)
    assert ranks.signals == 1
    assert not ranks.told
    ranks.passes(20)
    assert [s.answered for s in ranks.states] == [False, True]
    assert describe(ranks.states[:1]) == "rank 0 is in user code at train.py:88"


def test_a_late_answer_belongs_to_the_look_that_asked(ranks: Ranks) -> None:
    ranks.look(full=False)
    ranks.answer(1, asked=b"l")
    ranks.passes(150)
    assert not ranks.states[0].answered
    ranks.told.clear()
    ranks.look(full=False)
    ranks.answer(0, {**COUNTS, "entered": {"0": 1}, "last": []}, asked=b"l")
    ranks.answer(0, asked=b"l")
    ranks.answer(1, asked=b"l")
    ranks.passes(10)
    assert ranks.states[0].entered == {"0": 5}


def test_a_rank_that_never_answers_is_not_asked_without_end(ranks: Ranks) -> None:
    for _ in range(10):
        ranks.look(full=False)
        ranks.passes(150)
    ranks.ends[0].setblocking(False)
    asked = [ranks.ends[0].recv(64) for _ in range(4)]
    assert asked == [b"l"] * 4
    with pytest.raises(BlockingIOError):
        ranks.ends[0].recv(64)


@pytest.mark.parametrize(
    "value", [3, {}, {**COUNTS, "last": [{"x": 1}]}, {**COUNTS, "entered": {"0": "much"}, "last": []}]
)
def test_an_answer_that_makes_no_sense_says_nothing(ranks: Ranks, value: Any) -> None:
    ranks.look(full=False)
    ranks.answer(0, value, asked=b"l")
    ranks.answer(1, asked=b"l")
    ranks.passes(10)
    assert [s.answered for s in ranks.states] == [False, True]


def test_a_rank_whose_reader_is_gone_keeps_no_look_waiting(ranks: Ranks) -> None:
    ranks.ends[0].close()
    ranks.look(full=False)
    ranks.answer(1, asked=b"l")
    ranks.passes(20)
    assert [s.answered for s in ranks.states] == [False, True]


def test_a_rank_that_writes_down_its_failure_is_waited_for_and_shown_as_failed(ranks: Ranks) -> None:
    ranks.dumps = [WRITES_DOWN_ITS_FAILURE]
    ranks.look()
    ranks.answer(0)
    ranks.answer(1)
    ranks.passes(60)
    assert not ranks.told
    ranks.replied[0] = False
    ranks.passes(20)
    assert ranks.states[0].failed
    assert ranks.states[0].places == ()
    assert describe(ranks.states[:1]) == "rank 0 has failed in all_reduce #5 of 4 float"


def test_a_failure_that_is_never_told_delays_a_look_to_its_deadline_only(ranks: Ranks) -> None:
    ranks.dumps = [WRITES_DOWN_ITS_FAILURE]
    ranks.look()
    ranks.answer(0)
    ranks.answer(1)
    ranks.passes(160)
    assert not ranks.states[0].replied


def test_a_stack_that_comes_in_two_pieces_is_read_whole(ranks: Ranks) -> None:
    head, tail = WORKS[:60], WORKS[60:]
    ranks.dumps = [head]
    ranks.ranks[0].ready = False
    ranks.look()
    ranks.answer(1)
    ranks.writes(tail)
    ranks.passes(40)
    assert [p.line for p in ranks.states[0].places] == [88]


def test_a_rank_that_has_no_reader_yet_is_signalled_at_once(ranks: Ranks) -> None:
    ranks.dumps = [WORKS]
    ranks.ranks[0].ready = False
    ranks.look()
    ranks.answer(1)
    ranks.passes(30)
    assert ranks.signals == 1
    assert [p.short for p in ranks.states[0].places] == ["train.py:88"]


def test_a_rank_is_not_signalled_while_its_reader_may_write_down_its_stacks(ranks: Ranks) -> None:
    """Both at once would walk through the stack of a thread that runs, and that may crash the rank."""
    ranks.dumps = [WORKS]
    ranks.look()
    ranks.answer(1)
    ranks.passes(60)
    ranks.answer(0)
    ranks.passes(20)
    assert ranks.signals == 0
    assert [p.short for p in ranks.states[0].places] == ["train.py:88"]


def test_a_stack_that_was_asked_for_is_not_taken_for_a_crash(ranks: Ranks) -> None:
    ranks.dumps = [WORKS]
    ranks.look()
    ranks.answer(0)
    ranks.answer(1)
    ranks.passes(40)
    assert ranks.ranks[0].stack() == ""
    ranks.writes("Fatal Python error: Aborted\n")
    assert ranks.ranks[0].stack() == "Fatal Python error: Aborted\n"


def test_neither_a_dead_rank_nor_one_that_has_not_begun_is_signalled(ranks: Ranks) -> None:
    ranks.ranks[0].alive = False
    ranks.look()
    ranks.answer(1)
    ranks.passes(10)
    assert ranks.signals == 0
    assert [s.alive for s in ranks.states] == [False, True]
