"""An agent that was stopped for longer than its leases last comes back: it finds that it has lost them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults import work
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


def test_an_agent_stopped_past_its_lease_reports_in_vain(cluster: Cluster, tmp_path: Path) -> None:
    call = work.gang(work.hold, retries=1, disconnect_grace=1).spawn(str(tmp_path), "second")
    work.wait_for_ranks(tmp_path, call=call)
    index = int(call.ranks()[0].node_id.removeprefix("n"))
    pids = work.pids_of(call)
    os.kill(cluster.nodes[index].pid, signal.SIGSTOP)
    try:
        work.wait_for_ranks(tmp_path, attempt=2)
        work.go(tmp_path)
        assert call.get(60) == "second"
    finally:
        os.kill(cluster.nodes[index].pid, signal.SIGCONT)
    wait_until(lambda: work.gone(pids), "the ranks of the lost lease are gone", 30)
    wait_until(lambda: all(n.state == "ready" for n in cluster.connect().list_nodes()), "both nodes are ready", 30)
    assert call.status().attempt == 2
    assert call.get() == "second"


def test_a_stop_shorter_than_the_lease_costs_nothing(cluster: Cluster, nodes: int, tmp_path: Path) -> None:
    call = work.gang(work.hold, nodes=nodes).spawn(str(tmp_path), "first")
    work.wait_for_ranks(tmp_path)
    index = int(call.ranks()[0].node_id.removeprefix("n"))
    os.kill(cluster.nodes[index].pid, signal.SIGSTOP)
    work.go(tmp_path)
    os.kill(cluster.nodes[index].pid, signal.SIGCONT)
    assert call.get(60) == "first"
    assert call.status().attempt == 1
