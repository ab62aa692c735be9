"""When everything has ended nothing is left on the machine, and every millisecond that was counted lies in a lease."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import phalanx
from tests.faults import work
from tests.support.aftermath import archive_check, come_to_rest
from tests.support.cluster import Cluster
from tests.support.gang_driver import process_exists
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


def litter(folder: str) -> None:
    """Leaves behind whatever a function can: children, shared memory, temporary folders, a socket."""
    import socket
    import subprocess
    import tempfile
    from multiprocessing import shared_memory

    for detached in (False, True):
        subprocess.Popen(["/bin/sleep", "1000"], start_new_session=detached)
    block = shared_memory.SharedMemory(create=True, size=1 << 16)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(tempfile.mkdtemp()) / "left.sock"))
    (Path(folder) / f"shm-{block.name}").touch()
    work.hold(folder)


def sleepers(cluster: Cluster) -> list[int]:
    return [pid for pid, line in cluster.processes().items() if line.startswith("/bin/sleep 1000")]


def test_what_ranks_leave_behind_ends_with_them(cluster: Cluster, nodes: int, tmp_path: Path) -> None:
    call = work.gang(litter, nodes=nodes).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    pids = work.pids_of(call)
    assert len(sleepers(cluster)) == 8
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: work.gone(pids) and not sleepers(cluster), "no process is left", 2)
    come_to_rest(cluster)
    assert not [p for p in cluster.gang_files() if p.suffix == ".sock"]


@pytest.mark.slow
def test_a_gang_that_ended_well_leaves_neither_processes_nor_files(cluster: Cluster, nodes: int) -> None:
    call = work.gang(work.sum_of_ranks, nodes=nodes).spawn(1.0)
    assert call.get(60) == 6.0
    come_to_rest(cluster)
    wait_until(lambda: not cluster.gang_files(), "no gang's folder is left", 10)
    assert not [line for line in cluster.processes().values() if "keeper" in line]


@pytest.mark.slow
def test_the_bill_of_a_gang_lies_inside_its_lease(cluster: Cluster, nodes: int, tmp_path: Path) -> None:
    call = work.gang(work.hold, nodes=nodes).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    work.go(tmp_path)
    call.get(60)
    come_to_rest(cluster)
    view, cost = call.status(), call.cost()
    assert cost.gpu_ms > 0
    assert {p.phase for p in cost.phases if p.charged} <= {"start", "context", "busy", "idle_warm", "debug"}
    assert next(p.gpu_ms for p in cost.phases if p.phase == "busy") <= 4 * (view.ended_ms - view.submitted_ms)


def test_the_state_is_the_fold_of_the_history_at_any_time(cluster: Cluster, tmp_path: Path) -> None:
    call = work.gang(work.hold).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    said = archive_check(cluster)
    assert (said.returncode, said.stderr) == (0, "")
    assert "the state is what the history says" in said.stdout
    work.go(tmp_path)
    call.get(60)


@pytest.mark.slow
def test_the_second_witness_is_of_one_mind_with_the_ranks(cluster: Cluster, tmp_path: Path) -> None:
    """Process ids that users are shown are those of real processes, one per rank."""
    call = work.gang(work.hold).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    pids = work.pids_of(call)
    assert len(set(pids)) == 4
    assert all(process_exists(pid) for pid in pids)
    work.go(tmp_path)
    call.get(60)
    assert phalanx.Call.from_id(call.id).status().state == "succeeded"
