"""The leader or the store is killed or stopped under calls: what was accepted ends once, and results never change."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import phalanx
from phalanx.client import Client
from phalanx.runner import current
from tests.faults import work
from tests.support.aftermath import judged_cluster, use
from tests.support.cluster import Cluster
from tests.support.wait import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two replicas, two agents."""
    with judged_cluster(tmp_path_factory.mktemp("cluster"), replicas=2, agents=2) as running:
        yield running


@pytest.fixture
def standby(cluster: Cluster) -> Client:
    """Lets the tests talk to the replica that does not lead, and will survive."""
    return use(cluster, 1 - cluster.leader())


def test_durable_calls_outlive_the_leader(cluster: Cluster, standby: Client, nodes: int, tmp_path: Path) -> None:
    function = work.gang(work.hold, nodes=nodes)
    running = function.spawn(str(tmp_path), "running")
    waiting = [function.spawn(str(tmp_path), n) for n in range(3)]
    work.wait_for_ranks(tmp_path, call=running)
    killed = cluster.kill_leader()
    work.go(tmp_path)
    assert running.get(60) == "running"
    assert [call.get(60) for call in waiting] == [0, 1, 2]
    assert {call.status().attempt for call in (running, *waiting)} == {1}
    cluster.start_replica(killed)


def holds_on(folder: str) -> None:
    """Unwinds slowly when it is cancelled."""
    try:
        work.hold(folder)
    finally:
        threading.Event().wait(1.5)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["starting", "finishing", "cancelling"])
def test_a_call_ends_as_it_should_whatever_it_was_at_when_the_leader_died(
    cluster: Cluster, standby: Client, nodes: int, when: str, tmp_path: Path
) -> None:
    call = work.gang(holds_on if when == "cancelling" else work.hold, nodes=nodes, grace=3).spawn(str(tmp_path))
    if when == "starting":
        wait_until(lambda: bool(call.status().gang_id), "its gang starts", 60)
    else:
        work.wait_for_ranks(tmp_path, call=call)
    if when == "cancelling":
        assert call.cancel(wait=False).state == "cancelling"
    else:
        work.go(tmp_path)
    killed = cluster.kill_leader()
    if when == "cancelling":
        with pytest.raises(phalanx.CallCancelledError):
            call.get(60)
    else:
        assert call.get(60) is None
    assert call.status().attempt == 1
    assert len(work.arrivals(tmp_path, call)) == 4
    cluster.start_replica(killed)


@pytest.mark.slow
def test_a_direct_call_does_not_notice_that_the_leader_is_gone(
    cluster: Cluster, standby: Client, nodes: int, tmp_path: Path
) -> None:
    function = work.gang(work.hold, nodes=nodes, scaledown_window=20)
    warm, cold = tmp_path / "warm", tmp_path / "cold"
    warm.mkdir()
    cold.mkdir()
    work.go(warm)
    assert function.remote(str(warm), "warm") == "warm"
    with work.in_thread(lambda: function.remote(str(cold), "direct")) as answer:
        work.wait_for_ranks(cold)
        killed = cluster.kill_leader()
        work.go(cold)
        assert answer.result(60) == "direct"
    assert len(work.arrivals(cold)) == 4
    cluster.start_replica(killed)


@pytest.mark.slow
def test_every_replica_says_the_same_of_an_ended_call(cluster: Cluster, nodes: int) -> None:
    call = work.gang(work.sum_of_ranks, nodes=nodes).spawn(2.0)
    values = {call.get(60)}
    killed = cluster.kill_leader()
    cluster.start_replica(killed)
    for replica in (0, 1):
        use(cluster, replica)
        values |= {phalanx.Call.from_id(call.id).get(60) for _ in range(3)}
    assert values == {12.0}


def test_accepted_calls_outlive_the_store(cluster: Cluster, tmp_path: Path) -> None:
    function = work.single(work.hold)
    calls = [function.spawn(str(tmp_path), n) for n in range(5)]
    work.wait_for_ranks(tmp_path, 1)
    cluster.kill_store()
    work.go(tmp_path)
    cluster.start_store()
    assert [call.get(60) for call in calls] == list(range(5))
    assert [phalanx.Call.from_id(call.id).get(60) for call in calls] == list(range(5))


@pytest.mark.slow
def test_a_leader_that_was_stopped_past_its_lease_changes_nothing_when_it_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    old = cluster.leader()
    use(cluster, 1 - old)
    call = work.single(work.hold).spawn(str(tmp_path), "once")
    work.wait_for_ranks(tmp_path, 1)
    os.kill(cluster.controls[old].pid, signal.SIGSTOP)
    try:
        wait_until(lambda: current().client.server_info().role == "leader", "the standby leads", 30)
        work.go(tmp_path)
        assert call.get(60) == "once"
    finally:
        os.kill(cluster.controls[old].pid, signal.SIGCONT)
    wait_until(lambda: cluster.info(old).role == "standby", "the former leader follows", 30)
    assert cluster.leader() == 1 - old
    use(cluster, old)
    assert phalanx.Call.from_id(call.id).get(60) == "once"


def test_keys_and_deadlines_hold_over_a_change_of_leader(cluster: Cluster, standby: Client, tmp_path: Path) -> None:
    function = work.single(work.hold)
    once = function.options(idempotency_key="order-17")
    (tmp_path / "never").mkdir()
    first = once.spawn(str(tmp_path), "done")
    late = function.options(deadline=8).spawn(str(tmp_path / "never"))
    work.wait_for_ranks(tmp_path, 1, first)
    killed = cluster.kill_leader()
    with ThreadPoolExecutor(4) as pool:
        again = [pool.submit(once.spawn, str(tmp_path), "done") for _ in range(8)]
    assert {each.result().id for each in again} == {first.id}
    with pytest.raises(phalanx.InvalidSpecError, match=first.id):
        once.spawn(str(tmp_path), "another")
    work.go(tmp_path)
    assert once.remote(str(tmp_path), "done") == "done"
    assert len(work.arrivals(tmp_path)) == 1
    with pytest.raises(phalanx.CallTimeoutError, match="did not end by its deadline, 8 s"):
        late.get(60)
    cluster.start_replica(killed)
