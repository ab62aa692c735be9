"""What functions say of where their gangs may be, on a real cell: elastic sizes, and nodes of one's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx import connection
from phalanx.connection import Connection
from phalanx.core.errors import UnschedulableError
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

WITHIN_S = 30.0


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), agents=2, gpus_per_agent=2) as running:
        connection.disconnect()
        connection.use(Connection(running.address(), running.token, str(running.ca)))
        yield running
        connection.disconnect()


@phalanx.gpu_function(gpus=(1, 4), scaledown_window=0, reuse=False)
def as_many_as_there_are() -> tuple[int, int]:
    ones = torch.ones(1)
    if phalanx.current().world_size > 1:
        dist.all_reduce(ones)
    return phalanx.current().world_size, int(ones.item())


@phalanx.gpu_function(gpus=1, isolation="node", scaledown_window=0, reuse=False)
def alone(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.02)
    return phalanx.current().placement


@phalanx.gpu_function(gpus=1, scaledown_window=0, reuse=False)
def anybody() -> str:
    return phalanx.current().placement


def test_an_elastic_gang_has_as_many_ranks_as_there_was_room_for(tmp_path: Path) -> None:
    assert as_many_as_there_are.remote() == (4, 4)
    held = alone.spawn(str(tmp_path / "go"))
    wait_until(lambda: held.status().state == "running", "a node is held", WITHIN_S)
    call = as_many_as_there_are.spawn()
    assert call.get(timeout=WITHIN_S) == (2, 2)
    assert (call.status().gpus, call.status().world_size) == (2, 2)
    (tmp_path / "go").touch()
    held.get(timeout=WITHIN_S)


def test_nobody_comes_to_a_node_that_a_gang_has_for_itself(tmp_path: Path) -> None:
    calls = [alone.spawn(str(tmp_path / "go")) for _ in range(2)]
    wait_until(lambda: all(call.status().state == "running" for call in calls), "both nodes are held", WITHIN_S)
    third = anybody.spawn()
    wait_until(lambda: "a gang keeps others off it" in third.status().reason, "the reason is told", WITHIN_S)
    (tmp_path / "go").touch()
    assert {call.get(timeout=WITHIN_S).split()[4] for call in calls} == {"n0", "n1"}
    third.get(timeout=WITHIN_S)


def test_what_the_cell_can_never_give_is_refused_at_once() -> None:
    with pytest.raises(UnschedulableError, match="it could run with fabric='any'"):
        as_many_as_there_are.options(gpus=4, fabric="rail").remote()
    with pytest.raises(UnschedulableError, match="GPUs of 1000 GB or more"):
        as_many_as_there_are.options(gpus=2, min_memory_gb=1000).remote()
