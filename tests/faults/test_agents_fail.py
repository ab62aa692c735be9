"""An agent is killed, stopped or lost with its machine: gangs outlive it, and no call runs twice unasked."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import phalanx
from phalanx.runner import current
from tests.faults import work
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


def lead_of(cluster: Cluster, call: phalanx.Call[object]) -> int:
    """Returns the index of the agent that leads the call's gang."""
    node = next(r.node_id for r in call.ranks() if r.rank == 0)
    return next(i for i in range(len(cluster.nodes)) if node == f"n{i}")


def test_a_call_outlives_its_agent_and_its_result_is_delivered(cluster: Cluster, nodes: int, tmp_path: Path) -> None:
    call = work.gang(work.hold, nodes=nodes).spawn(str(tmp_path), "kept")
    work.wait_for_ranks(tmp_path)
    index = lead_of(cluster, call)
    cluster.kill_agent(index)
    work.go(tmp_path)
    cluster.start_agent(index)
    assert call.get(60) == "kept"
    assert call.status().attempt == 1
    assert len(work.arrivals(tmp_path)) == 4


@pytest.mark.slow
def test_a_call_runs_on_while_its_agent_is_away_and_after(cluster: Cluster, nodes: int, tmp_path: Path) -> None:
    call = work.gang(work.hold, nodes=nodes).spawn(str(tmp_path), "kept")
    work.wait_for_ranks(tmp_path)
    pids = work.pids_of(call)
    index = lead_of(cluster, call)
    cluster.kill_agent(index)
    cluster.start_agent(index)
    assert not work.gone(pids[:1])
    work.go(tmp_path)
    assert call.get(60) == "kept"
    assert len(work.arrivals(tmp_path)) == 4


@pytest.mark.slow
def test_the_agent_of_another_node_may_be_killed_too(cluster: Cluster, tmp_path: Path) -> None:
    call = work.gang(work.hold, nodes=2).spawn(str(tmp_path), "kept")
    work.wait_for_ranks(tmp_path)
    other = 1 - lead_of(cluster, call)
    cluster.kill_agent(other)
    cluster.start_agent(other)
    work.go(tmp_path)
    assert call.get(60) == "kept"
    assert len(work.arrivals(tmp_path)) == 4


@pytest.mark.slow
def test_a_direct_call_outlives_its_agent_too(cluster: Cluster, nodes: int, tmp_path: Path) -> None:
    warm, cold = tmp_path / "warm", tmp_path / "cold"
    warm.mkdir()
    cold.mkdir()
    function = work.gang(work.hold, nodes=nodes, scaledown_window=20)
    work.go(warm)
    assert function.remote(str(warm), "warm") == "warm"
    with work.in_thread(lambda: function.remote(str(cold), "direct")) as answer:
        work.wait_for_ranks(cold)
        index = lead_of(cluster, only_running_call())
        cluster.kill_agent(index)
        cluster.start_agent(index)
        work.go(cold)
        assert answer.result(60) == "direct"
    assert len(work.arrivals(cold)) == 4


def only_running_call() -> phalanx.Call[object]:
    """Returns the direct call that its agent has reported."""
    client = current().client
    wait_until(lambda: any(c.direct and c.ranks for c in client.list_calls()), "the direct call was reported", 30)
    return phalanx.Call.from_id(client.list_calls()[0].call_id)


@pytest.mark.slow
def test_a_rank_that_dies_while_the_agent_is_away_is_reported_when_it_is_back(
    cluster: Cluster, nodes: int, tmp_path: Path
) -> None:
    call = work.gang(work.hold, nodes=nodes).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    pids = work.pids_of(call)
    index = lead_of(cluster, call)
    cluster.kill_agent(index)
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: work.gone(pids[:2]), "the node's ranks are gone", 2)
    cluster.start_agent(index)
    with pytest.raises(phalanx.RankDiedError) as caught:
        call.get(60)
    assert caught.value.rank == 1
    wait_until(lambda: work.gone(pids), "every rank is gone")


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 1])
def test_a_call_lost_with_its_machine_is_rerun_only_where_retries_allow_it(
    cluster: Cluster, retries: int, tmp_path: Path
) -> None:
    function = work.gang(work.hold, retries=retries, disconnect_grace=1)
    call = function.spawn(str(tmp_path), "again")
    work.wait_for_ranks(tmp_path)
    index = lead_of(cluster, call)
    cluster.lose_machine(index)
    work.go(tmp_path)
    if retries:
        assert call.get(60) == "again"
        assert call.status().attempt == 2
    else:
        with pytest.raises(phalanx.OutcomeUnknownError, match="may have run"):
            call.get(60)
        assert len(work.arrivals(tmp_path)) == 4
    cluster.start_agent(index)
    wait_until(lambda: all(n.state == "ready" for n in cluster.connect().list_nodes()), "both nodes are ready", 30)
