"""When a gang's end is decided, and on what: victims wait for a better explanation, and ranks are looked at first."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from phalanx.core.clock import ManualClock
from phalanx.core.collectives import Collective, RankState
from phalanx.core.messages import ErrorInfo, Member
from phalanx.core.spec import FunctionSpec, Limits
from phalanx.core.states import Cause
from phalanx_agent.keeper.channel import Channel
from phalanx_agent.keeper.judging import Judge
from phalanx_agent.keeper.looking import Looker
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.report import Death, Evidence, Failure
from phalanx_agent.keeper.telling import Why
from tests.support.gang_configs import gang_config

ABORTED = Death(
    rank=0,
    pid=9,
    exit_code=0,
    signal=int(signal.SIGABRT),
    at_ms=1,
    last_lines="gloo: Is there a distributed collective mismatch in your code?",
)


def waits(rank: int, *, size: int = 4, seq: int = 3) -> RankState:
    last = (Collective(seq=seq, op="all_reduce", sizes=str(size), dtypes="float"),)
    return RankState(rank=rank, node_id="n0", answered=True, entered={"0": seq}, completed={"0": seq - 1}, last=last)


def peer(rank: int) -> Failure:
    error = ErrorInfo(rank=rank, node_id="n0", type_name="RuntimeError", message=f"{rank} lost a peer")
    return Failure(error=error, peer=True, pickled=b"peer")


def own(rank: int) -> Failure:
    return Failure(error=ErrorInfo(rank=rank, type_name="ValueError", message="mine"), peer=False, pickled=b"own")


@dataclass
class Judged:
    """A judge over four ranks; ``states`` is what a look finds."""

    states: list[RankState] = field(default_factory=lambda: [waits(r) for r in range(4)])
    nodes: int = 1
    met: bool = True
    clock: ManualClock = field(default_factory=ManualClock)
    evidence: Evidence = field(default_factory=lambda: Evidence("n0"))
    ends: list[tuple[Why, int]] = field(default_factory=list[tuple[Why, int]])
    events: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.loop = Loop(self.clock)
        members = tuple(Member(node_id=f"n{n}", first_rank=4 * n, ranks=4, gpus=()) for n in range(self.nodes))
        self.judge = Judge(
            config=gang_config(FunctionSpec(name="train", limits=Limits()), *members),
            loop=self.loop,
            clock=self.clock,
            ranks=[RankProcess(n, 0, 0, cast("Channel", None), [], Path()) for n in range(4)],
            evidence=self.evidence,
            looker=cast("Looker", self),
            during=lambda: "before returning a result",
            met=lambda: self.met,
            ended=lambda: bool(self.ends),
            freeze=lambda: self.events.append("freeze"),
            end=self._end,
        )

    def look(self, told: Callable[[list[RankState]], None], *, full: bool, within_ms: int) -> None:
        assert full
        assert within_ms <= 150
        self.events.append("look")
        told(self.states)

    def _end(self, why: Why, grace_ms: int) -> None:
        self.events.append("end")
        self.ends.append((why, grace_ms))

    def fails(self, failure: Failure) -> None:
        self.evidence.add_failure(failure)
        self.judge.others()

    def dies(self, death: Death) -> None:
        self.evidence.add_death(death)
        self.judge.judge()

    def passes(self, ms: int) -> None:
        for _ in range(ms // 50):
            self.clock.advance(50)
            self.loop.at("test", self.clock.monotonic_ms(), lambda: None)
            self.loop.turn()

    @property
    def error(self) -> ErrorInfo:
        ((why, _),) = self.ends
        assert why.error is not None
        return why.error


def test_the_ranks_are_looked_at_before_they_are_ended_and_it_is_decided_once() -> None:
    gang = Judged()
    gang.dies(replace(ABORTED, signal=int(signal.SIGKILL), last_lines=""))
    gang.dies(replace(ABORTED, rank=1))
    assert gang.events == ["freeze", "look", "end"]
    assert gang.error.rank == 0


def test_an_own_failure_is_told_after_half_a_second_and_a_victims_after_a_whole_one() -> None:
    gang, victims = Judged(), Judged()
    gang.fails(own(2))
    victims.fails(peer(2))
    gang.passes(450)
    assert not gang.ends
    gang.passes(100)
    assert (gang.error.rank, gang.error.message) == (2, "mine")
    victims.passes(950)
    assert not victims.ends
    victims.passes(100)
    assert victims.ends


def test_what_a_sibling_says_meanwhile_explains_a_victims_error() -> None:
    gang = Judged()
    gang.fails(peer(0))
    gang.passes(300)
    gang.fails(own(3))
    gang.passes(1100)
    assert gang.error.rank == 3
    assert [(r.rank, r.culprit) for r in gang.error.ranks] == [(0, False), (3, True)]


def test_who_came_with_another_size_is_named_and_not_the_rank_that_was_aborted_for_it() -> None:
    gang = Judged([replace(waits(0), alive=False, answered=False, last=()), waits(1), waits(2, size=9), waits(3)])
    gang.dies(ABORTED)
    assert gang.error.rank == 2
    assert (gang.error.signal, gang.error.cause) == (0, Cause.USER_EXCEPTION)
    assert "rank 2 entered another collective than the other ranks: " in gang.error.message
    assert [(r.rank, r.culprit) for r in gang.error.ranks] == [(0, False), (2, True)]


def test_who_never_came_is_named_and_not_those_that_timed_out() -> None:
    late = replace(waits(3, seq=2), completed={"0": 2}, last=())
    gang = Judged([*(replace(waits(r), replied=True, failed=True) for r in range(3)), late])
    for rank in range(3):
        gang.fails(peer(rank))
    gang.passes(1100)
    assert gang.error.rank == 3
    assert "rank 3 did not enter the collective that other ranks failed in" in gang.error.message


def test_the_only_rank_that_raised_in_a_collective_raised_its_own_exception() -> None:
    gang = Judged()
    gang.fails(peer(1))
    gang.passes(1100)
    ((why, _),) = gang.ends
    assert (gang.error.rank, gang.error.message, why.pickled, why.peer) == (1, "1 lost a peer", b"peer", False)


def test_where_all_raised_alike_the_exception_is_kept_and_nobody_is_named() -> None:
    gang = Judged([replace(waits(r), replied=True, failed=True) for r in range(4)])
    for rank in range(4):
        gang.fails(peer(rank))
    gang.passes(1100)
    ((why, _),) = gang.ends
    assert (gang.error.rank, gang.error.message, why.pickled) == (-1, "0 lost a peer", b"peer")
    assert not any(r.culprit for r in gang.error.ranks)


def test_over_several_nodes_it_is_the_leads_to_compare() -> None:
    gang = Judged(nodes=2)
    gang.dies(ABORTED)
    ((why, _),) = gang.ends
    assert why.peer
    assert gang.error.cause is Cause.INFRASTRUCTURE
    assert not any(r.culprit for r in gang.error.ranks)
    assert gang.judge.states == gang.states


def test_before_there_is_a_group_a_lost_peer_names_nobody() -> None:
    gang = Judged(met=False)
    gang.fails(peer(1))
    gang.passes(1100)
    assert gang.error.cause is Cause.INFRASTRUCTURE
    assert not any(r.culprit for r in gang.error.ranks)
