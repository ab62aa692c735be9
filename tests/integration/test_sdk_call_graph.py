"""Calls made from inside calls, on a real cluster: who made them, how they are shown, and that they end together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), gpus_per_agent=4) as running:
        yield running


@pytest.fixture(scope="module")
def family(cluster: Cluster) -> Any:
    """A function that makes calls of two others: one that ends, and one that waits until a file is there."""
    environment = cluster.env()
    known = {name: environment[name] for name in ("PHALANX_ADDRESS", "PHALANX_TOKEN", "PHALANX_CA")}

    @phalanx.gpu_function(gpus=0, scaledown_window=5)
    def double(x: int) -> int:
        return 2 * x

    @phalanx.gpu_function(gpus=0, scaledown_window=5)
    def wait_for(path: str) -> str:
        from tests.support.wait import wait_until as wait

        wait(lambda: Path(path).exists(), "the file is there", 60)
        return "seen"

    @phalanx.gpu_function(gpus=0, scaledown_window=5, env=phalanx.env(vars=known))
    def parent(path: str) -> list[Any]:
        doubled = [double.remote(x) for x in (1, 2)]
        return [*doubled, wait_for.remote(path)]

    return parent


def made(call: phalanx.Call[Any], count: int) -> tuple[phalanx.Call[Any], ...]:
    wait_until(lambda: len(call.children()) == count, f"{count} calls are made from inside it", 30)
    return call.children()


def test_children_are_known_in_order_and_know_their_parent(family: Any, tmp_path: Path, cluster: Cluster) -> None:
    call = family.spawn(str(tmp_path / "file"))
    children = made(call, 3)
    assert {str(child.parent()) for child in children} == {str(call)}
    assert call.parent() is None
    (tmp_path / "file").touch()
    assert call.get(60) == [2, 4, "seen"]
    assert [child.get(10) for child in children] == [2, 4, "seen"]

    argv = [sys.executable, "-m", "phalanx.cli.main", "graph", call.id]
    shown = subprocess.run(argv, env=cluster.env(), capture_output=True, text=True, timeout=60, check=True).stdout
    assert next(line for line in shown.splitlines() if children[2].id in line).startswith("└─ c-")
    told = subprocess.run([*argv, "--json"], env=cluster.env(), capture_output=True, text=True, timeout=60, check=True)
    views = [json.loads(line) for line in told.stdout.splitlines()]
    assert [view["parent"] for view in views] == ["", call.id, call.id, call.id]


def test_cancelling_a_call_ends_the_calls_that_it_made(family: Any, tmp_path: Path) -> None:
    call = family.spawn(str(tmp_path / "never"))
    children = made(call, 3)
    wait_until(lambda: children[2].status().state == "running", "the child runs", 30)
    call.cancel()
    with pytest.raises(phalanx.CallCancelledError):
        children[2].get(30)
    assert [child.status().state for child in children] == ["succeeded", "succeeded", "cancelled"]
