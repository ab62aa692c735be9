"""A rank dies: the whole gang is gone at once, on every node; the culprit is named, and its output is kept."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import phalanx
from tests.faults import work
from tests.support.wait import wait_until

pytestmark = pytest.mark.usefixtures("cluster")
GONE_WITHIN_S = 2.0


def talk_and_hold(folder: str) -> None:
    for i in range(200):
        print("line", i)
    work.hold(folder)


def test_a_killed_rank_takes_every_rank_with_it_and_is_named(nodes: int, tmp_path: Path) -> None:
    call = work.gang(work.hold, nodes=nodes).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    pids = work.pids_of(call)
    os.kill(pids[2], signal.SIGKILL)
    wait_until(lambda: work.gone(pids), "every rank is gone", GONE_WITHIN_S)
    with pytest.raises(phalanx.RankDiedError, match="rank 2") as caught:
        call.get(60)
    assert caught.value.rank == 2
    failures = {r.rank: r for r in call.status().error.ranks}
    assert failures[2].culprit
    assert failures[2].signal == signal.SIGKILL
    assert not any(f.culprit for rank, f in failures.items() if rank != 2)


def test_ranks_inside_a_collective_are_victims(nodes: int, tmp_path: Path) -> None:
    call = work.gang(work.reduce_for_ever, nodes=nodes).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    pids = work.pids_of(call)
    os.kill(pids[3], signal.SIGKILL)
    wait_until(lambda: work.gone(pids), "every rank is gone", GONE_WITHIN_S)
    with pytest.raises(phalanx.RankDiedError) as caught:
        call.get(60)
    assert caught.value.rank == 3
    assert [r.rank for r in call.status().error.ranks if r.culprit] == [3]


@pytest.mark.slow
def test_a_killed_rank_of_an_idle_gang_costs_the_next_call_nothing(nodes: int, tmp_path: Path) -> None:
    function = work.gang(work.hold, nodes=nodes, scaledown_window=30)
    call = function.spawn(str(tmp_path), "first")
    work.wait_for_ranks(tmp_path)
    pids = work.pids_of(call)
    work.go(tmp_path)
    assert call.get(60) == "first"
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: work.gone(pids), "every rank is gone", GONE_WITHIN_S)
    assert function.remote(str(tmp_path), "second") == "second"


@pytest.mark.slow
def test_the_output_of_ranks_that_were_killed_is_there_up_to_the_end(nodes: int, tmp_path: Path) -> None:
    call = work.gang(talk_and_hold, nodes=nodes).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    os.kill(work.pids_of(call)[1], signal.SIGKILL)
    with pytest.raises(phalanx.RankDiedError):
        call.get(60)
    by_rank: dict[int, list[str]] = {rank: [] for rank in range(4)}
    for line in call.logs():
        by_rank[line.rank].append(line.text)
    expected = [f"line {i}" for i in range(200)]
    assert {rank: lines[:200] for rank, lines in by_rank.items()} == dict.fromkeys(range(4), expected)


@pytest.mark.slow
def test_output_of_a_call_that_ended_well_is_complete_and_in_order(nodes: int, tmp_path: Path) -> None:
    work.go(tmp_path)
    call = work.gang(talk_and_hold, nodes=nodes).spawn(str(tmp_path))
    call.get(60)
    lines = [(line.rank, line.text) for line in call.logs(follow=True)]
    for rank in range(4):
        assert [text for r, text in lines if r == rank] == [f"line {i}" for i in range(200)]


@pytest.mark.slow
def test_a_rank_that_segfaults_is_named_with_its_signal_and_stack(nodes: int, tmp_path: Path) -> None:
    call = work.gang(work.die, nodes=nodes).spawn(str(tmp_path), int(signal.SIGSEGV))
    with pytest.raises(phalanx.RankDiedError, match="SIGSEGV") as caught:
        call.get(60)
    assert caught.value.rank == 3
    assert "in die" in caught.value.remote_traceback
