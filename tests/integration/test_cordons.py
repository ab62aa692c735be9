"""Cordon, drain and uncordon on a real cell: gpuctl's words, real gangs that end, agents that start again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from phalanx import connection
from phalanx.client import Client
from phalanx.connection import Connection
from phalanx.core.errors import AuthError
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

WITHIN_S = 20.0


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), agents=2, gpus_per_agent=2) as running:
        connection.disconnect()
        connection.use(Connection(running.address(), running.token, str(running.ca)))
        yield running
        connection.disconnect()


@phalanx.gpu_function(gpus=2, retries=1, scaledown_window=600)
def where(folder: str) -> tuple[str, int]:
    """Its first attempt goes on until it is ended."""
    me = phalanx.current()
    if me.attempt == 1:
        Path(folder, me.placement.split()[4]).touch()
        time.sleep(600)
    return me.placement.split()[4], me.attempt


def gpuctl(cluster: Cluster, *words: str) -> str:
    program = (sys.executable, "-m", "phalanx.cli.main", *words)
    done = subprocess.run(program, env=cluster.env(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def states(client: Client) -> dict[str, str]:
    return {node.node_id: node.state for node in client.list_nodes()}


def test_a_drained_node_is_emptied_its_call_runs_elsewhere_and_restarts_change_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    client = cluster.connect()
    call = where.spawn(str(tmp_path))
    wait_until(lambda: any(tmp_path.iterdir()), "the call runs", WITHIN_S)
    (node,) = (path.name for path in tmp_path.iterdir())
    told = gpuctl(cluster, "drain", node, "--reason", "new driver", "--now", "--wait")
    assert f"draining  {node}  drained by admin: new driver; nothing runs there any more" in told
    other = next(name for name in ("n0", "n1") if name != node)
    assert call.get(timeout=WITHIN_S) == (other, 2)
    cluster.kill_agent(int(node[1:]))
    cluster.start_agent(int(node[1:]))
    assert states(client) == {node: "draining", other: "ready"}
    gpuctl(cluster, "cordon", other)
    queued = where.options(gpus=1).spawn(str(tmp_path))
    wait_until(lambda: "is cordoned by admin" in queued.status().reason, "the reason names the cordon", WITHIN_S)
    queued.cancel()
    gpuctl(cluster, "uncordon", node, other)
    wait_until(lambda: set(states(client).values()) == {"ready"}, "both nodes take work", WITHIN_S)


def test_only_admins_of_the_operators_take_nodes_out_of_use(cluster: Cluster) -> None:
    admin = cluster.connect()
    for workspace, role in (("default", "member"), ("other", "admin")):
        token, _ = admin.create_token(workspace=workspace, user="eve", role=role)
        eve = Client(Connection(cluster.address(), token, str(cluster.ca)))
        with pytest.raises(AuthError):
            eve.set_node_state("n0", "cordoned")
        eve.close()
    assert set(states(admin).values()) == {"ready"}
