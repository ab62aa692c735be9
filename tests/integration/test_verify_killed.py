"""gpuctl topo verify is ended midway, by real signals: nothing stays leased, waits on, or is half written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from phalanx.core.states import CallState
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), simulate="dgx1_v100") as running:
        yield running


@phalanx.gpu_function(gpus=1, scaledown_window=0.1)
def hold(folder: str) -> None:
    (Path(folder) / "held").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.05)


def begun(cluster: Cluster) -> tuple[subprocess.Popen[str], str]:
    """Starts gpuctl; returns it once it has told its call, and that call's id."""
    argv = [sys.executable, "-m", "phalanx.cli.main", "topo", "verify", "n0"]
    ran = subprocess.Popen(argv, env=cluster.env(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert ran.stderr is not None
    line = ran.stderr.readline()
    assert "n0: 8 GPUs, call " in line
    return ran, line.split()[-1]


def nobody_holds_gpus() -> bool:
    return all(not gpu.gang_id for node in current().client.list_nodes() for gpu in node.gpus)


def all_is_over(call_id: str) -> bool:
    return CallState(phalanx.Call.from_id(call_id).status().state).terminal and nobody_holds_gpus()


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_a_verify_that_is_ended_midway_leaves_nothing_behind(cluster: Cluster, number: int) -> None:
    ran, call_id = begun(cluster)
    wait_until(lambda: not nobody_holds_gpus(), "its gang has the GPUs", 30.0)
    ran.send_signal(number)
    ran.communicate(timeout=30)
    assert ran.returncode != 0
    wait_until(lambda: all_is_over(call_id), "its call and its gang are over", 30.0)
    book = cluster.tmp_path / "agent-0" / "preflight.json"
    if book.exists():
        assert len(json.loads(book.read_text())["pairs"]) in (0, 28), "all that its gang found, or nothing"
    assert not list(book.parent.glob(".preflight*")), "no draft of the file is left"


@pytest.mark.parametrize("number", SIGNALS[1:], ids=lambda number: signal.Signals(number).name)
def test_a_verify_that_still_waits_for_gpus_is_cancelled_with_its_program(
    cluster: Cluster, tmp_path: Path, number: int
) -> None:
    holder = hold.spawn(str(tmp_path))
    wait_until((tmp_path / "held").exists, "a GPU is held", 60.0)
    ran, call_id = begun(cluster)
    ran.send_signal(number)
    ran.communicate(timeout=30)
    wait_until(lambda: phalanx.Call.from_id(call_id).status().state == "cancelled", "it waits no more", 10.0)
    (tmp_path / "go").touch()
    holder.get(timeout=30)
    wait_until(nobody_holds_gpus, "nobody has a GPU", 30.0)


def test_verify_works_after_all_that(cluster: Cluster) -> None:
    ran, call_id = begun(cluster)
    ran.communicate(timeout=60)
    assert ran.returncode == 0
    wait_until(lambda: all_is_over(call_id), "its gang is gone", 30.0)
