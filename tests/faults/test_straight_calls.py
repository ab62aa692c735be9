"""Faults in the middle of calls that go past the agent: nothing runs twice, nothing waits for ever, all is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from phalanx.function import Function
from phalanx.runner import current
from tests.faults import work
from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One agent, for one test: its keepers are killed."""
    with judged_cluster(tmp_path_factory.mktemp("cluster"), agents=1) as running:
        yield running


def double(folder: str, value: int, waits_for: str = "") -> int:
    work.arrive(folder)
    if waits_for:
        wait_until(Path(waits_for).exists, "the word to go on", work.PATIENCE_S)
    return 2 * value


def warm_gang(folder: Path) -> tuple[Function[..., int], int]:
    """Returns a function whose gang is warm, and the process id of the gang's only rank."""
    function = work.single(double, scaledown_window=4)
    assert function.remote(str(folder), 1) == 2
    go = folder / "first"
    with work.in_thread(lambda: function.remote(str(folder), 2, str(go))) as first:
        client = current().client
        wait_until(lambda: any(c.direct and c.ranks for c in client.list_calls()), "the call was reported", 30)
        pid = next(c.ranks[0].pid for c in client.list_calls() if c.direct and c.ranks)
        go.touch()
        assert first.result(30) == 4
    for mark in work.arrivals(folder):
        (folder / mark).unlink()
    return function, pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("reported", [False, True], ids=["young", "reported"])
def test_a_call_whose_keeper_is_killed_ends_and_is_not_run_again(
    cluster: Cluster, tmp_path: Path, reported: bool
) -> None:
    function, rank = warm_gang(tmp_path)
    keeper = parent_of(rank)
    with work.in_thread(lambda: function.remote(str(tmp_path), 3, str(tmp_path / "never"))) as lost:
        work.wait_for_ranks(tmp_path, 1)
        if reported:
            client = current().client
            wait_until(lambda: any(c.state == "running" for c in client.list_calls()), "it was reported", 30)
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(phalanx.CallError, match=r"is gone|may have run"):
            lost.result(30)
    assert len(work.arrivals(tmp_path)) == 1
    assert function.remote(str(tmp_path), 4) == 8


@pytest.mark.parametrize("reported", [False, True], ids=["young", "reported"])
def test_a_call_whose_agent_is_killed_comes_back_from_the_next_one(
    cluster: Cluster, tmp_path: Path, reported: bool
) -> None:
    function, _ = warm_gang(tmp_path)
    go = tmp_path / "second"
    with work.in_thread(lambda: function.remote(str(tmp_path), 3, str(go))) as call:
        work.wait_for_ranks(tmp_path, 1)
        if reported:
            client = current().client
            wait_until(lambda: any(c.state == "running" for c in client.list_calls()), "it was reported", 30)
        cluster.kill_agent(0)
        go.touch()
        cluster.start_agent(0)
        assert call.result(60) == 6
    assert len(work.arrivals(tmp_path)) == 1


def test_calls_go_on_while_the_agent_is_stopped_and_are_accounted_for_later(cluster: Cluster, tmp_path: Path) -> None:
    function, _ = warm_gang(tmp_path)
    agent = cluster.nodes[0].pid
    os.kill(agent, signal.SIGSTOP)
    try:
        assert [function.remote(str(tmp_path), i) for i in range(20)] == [2 * i for i in range(20)]
    finally:
        os.kill(agent, signal.SIGCONT)
    assert function.remote(str(tmp_path), 21) == 42
    assert len(work.arrivals(tmp_path)) == 21


def test_an_idle_gang_ends_though_clients_hold_lanes_to_it(cluster: Cluster, tmp_path: Path) -> None:
    function = work.single(double, scaledown_window=1)
    assert function.remote(str(tmp_path), 1) == 2
    assert function.remote(str(tmp_path), 2) == 4
    client = current().client
    wait_until(lambda: not client.list_gangs(), "the gang has ended", 30)
    assert function.remote(str(tmp_path), 3) == 6
