"""The watch over a running call: what counts as life, when a stall is told and ended, and over several nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from phalanx.core.clock import ManualClock
from phalanx.core.collectives import Collective, RankState, to_dict
from phalanx.core.frames import Frame, Kind
from phalanx.core.messages import ErrorInfo, Member
from phalanx.core.spec import FunctionSpec, Limits
from phalanx.core.stacks import Place
from phalanx.core.states import Cause
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.hang import STALL_MS, HangWatch
from phalanx_agent.keeper.looking import Looker
from phalanx_agent.keeper.loop import Loop
from tests.support.gang_configs import gang_config

NO_TEXT: list[str] = []


def config_of(*, nodes: int = 1, hang_s: float = 10, node_rank: int = 0) -> GangConfig:
    members = tuple(Member(node_id=f"n{n}", first_rank=2 * n, ranks=2, gpus=()) for n in range(nodes))
    function = FunctionSpec(name="train", limits=Limits(hang_timeout_s=hang_s))
    return gang_config(function, *members, node_rank=node_rank)


def waits(rank: int, seq: int = 3) -> RankState:
    last = (Collective(seq=seq, op="all_reduce", sizes="4", dtypes="float"),)
    at = RankState(rank=rank, node_id=f"n{rank // 2}", answered=True, last=last)
    return replace(at, entered={"0": seq}, completed={"0": seq - 1})


def works(rank: int, seq: int = 2) -> RankState:
    at = replace(waits(rank, seq), completed={"0": seq}, last=())
    return replace(at, places=(Place("train.py", 88, "step"),))


def returned(rank: int, seq: int = 2) -> RankState:
    return replace(works(rank, seq), replied=True, places=())


@dataclass
class Watched:
    """A watch, its clock, and what it told. ``local`` are the local ranks, as the next look finds them."""

    config: GangConfig
    local: list[RankState]
    output: int = 0
    clock: ManualClock = field(default_factory=ManualClock)
    stalls: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    hung: list[ErrorInfo] = field(default_factory=list[ErrorInfo])
    told: list[Frame] = field(default_factory=list[Frame])
    elsewhere: list[RankState] = field(default_factory=list[RankState])
    looks: int = 0

    def __post_init__(self) -> None:
        self.loop = Loop(self.clock)
        self.watch = HangWatch(
            config=self.config,
            loop=self.loop,
            clock=self.clock,
            looker=cast("Looker", self),
            output=lambda: self.output,
            tell=self._tell,
            running=lambda: "c0",
            stalled=self.stalls.append,
            note=self.notes.append,
            hung=lambda error, _: self.hung.append(error),
        )

    def look(self, told: Callable[[list[RankState]], None], *, full: bool, within_ms: int) -> None:
        del full, within_ms
        self.looks += 1
        told(self.local)

    def _tell(self, frame: Frame) -> None:
        """The other node answers at once, where there is one that answers."""
        self.told.append(frame)
        if frame.kind is Kind.LOOK and self.elsewhere:
            meta: dict[str, Any] = {"ranks": [to_dict(s) for s in self.elsewhere], "signs": []}
            self.loop.at("answer", self.clock.monotonic_ms(), lambda: self.watch.seen(Frame(Kind.SEEN, frame.id, meta)))

    def passes(self, seconds: float, *, then: Callable[[], None] = lambda: None) -> None:
        """Lets time go by in tenths of a second, and calls ``then`` in each."""
        for _ in range(int(seconds * 10)):
            self.clock.advance(100)
            then()
            self.loop.at("test", self.clock.monotonic_ms(), lambda: None)
            self.loop.turn()


def watched(*local: RankState, nodes: int = 1, hang_s: float = 10, elsewhere: tuple[RankState, ...] = ()) -> Watched:
    made = Watched(config_of(nodes=nodes, hang_s=hang_s), list(local), elsewhere=list(elsewhere))
    made.watch.begin()
    return made


def test_a_stall_is_told_at_half_the_time_and_ended_at_the_full() -> None:
    gang = watched(waits(0), works(1))
    gang.passes(1)  # the first look, from which the time counts
    gang.passes(4.9)
    assert gang.stalls == NO_TEXT
    gang.passes(0.3)
    text = "no progress for 5 s: rank 0 waits in all_reduce #3 of 4 float, rank 1 is in user code at train.py:88"
    assert gang.stalls == gang.notes == [text]
    gang.passes(4.5)
    assert not gang.hung
    gang.passes(0.5)
    (error,) = gang.hung
    assert (error.cause, error.rank, error.type_name) == (Cause.HANG, 1, "GangHangError")
    assert "hang_timeout=10 s" in error.message
    assert "rank 1 did not go on with the others" in error.message
    assert 'File "train.py", line 88, in step' in error.traceback
    assert [(r.rank, r.culprit) for r in error.ranks] == [(0, False), (1, True)]


def test_where_the_odd_one_cannot_be_told_everybody_is_shown() -> None:
    gang = watched(works(0), works(1))
    gang.passes(11)
    (error,) = gang.hung
    assert error.rank == -1
    assert "which rank is at fault cannot be told; ranks 0,1 are in user code" in error.message
    assert not any(r.culprit for r in error.ranks)


@pytest.mark.parametrize("sign", ["mark", "output", "collective", "completed", "reply"])
def test_each_sign_of_life_begins_the_time_anew(sign: str) -> None:
    gang = watched(waits(0), works(1))

    def lives() -> None:
        number = gang.clock.monotonic_ms() // 1000
        match sign:
            case "mark":
                gang.watch.marked()
            case "output":
                gang.output += 1
            case "collective":
                gang.local = [waits(0, 3 + number), works(1)]
            case "completed":
                gang.local = [replace(waits(0), completed={"0": number}), works(1)]
            case _:
                gang.local = [waits(0), returned(1) if number % 2 else works(1)]

    gang.passes(30, then=lives)
    assert not gang.hung
    assert gang.stalls == NO_TEXT


def test_processor_time_and_living_processes_are_no_sign() -> None:
    gang = watched(waits(0), works(1))
    gang.passes(11, then=lambda: gang.local.__setitem__(1, replace(gang.local[1], pid=7, places=())))
    assert gang.hung


def test_a_rank_that_holds_the_interpreter_is_silent_and_not_dead() -> None:
    gang = watched(waits(0), works(1))
    gang.passes(3)
    silent = replace(works(1), answered=False, entered={}, completed={})
    gang.local = [waits(0), silent]
    gang.passes(8)
    assert gang.hung[0].rank == 1
    assert "rank 1 is in user code at train.py:88" in gang.hung[0].message


def test_a_stall_that_goes_on_is_taken_back() -> None:
    gang = watched(waits(0), works(1))
    gang.passes(6)
    gang.watch.marked()
    gang.passes(2)
    assert gang.stalls[-1] == ""
    assert gang.notes[-1] == "it goes on"
    assert not gang.hung


def test_without_a_limit_a_stall_is_told_and_nothing_ends() -> None:
    gang = watched(waits(0), works(1), hang_s=0)
    gang.passes(STALL_MS / 1000 + 6)
    assert len(gang.stalls) == 1
    assert not gang.hung


def test_nothing_is_looked_at_between_calls() -> None:
    gang = watched(waits(0), works(1))
    gang.passes(6)
    gang.watch.rest()
    assert gang.stalls[-1] == ""
    looks = gang.looks
    gang.passes(20)
    assert gang.looks == looks
    assert not gang.hung


def test_over_two_nodes_the_odd_rank_of_the_other_is_named() -> None:
    gang = watched(waits(0), waits(1), nodes=2, elsewhere=(works(2), waits(3)))
    gang.passes(12)
    assert (gang.hung[0].rank, gang.hung[0].node_id) == (2, "n1")


def test_nobody_is_named_while_a_node_does_not_answer() -> None:
    gang = watched(waits(0), works(1), nodes=2)
    gang.passes(40)
    assert not gang.hung
    gang.elsewhere = [waits(2), waits(3)]
    gang.passes(14)
    assert gang.hung[0].rank == 1


def test_the_leads_ranks_have_returned_and_the_other_nodes_wait_for_one_of_them() -> None:
    gang = watched(waits(0), works(1), nodes=2, elsewhere=(waits(2), waits(3)))
    gang.passes(1)
    gang.local = [returned(0, 3), returned(1, 2)]
    gang.watch.rest()
    gang.passes(12)
    assert gang.hung[0].rank == 1


def test_the_watch_ends_when_the_ranks_of_all_nodes_have_returned() -> None:
    gang = watched(waits(0), works(1), nodes=2, elsewhere=(returned(2, 3), returned(3, 3)))
    gang.local = [returned(0, 3), returned(1, 3)]
    gang.watch.rest()
    gang.passes(2)
    looks = gang.looks
    gang.passes(30)
    assert gang.looks == looks
    assert not gang.hung


def test_a_node_that_does_not_lead_watches_nothing_and_answers_what_it_is_asked() -> None:
    gang = Watched(config_of(nodes=2, node_rank=1), [waits(2), works(3)])
    gang.watch.begin()
    gang.passes(20)
    assert gang.told == []
    gang.watch.asked(Frame(Kind.LOOK, b"q" * 16, {"full": True}))
    (frame,) = gang.told
    assert (frame.kind, frame.id, frame.meta["call"]) == (Kind.SEEN, b"q" * 16, "c0")
    assert [r["rank"] for r in frame.meta["ranks"]] == [2, 3]


@pytest.mark.parametrize("meta", [{}, {"ranks": 3}, {"ranks": [{"rank": 2}]}])
def test_an_answer_that_makes_no_sense_is_not_counted(meta: dict[str, Any]) -> None:
    gang = watched(waits(0), works(1), nodes=2)
    gang.passes(2.1)
    asked = next(f for f in gang.told if f.kind is Kind.LOOK)
    gang.watch.seen(Frame(Kind.SEEN, asked.id, meta))
    gang.passes(20)
    assert not gang.hung
