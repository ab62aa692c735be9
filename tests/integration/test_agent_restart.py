"""A real agent under a real control plane: it may die, come back, or be told to take its gangs along."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.client import Client
from phalanx.core.ids import new_call_id
from phalanx.core.messages import Body
from phalanx.core.serialization import pack, unpack
from phalanx.core.spec import CodeRef, FunctionSpec, Limits, Resources
from phalanx.core.views import CallView
from phalanx.loader import dump_callable
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

LIMITS = Limits()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, agents=1, gpus_per_agent=2) as made:
        yield made


def sum_of_ranks(seconds: float) -> tuple[float, list[int]]:
    import time

    import torch
    import torch.distributed as dist

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    return float(total), [int(p) for p in pids]


def register(client: Client, func: Callable[..., Any], *, gpus: int = 2, limits: Limits = LIMITS) -> str:
    data = dump_callable(func)
    client.put_blob(data)
    code = CodeRef(callable_blob=f"sha256:{hashlib.sha256(data).hexdigest()}")
    spec = FunctionSpec(name=func.__name__, resources=Resources(gpus=gpus), limits=limits, code=code)
    return client.register(spec)


def submit(client: Client, function_id: str, *args: object) -> str:
    call_id = new_call_id()
    data = pack((args, {})).tobytes()
    client.submit(call_id, function_id, Body(data=data, size=len(data)))
    return call_id


def finished(client: Client, call_id: str) -> CallView:
    return list(client.watch(call_id))[-1]


def test_a_running_call_survives_the_end_of_its_agent(cluster: Cluster) -> None:
    client = cluster.connect()
    function = register(client, sum_of_ranks)
    first = unpack(finished(client, submit(client, function, 0)).result.data)
    call = submit(client, function, 3.0)
    wait_until(lambda: client.get_call(call).state == "running", "it runs", 30)
    cluster.kill_agent(0)
    cluster.start_agent(0)
    view = finished(client, call)
    assert (view.state, view.attempt) == ("succeeded", 1)
    assert unpack(view.result.data) == first, "the same ranks"
    assert finished(client, submit(client, function, 0)).state == "succeeded"


def test_an_agent_that_is_told_to_stop_leaves_its_gangs(cluster: Cluster) -> None:
    client = cluster.connect()
    function = register(client, sum_of_ranks)
    first = unpack(finished(client, submit(client, function, 0)).result.data)
    cluster.nodes[0].kill(signal.SIGTERM)
    cluster.start_agent(0)
    again = unpack(finished(client, submit(client, function, 0)).result.data)
    assert again == first


def test_an_agent_can_take_its_gangs_along(tmp_path: Path) -> None:
    with Cluster(tmp_path, agents=1, gpus_per_agent=2, agent_flags=("--end-gangs-on-exit",)) as cluster:
        client = cluster.connect()
        function = register(client, sum_of_ranks)
        _total, pids = unpack(finished(client, submit(client, function, 0)).result.data)
        assert len(set(pids)) == 2
        keepers = list(cluster.processes())
        cluster.nodes[0].kill(signal.SIGTERM)
        left = set(cluster.processes()) & set(keepers) - {c.pid for c in cluster.controls}
        assert not {p for p in left if "phalanx_agent" in cluster.processes().get(p, "")}


def test_sockets_and_secrets_are_the_agents_alone(cluster: Cluster) -> None:
    ready = json.loads(cluster.nodes[0].ready_file.read_text())
    socket = Path(ready["unix_path"])
    assert ready["pid"] == cluster.nodes[0].pid
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    key = cluster.tmp_path / "agent-0" / "node.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_second_agent_does_not_serve_the_same_node_directory(cluster: Cluster) -> None:
    import subprocess

    node = cluster.nodes[0]
    second = subprocess.run(node.argv, env=node.environment, capture_output=True, timeout=30, check=False)
    assert second.returncode == 1
    assert b"another agent" in second.stderr


def test_a_large_result_is_stored_as_a_blob(cluster: Cluster) -> None:
    client = cluster.connect()

    def big(count: int) -> bytes:
        return bytes(count)

    view = finished(client, submit(client, register(client, big, gpus=1), 3_000_000))
    assert view.state == "succeeded", view.error.message
    assert view.result.blob
    assert len(unpack(client.get_blob(view.result.blob))) == 3_000_000


def test_a_gang_that_is_idle_gives_its_gpus_back_and_leaves_nothing(cluster: Cluster) -> None:
    client = cluster.connect()
    function = register(client, sum_of_ranks, limits=Limits(scaledown_window_s=0.2))
    finished(client, submit(client, function, 0))
    wait_until(lambda: not client.list_gangs(), "the gang is released", 30)
    run_dir = Path(json.loads(cluster.nodes[0].ready_file.read_text())["unix_path"]).parent
    wait_until(lambda: not list((run_dir / "gangs").iterdir()), "its directory is gone", 10)
    assert finished(client, submit(client, function, 0)).state == "succeeded"


def test_a_gang_over_two_nodes_survives_the_end_of_both_agents(tmp_path: Path) -> None:
    with Cluster(tmp_path, agents=2, gpus_per_agent=2) as cluster:
        client = cluster.connect()
        function = register(client, sum_of_ranks, gpus=4)
        first = unpack(finished(client, submit(client, function, 0)).result.data)
        call = submit(client, function, 4.0)
        wait_until(lambda: client.get_call(call).state == "running", "it runs", 30)
        for index in (1, 0):
            cluster.kill_agent(index)
            cluster.start_agent(index)
        view = finished(client, call)
        assert (view.state, view.attempt) == ("succeeded", 1)
        assert unpack(view.result.data) == first
