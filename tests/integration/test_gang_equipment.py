"""What ranks really get of their node's topology, and what gpuctl explain says of it, on a real cluster."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.core.topology.codec import to_json
from phalanx.core.topology.importers.nccl_xml import read_nccl_xml
from phalanx.core.topology.importers.reading import number_list
from phalanx.core.topology.presets import preset
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)
HERE = sorted(os.sched_getaffinity(0))
HALVES = (HERE[: (len(HERE) + 1) // 2], HERE[len(HERE) // 2 :])
"""Two halves of this machine's processors; the same one where there is but one."""
GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}.get(platform.machine(), -1)
Seen = dict[str, Any]


def made_machine() -> str:
    """A DGX-1 whose sockets are the halves of this machine's processors, both with the memory of NUMA node 0."""
    node = preset("dgx1_v100")
    gpus = tuple(replace(gpu, cpus=number_list(HALVES[at // 4])) for at, gpu in enumerate(node.gpus))
    return to_json(replace(node, gpus=gpus))


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "machine.json").write_text(made_machine())
    with connected_cluster(folder, simulate=str(folder / "machine.json"), agents=2) as running:
        yield running


def seen() -> Seen:
    here = phalanx.current()
    mode = ctypes.c_int(-1)
    ctypes.CDLL(None).syscall(ctypes.c_long(GET_MEMPOLICY), ctypes.byref(mode), None, ctypes.c_ulong(0), None, 0)
    topology = here.topology
    status = Path("/proc/self/status").read_text()
    return {
        "cpus": sorted(os.sched_getaffinity(0)),
        "listed": next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:")),
        "mode": mode.value,
        "threads": sys.modules["torch"].get_num_threads(),
        "env": {name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "GLOO_"))},
        "indices": [gpu.index for gpu in topology.gpus] if topology is not None else None,
        "uuids": [gpu.uuid for gpu in topology.gpus] if topology is not None else None,
        "gpus": here.gpus,
        "local": here.local_rank,
        "again": here.topology is topology,
    }


@phalanx.gpu_function(gpus=4, returns="all", scaledown_window=5)
def quad() -> Seen:
    return seen()


@phalanx.gpu_function(gpus=8, returns="all", scaledown_window=5)
def whole() -> Seen:
    return seen()


@phalanx.gpu_function(gpus=16, nodes=2, returns="all", scaledown_window=5)
def two_nodes() -> Seen:
    return seen()


@phalanx.gpu_function(gpus=2, cpus=1, returns="all", scaledown_window=5)
def asks_for_one() -> Seen:
    return seen()


@phalanx.gpu_function(gpus=0.5, scaledown_window=5)
def a_part() -> Seen:
    return seen()


@phalanx.gpu_function(gpus=2, returns="all", scaledown_window=5, env=phalanx.env(vars={"NCCL_SOCKET_IFNAME": "eth42"}))
def chooses_itself() -> Seen:
    return seen()


@phalanx.gpu_function(gpus=1, scaledown_window=1)
def hold(path: str) -> None:
    wait_until(Path(path).exists, "the GPU may go", timeout_s=60)


def explain(cluster: Cluster, what: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "phalanx.cli.main", "explain", what, *more)
    return subprocess.run(
        command, env={**os.environ, **cluster.env()}, capture_output=True, text=True, timeout=60, check=False
    )


def last_gang() -> str:
    return max(current().client.list_calls(ended_too=True), key=lambda call: call.submitted_ms).gang_id


def test_ranks_run_on_the_processors_near_their_gpus_and_their_threads_follow() -> None:
    found = whole.remote()
    assert found[0]["indices"] == [0, 3, 2, 1, 5, 6, 7, 4]
    near = {gpu.index: HALVES[at // 4] for at, gpu in enumerate(preset("dgx1_v100").gpus)}
    for rank in found:
        own = rank["indices"][rank["local"]]
        assert rank["cpus"] == near[own]
        assert rank["listed"] == number_list(near[own])
        sharers = sum(near[index] == near[own] for index in rank["indices"])
        assert rank["threads"] == max(1, len(near[own]) // sharers)


@pytest.mark.skipif(GET_MEMPOLICY < 0, reason="the system call's number is known for x86_64 and aarch64")
def test_ranks_prefer_the_memory_near_their_gpus_where_the_kernel_lets_them(cluster: Cluster) -> None:
    """NUMA node 0 is on every machine; node 1 may not be, and a container may forbid the call."""
    found = quad.remote()
    told = json.loads(explain(cluster, last_gang(), "--json").stdout)["members"][0]["equipment"]["ranks"]
    preferred = [1 if rank["memory_numa"] is not None else 0 for rank in told]
    assert [rank["mode"] for rank in found] == preferred
    assert all(rank["memory_why"] for rank in told)


def test_ranks_see_their_gpus_in_ring_order_with_the_links_between_them() -> None:
    for rank in quad.remote():
        assert rank["uuids"] == list(rank["gpus"])
        assert rank["indices"] == [0, 1, 2, 3]
        assert rank["again"]


def test_asked_processors_are_the_ranks_own_where_there_are_enough() -> None:
    taken = [tuple(rank["cpus"]) for rank in asks_for_one.remote()]
    assert all(len(cpus) == 1 for cpus in taken)
    assert all(set(cpus) <= set(HALVES[0]) | set(HALVES[1]) for cpus in taken)


def test_a_part_of_a_gpu_is_bound_to_nothing() -> None:
    assert a_part.remote()["cpus"] == HERE


def test_a_gang_of_one_node_gets_its_socket_and_no_port(cluster: Cluster) -> None:
    (env,) = {json.dumps(rank["env"]) for rank in quad.remote()}
    values = json.loads(env)
    assert values["NCCL_SOCKET_IFNAME"] == "=lo"
    assert values["GLOO_SOCKET_IFNAME"] == "lo"
    assert not {"NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_CROSS_NIC"} & values.keys()
    assert read_nccl_xml(Path(values["NCCL_TOPO_FILE"]).read_text()).gpus[7].index == 7


def test_what_is_explained_of_two_nodes_is_what_was_set(cluster: Cluster) -> None:
    found = two_nodes.remote()
    gang_id = last_gang()
    told = json.loads(explain(cluster, gang_id, "--json").stdout)
    assert [member["first_rank"] for member in told["members"]] == [0, 8]
    for rank, env in enumerate(each["env"] for each in found):
        variables = told["members"][rank // 8]["equipment"]["variables"]
        assert env == {each["name"]: each["value"] for each in variables if each["value"]}
        assert all(each["why"] for each in variables)
    assert found[0]["env"]["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"
    assert found[0]["env"]["NCCL_CROSS_NIC"] == "0"
    for node in (0, 1):
        told_cpus = [rank["cpus"] for rank in told["members"][node]["equipment"]["ranks"]]
        assert told_cpus == [rank["listed"] for rank in found[8 * node : 8 * node + 8]]
    text = explain(cluster, gang_id).stdout
    assert "16 ranks on n0, n1" in text
    assert text.count("NCCL_CROSS_NIC=0") == 1


def test_what_the_function_sets_wins_and_is_explained(cluster: Cluster) -> None:
    assert {rank["env"]["NCCL_SOCKET_IFNAME"] for rank in chooses_itself.remote()} == {"eth42"}
    text = explain(cluster, last_gang()).stdout
    assert "NCCL_SOCKET_IFNAME=eth42" in text
    assert "the function's env(vars=) sets it; the node would have set =lo" in text


def test_of_an_ended_gang_is_told_where_it_stood(cluster: Cluster) -> None:
    quad.remote()
    call = max(current().client.list_calls(ended_too=True), key=lambda call: call.submitted_ms)
    gone = lambda: all(gang.gang_id != call.gang_id for gang in current().client.list_gangs())  # noqa: E731
    wait_until(gone, "the gang has ended", timeout_s=60)
    text = explain(cluster, call.call_id).stdout
    assert "succeeded" in text
    assert f"why    {call.placement}" in text
    assert ": 4 GPUs; what its ranks got is forgotten with the gang" in text
    assert explain(cluster, call.gang_id).stdout.splitlines()[0].startswith(f"gang   {call.gang_id}  released")


def test_a_waiting_call_is_explained_by_its_reason(cluster: Cluster, tmp_path: Path) -> None:
    holder = hold.spawn(str(tmp_path / "go"))
    wait_until(lambda: current().client.get_call(holder.id).state == "running", "a GPU is held", timeout_s=60)
    call = two_nodes.spawn()
    wait_until(lambda: current().client.get_call(call.id).reason, "the call has a reason")
    shown = explain(cluster, call.id)
    assert f"waits  {current().client.get_call(call.id).reason}" in shown.stdout
    assert "none yet: what a gang gets is decided when it starts" in shown.stdout
    call.cancel()
    (tmp_path / "go").touch()
    holder.get()


def test_what_is_no_call_and_no_gang_is_refused_with_what_to_do(cluster: Cluster) -> None:
    refused = explain(cluster, "g-nothing")
    assert refused.returncode == 3
    assert "no gang 'g-nothing'" in refused.stderr
    assert "try: gpuctl ps --all" in refused.stderr
