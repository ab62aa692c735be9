"""A real agent on a machine whose GPUs break: how soon that is known, and what becomes of the gang on them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import phalanx
from phalanx import connection
from phalanx.connection import Connection
from phalanx.core.errors import OutcomeUnknownError
from phalanx.core.messages import GpuInfo
from phalanx.core.topology.node import Health, NodeTopology
from phalanx.runner import current
from tests.gpu.conftest import FakeMachine
from tests.support.cluster import Cluster, Server
from tests.support.sysfs import FakeSysfs, dgx_gpu, write
from tests.support.wait import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
GPUS = 8


@dataclass(slots=True)
class NvmlCluster(Cluster):
    """One agent, on the GPUs of the fake NVML."""

    def _agent(self, index: int, addresses: str) -> Server:
        server = Cluster._agent(self, index, addresses)
        at = server.argv.index("--simulate-gpus")
        del server.argv[at : at + 2]
        server.argv[server.argv.index("phalanx_agent.main")] = "tests.support.agent_on_nvml"
        return server


@dataclass(frozen=True, slots=True)
class Node:
    cluster: Cluster
    machine: FakeMachine
    sysfs: FakeSysfs

    def gpu(self, at: int) -> GpuInfo:
        (node,) = current().client.list_nodes()
        return next(gpu.info for gpu in node.gpus if gpu.info.index == at)

    def topology(self) -> NodeTopology:
        return current().client.topology("n0")

    def history(self, kind: str) -> int:
        return sum(str(entry).count(f'"kind":"{kind}"') for entry in self.cluster.history())


@pytest.fixture
def node(
    fake_machine: FakeMachine, fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    sysfs = FakeSysfs(tmp_path / "sys")
    sysfs.dgx()
    describe(fake_machine)
    connect(fake_machine)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_library.parent))
    monkeypatch.setenv("FAKE_SYSFS", str(sysfs.root))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with NvmlCluster(tmp_path / "cluster") as cluster:
        connection.use(Connection(cluster.address(), cluster.token, str(cluster.ca)))
        yield Node(cluster, fake_machine, sysfs)
        connection.disconnect()


def describe(machine: FakeMachine, *, lost: int = -1) -> None:
    machine.describe(*(f"GPU-{i} H100 81559 4 - {'lost' if i == lost else 'ok'}" for i in range(GPUS)))


def connect(machine: FakeMachine, *more: str, without: str = "") -> None:
    places = [f"gpu {i} 0000{dgx_gpu(i)} 5 9 0 {i + 1}" for i in range(GPUS)]
    links = [f"link {i} {n} 1 2 00000000:C0:00.0" for i in range(GPUS) for n in range(4)]
    machine.connect(*places, *(line for line in links if line != without), *more)


def seconds_until(condition: Callable[[], object], what: str, within_s: float) -> float:
    began = time.monotonic()
    wait_until(condition, what, within_s)
    return time.monotonic() - began


@phalanx.gpu_function(gpus=2, retries=1, scaledown_window=60)
def hold(folder: str) -> tuple[str, ...]:
    here = phalanx.current()
    (Path(folder) / f"{here.attempt}-{here.rank}").write_text(" ".join(here.gpus))
    while here.attempt == 1:
        time.sleep(0.05)
    return here.gpus


@phalanx.gpu_function(gpus=1)
def hold_once(folder: str) -> None:
    (Path(folder) / "once").write_text(" ".join(phalanx.current().gpus))
    time.sleep(60)


def test_a_gpu_with_a_hardware_fault_is_out_of_use_within_five_seconds_and_its_call_runs_on_others(
    node: Node, tmp_path: Path
) -> None:
    call = hold.spawn(str(tmp_path))
    wait_until(lambda: len(list(tmp_path.glob("1-*"))) == 2, "both ranks run", 60.0)
    broken = (tmp_path / "1-0").read_text().split()[1]
    at = int(broken.removeprefix("GPU-"))
    node.machine.say((at, 48))
    took_s = seconds_until(lambda: node.gpu(at).state == "quarantined", "it is out of use", 5.0)
    print(f"quarantined after {took_s:.2f} s")
    reason = node.gpu(at).reason
    assert f"XID 48: double-bit ECC error; reset the GPU: nvidia-smi --gpu-reset -i {at}" in reason
    second = call.get(timeout=60)
    assert broken not in second
    assert call.cost().credit != "0"
    _the_restarted_agent_knows(node, at, reason)
    _a_person_clears_it(node, at, tmp_path)


@phalanx.gpu_function(gpus=2, retries=1, scaledown_window=60)
def breaks(folder: str) -> tuple[str, ...]:
    here = phalanx.current()
    (Path(folder) / f"{here.attempt}-{here.rank}").write_text(" ".join(here.gpus))
    if here.attempt == 1 and here.rank == 1:
        raise RuntimeError("CUDA error: an illegal instruction was encountered")
    return here.gpus


def test_a_fault_that_the_rank_sees_before_the_driver_tells_of_it_is_not_the_users(node: Node, tmp_path: Path) -> None:
    call = breaks.spawn(str(tmp_path))
    wait_until((tmp_path / "1-1").exists, "both ranks run", 60.0)
    time.sleep(0.3)
    broken = (tmp_path / "1-1").read_text().split()[1]
    node.machine.say((int(broken.removeprefix("GPU-")), 48))
    assert broken not in call.get(timeout=60)
    assert (call.status().attempt, call.status().retries_used) == (2, 0)
    assert call.cost().credit != "0"


def test_without_a_fault_it_is_the_users_own_error(node: Node, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="illegal instruction"):
        breaks.options(retries=0).remote(str(tmp_path))


def _the_restarted_agent_knows(node: Node, at: int, reason: str) -> None:
    node.cluster.kill_agent(0)
    node.cluster.start_agent(0)
    wait_until(lambda: current().client.list_nodes()[0].state == "ready", "the agent is back", 20.0)
    assert (node.gpu(at).state, node.gpu(at).reason) == ("quarantined", reason)


def _a_person_clears_it(node: Node, at: int, tmp_path: Path) -> None:
    words = ["clear-gpu", "--state-dir", str(tmp_path / "cluster" / "agent-0"), f"GPU-{at}"]
    subprocess.run([sys.executable, "-m", "phalanx_agent.main", *words], check=True)
    seconds_until(lambda: node.gpu(at).state == "free", "it is free again", 10.0)


def test_a_caller_without_retries_hears_which_gpu_broke_and_why(node: Node, tmp_path: Path) -> None:
    call = hold_once.spawn(str(tmp_path))
    wait_until((tmp_path / "once").exists, "the rank runs", 60.0)
    at = int((tmp_path / "once").read_text().removeprefix("GPU-"))
    describe(node.machine, lost=at)
    node.machine.say((at, 79))
    with pytest.raises(OutcomeUnknownError, match=r"XID 79: the GPU has fallen off the bus; reboot the node"):
        call.get(timeout=30)
    assert node.gpu(at).state == "down"


def test_what_changes_while_the_agent_runs_is_known_within_ten_seconds_and_written_once(node: Node) -> None:
    assert node.topology().nics[3].up is True
    joined = node.history("NodeJoined")
    assert joined >= 1
    write(node.sysfs.root / "class" / "infiniband" / "mlx5_3" / "ports" / "1", {"state": "1: DOWN"})
    connect(node.machine, without="link 5 3 1 2 00000000:C0:00.0")
    took_s = seconds_until(lambda: node.topology().nics[3].up is False, "the port is known to be down", 10.0)
    print(f"a lost port and a lost link are known after {took_s:.2f} s")
    wait_until(lambda: node.topology().gpus[5].health is Health.DEGRADED, "the link is known to be lost", 10.0)
    assert "3 of 4 NVLinks work" in node.topology().gpus[5].reason
    assert node.history("NodeJoined") - joined <= 2
    describe(node.machine, lost=2)
    seconds_until(lambda: node.topology().gpus[2].health is Health.LOST, "the GPU is known to be lost", 10.0)
    assert node.gpu(2).state == "down"
    assert node.gpu(3).state == "free"


@phalanx.gpu_function(gpus=1, scaledown_window=60)
def double(number: int) -> int:
    return 2 * number


def test_a_storm_of_xids_keeps_the_agent_from_nothing_and_its_mark_outlives_a_kill(node: Node) -> None:
    assert double.spawn(1).get(timeout=60) == 2
    busy = [gpu.info.index for gpu in current().client.list_nodes()[0].gpus if gpu.gang_id]
    at = next(index for index in range(GPUS) if index not in busy)
    node.machine.say(*((at, 1000 + number) for number in range(10_000)))
    waits: list[float] = []
    for number in range(20):
        began = time.monotonic()
        assert double.spawn(number).get(timeout=30) == 2 * number
        waits.append(time.monotonic() - began)
    print(f"calls took {max(waits):.2f} s at most during the storm")
    assert max(waits) < 3.0
    seconds_until(lambda: node.gpu(at).state == "quarantined", "it is out of use", 5.0)
    reason = node.gpu(at).reason
    assert reason.startswith("XID 1000:")
    _the_restarted_agent_knows(node, at, reason)


def test_a_gpu_that_vanishes_is_told_and_is_free_when_it_returns_unless_it_fell_off_the_bus(node: Node) -> None:
    describe(node.machine, lost=2)
    seconds_until(lambda: node.gpu(2).state == "down", "the GPU is known to be lost", 10.0)
    assert "NVML" in node.gpu(2).reason
    seconds_until(lambda: node.topology().gpus[2].health is Health.LOST, "the topology says so", 10.0)
    describe(node.machine)
    seconds_until(lambda: node.gpu(2).state == "free", "it is free again", 10.0)
    seconds_until(lambda: node.topology().gpus[2].health is Health.OK, "the topology says so", 45.0)
    node.machine.say((2, 79))
    seconds_until(lambda: node.gpu(2).state == "down", "it fell off the bus", 5.0)
    _the_restarted_agent_knows_it_is_down(node)


def _the_restarted_agent_knows_it_is_down(node: Node) -> None:
    """The driver answers for it again; it stays out of use until the node is booted."""
    node.cluster.kill_agent(0)
    node.cluster.start_agent(0)
    wait_until(lambda: current().client.list_nodes()[0].state == "ready", "the agent is back", 20.0)
    assert node.gpu(2).state == "down"
    assert "reboot the node" in node.gpu(2).reason
