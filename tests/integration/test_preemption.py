"""Gangs that give way to others on a real cluster, and the commands that say so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), agents=1, gpus_per_agent=4) as running:
        yield running


def gpuctl(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **cluster.env(), "NO_COLOR": "1", "COLUMNS": "200"}
    argv = [sys.executable, "-m", "phalanx.cli.main", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def rows_of(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def works_until(path: str) -> int:
    """Works until there is such a file, and says which attempt did."""
    while not os.path.exists(path):  # noqa: PTH110
        time.sleep(0.05)
    return phalanx.current().attempt


def test_a_preemptible_call_gives_way_and_runs_again_behind(cluster: Cluster, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("min_runtime = 0\n[workspaces.default]\nweight = 2\nlimit = 8\n")
    assert gpuctl(cluster, "policy", "set", str(policy)).returncode == 0
    gate, other = tmp_path / "go", tmp_path / "gone"
    spot = phalanx.gpu_function(gpus=4, preemptible=True)(works_until)
    firm = phalanx.gpu_function(gpus=4, timeout=100)(works_until)
    first = spot.spawn(str(gate))
    wait_until(lambda: first.status().state == "running", "it runs", 40)
    second = firm.spawn(str(other))
    wait_until(lambda: second.status().state == "running", "what it gave way to runs", 40)
    wait_until(lambda: first.status().state == "queued", "it waits", 20)
    found = rows_of(gpuctl(cluster, "queue", "--json"))
    (row,) = found["waiting"]  # pyright: ignore[reportGeneralTypeIssues]
    assert (row["call_id"], row["preemptible"], row["starts_by_ms"] > 0) == (first.id, True, True)
    shown = gpuctl(cluster, "queue").stdout
    assert "works_until preemptible" in shown
    assert "within 1m" in shown
    when = gpuctl(cluster, "when", "--gpus", "4").stdout
    assert "works_until of admin has ended at its time limit" in when
    gate.touch()
    other.touch()
    assert second.get(timeout=40) == 1
    assert first.get(timeout=40) == 2
    assert "default" in gpuctl(cluster, "policy", "show").stdout
    assert gpuctl(cluster, "policy", "clear").returncode == 0


def test_a_policy_that_does_not_parse_is_refused_with_what_would(cluster: Cluster, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[workspaces.lab]\nlimit = -3\n")
    refused = gpuctl(cluster, "policy", "set", str(policy))
    assert refused.returncode == 2, refused
    assert "workspaces.lab.limit=-3: give a number from 0 on" in refused.stderr
    policy.write_text("[workspaces")
    assert "it does not parse" in gpuctl(cluster, "policy", "set", str(policy)).stderr
    policy.write_bytes(b"\xff\xfe\x00")
    assert gpuctl(cluster, "policy", "set", str(policy)).returncode == 2
    assert gpuctl(cluster, "policy", "set", str(tmp_path / "none.toml")).returncode == 2
