"""`gpuctl topo simulate` beside a real cell: nodes that are shown and scheduled, run nothing, and leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import phalanx
from phalanx import connection
from phalanx.connection import Connection
from phalanx.core.clock import SystemClock
from phalanx.core.errors import UnschedulableError
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

CALL_S = 0.3
GONE_WITHIN_S = 15.0
READY_WITHIN_S = 15.0
AT_REST_S = 10.0


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), agents=1, gpus_per_agent=2) as running:
        use(running)
        yield running
        connection.disconnect()


def use(cluster: Cluster) -> None:
    connection.disconnect()
    connection.use(Connection(cluster.address(), cluster.token, str(cluster.ca)))


@phalanx.gpu_function(gpus=16, gpu="played", returns="all", scaledown_window=1)
def played() -> None:
    raise AssertionError("a played call ran somewhere")


@phalanx.gpu_function(gpus=2, scaledown_window=1)
def real() -> str:
    return phalanx.current().placement


@phalanx.gpu_function(gpus=4)
def too_large() -> None:
    raise AssertionError("it fits nowhere")


@phalanx.gpu_function(gpus=0, scaledown_window=1)
def on_cpu() -> int:
    return os.getpid()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "phalanx.cli.main", "topo", "simulate", *words]


@contextmanager
def fleet(cluster: Cluster, *words: str) -> Generator[subprocess.Popen[str]]:
    """Plays a fleet until the block ends, and makes sure that it is gone then."""
    folder = cluster.tmp_path / "tmp"
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        command(*words, "--call", str(CALL_S)),
        env={**cluster.env(), "TMPDIR": str(cluster.tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("playing"), process.communicate()
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    wait_until(lambda: not list(folder.iterdir()), "no key of a played node is left", GONE_WITHIN_S)


def node_states(cluster: Cluster) -> dict[str, str]:
    return {node.node_id: node.state for node in cluster.connect().list_nodes()}


def pid_of_fleet(process: subprocess.Popen[str]) -> int:
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def test_a_fleet_joins_with_its_fabric_and_is_forgotten_when_it_ends(cluster: Cluster) -> None:
    client = cluster.connect()
    with fleet(cluster, "5", "x", "aws_p5", "1xpcie_l4", "--fabric", "--group", "3") as process:
        nodes = {node.node_id: node for node in client.list_nodes()}
        assert set(nodes) == {"n0", "played-pcie_l4-1", *(f"played-aws_p5-{at}" for at in range(1, 6))}
        one = nodes["played-aws_p5-1"]
        assert (one.state, one.pool, len(one.gpus)) == ("ready", "played", 8)
        assert all(gpu.info.simulated and gpu.info.model.startswith("played ") for gpu in one.gpus)
        assert client.topology("played-aws_p5-1").gpus[0].model == "played NVIDIA H100 80GB HBM3"
        known = client.fabric()
        assert [domain.id for domain in known.fabric.domains][1:] == [f"played-rails-{at}" for at in (1, 2, 3)]
        again = subprocess.run(
            command("1xaws_p5"), env=cluster.env(), capture_output=True, text=True, timeout=30, check=False
        )
        assert again.returncode == 2
        assert "there is a node played-aws_p5-1 already" in again.stderr
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, ""), errors
        assert "the simulated fleet has left" in errors
    assert node_states(cluster) == {"n0": "ready"}
    assert not client.fabric().is_set


def test_calls_for_played_gpus_are_played_and_all_others_stay_on_the_real_node(cluster: Cluster) -> None:
    before = set(cluster.markers.iterdir())
    with fleet(cluster, "11", "x", "dgx_h100", "--fabric", "--group", "2"):
        in_order = ["n0", *(f"played-dgx_h100-{at}" for at in range(1, 12))]
        assert [node.node_id for node in cluster.connect().list_nodes()] == in_order
        call = played.spawn()
        assert call.get(timeout=30) == [None] * 16
        assert "both in rail group played-rails-" in call.status().placement
        assert set(cluster.markers.iterdir()) == before, "no rank has run"
        assert float(call.cost().money) == 0
        assert "on n0" in real.remote()
        assert on_cpu.remote() != os.getpid()
        with pytest.raises(UnschedulableError, match="this cell has 2 GPUs on 1 node"):
            too_large.remote()
        left = [played.spawn() for _ in range(6)]
    assert node_states(cluster) == {"n0": "ready"}, "calls that still wait do not hold the nodes"
    for each in left:
        each.cancel()


def test_a_fleet_ends_with_the_command_even_when_that_is_killed(cluster: Cluster) -> None:
    with fleet(cluster, "2", "x", "pcie_l4") as process:
        process.kill()
        wait_until(lambda: node_states(cluster) == {"n0": "ready"}, "the nodes have left", GONE_WITHIN_S)


@pytest.mark.slow
def test_a_fleet_that_was_killed_itself_is_told_and_its_names_can_be_used_again(cluster: Cluster) -> None:
    with fleet(cluster, "2", "x", "pcie_l4") as process:
        os.kill(pid_of_fleet(process), signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
        assert process.returncode != 0
        assert "the fleet's process ended with status -9" in errors
    wait_until(
        lambda: node_states(cluster).get("played-pcie_l4-1") == "lost", "the nodes are given up", 2 * GONE_WITHIN_S
    )
    with fleet(cluster, "2", "x", "pcie_l4"):
        assert node_states(cluster)["played-pcie_l4-2"] == "ready"
    assert node_states(cluster) == {"n0": "ready"}


@pytest.mark.slow
def test_sixty_four_nodes_join_in_time_and_cost_next_to_nothing_at_rest(cluster: Cluster) -> None:
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    with fleet(cluster, "64", "x", "aws_p5", "--fabric") as process:
        took_s = (clock.monotonic_ms() - began_ms) / 1000
        pid = pid_of_fleet(process)
        assert took_s < READY_WITHIN_S
        assert resident_bytes(pid) < 300e6
        before_s = cpu_s(pid)
        until_ms = clock.monotonic_ms() + AT_REST_S * 1000
        wait_until(lambda: clock.monotonic_ms() > until_ms, "some time has passed", 2 * AT_REST_S)
        assert (cpu_s(pid) - before_s) / AT_REST_S < 64 * 0.01
    assert node_states(cluster) == {"n0": "ready"}


@pytest.mark.slow
def test_a_fleet_goes_on_after_the_control_plane_was_away(cluster: Cluster) -> None:
    with fleet(cluster, "2", "x", "dgx_h100"):
        cluster.kill_leader()
        cluster.start_replica(0)
        use(cluster)
        assert played.remote() == [None] * 16
    assert node_states(cluster) == {"n0": "ready"}
