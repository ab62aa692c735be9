"""Real gangs verify links before user code: a fault that is planted in the copies is found, told, and kept away from.

The copies go through `torch.distributed`, so that is what the test breaks: a module of the user's own, imported before
the ranks meet, makes one pair of GPUs receive what was not sent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import phalanx
from phalanx.core.errors import PhalanxError
from phalanx.core.topology.verified import Verified
from phalanx.runner import current
from tests.support import faulty_copies  # noqa: F401  # pyright: ignore[reportUnusedImport] - ranks import it, too
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(
        tmp_path_factory.mktemp("cluster"), simulate="dgx1_v100", agent_flags=("--preflight", "boot")
    ) as running:
        yield running


@phalanx.gpu_function(gpus=2, scaledown_window=0.1)
def pair() -> tuple[tuple[str, ...], Verified | None]:
    here = phalanx.current()
    return here.gpus, here.verified


@phalanx.gpu_function(gpus=2, scaledown_window=0.1, env=phalanx.env(vars={"PHALANX_PREFLIGHT": "lease"}))
def pair_on_broken_links() -> tuple[str, ...]:
    return phalanx.current().gpus


@phalanx.gpu_function(gpus=2, scaledown_window=0.1)
def topology_of_pair() -> Any:
    topology = phalanx.current().topology
    return topology and topology.links


def indices(gpus: tuple[str, ...]) -> set[int]:
    (node,) = current().client.list_nodes()
    by_uuid = {gpu.info.uuid: gpu.info.index for gpu in node.gpus}
    return {by_uuid[uuid] for uuid in gpus}


def nobody_holds_gpus() -> bool:
    return all(not gpu.gang_id for node in current().client.list_nodes() for gpu in node.gpus)


def gpuctl(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "phalanx.cli.main", *words]
    return subprocess.run(argv, env=cluster.env(), capture_output=True, text=True, timeout=120, check=False)


def test_the_first_gang_on_a_pair_tries_it_and_the_function_can_see_what_was_found() -> None:
    gpus, verified = pair.remote()
    assert indices(gpus) == {0, 3}
    assert verified is not None
    (check,) = verified.pairs
    assert check.copies
    assert check.gbyte_s > 0
    wait_until(nobody_holds_gpus, "the gang has gone")
    assert topology_of_pair.remote()[0][1].copies is True


def test_a_pair_that_copies_wrongly_ends_the_gang_and_is_never_given_again(cluster: Cluster) -> None:
    wait_until(nobody_holds_gpus, "no gang is there")
    gpus = pair_on_broken_links.remote()
    assert indices(gpus) != {0, 3}, "the call ran again, on another pair"
    wait_until(nobody_holds_gpus, "the gang has gone")
    topology = current().client.topology("n0")
    wrong = {(i, j) for i, row in enumerate(topology.links) for j, link in enumerate(row) if link.copies is False}
    assert wrong == {(0, 3), (3, 0)}
    assert indices(pair.remote()[0]) != {0, 3}
    shown = gpuctl(cluster, "topo", "n0").stdout
    assert "copies between GPU 0 and GPU 3 come out wrong: no gang gets both" in shown
    assert "NV2! 40" in shown


def test_the_verdict_survives_a_restart_of_the_agent(cluster: Cluster) -> None:
    wait_until(nobody_holds_gpus, "no gang is there")
    cluster.kill_agent(0)
    cluster.start_agent(0)
    saved = json.loads((cluster.tmp_path / "agent-0" / "preflight.json").read_text())
    assert [each["copies"] for each in saved["pairs"]].count(False) == 1
    wait_until(lambda: current().client.list_nodes()[0].state == "ready", "the node is back")
    assert indices(pair.remote()[0]) != {0, 3}


def test_gpuctl_topo_verify_leaves_a_wrong_pair_out_until_a_person_has_cleared_it(cluster: Cluster) -> None:
    wait_until(nobody_holds_gpus, "no gang is there")
    ran = gpuctl(cluster, "topo", "verify", "n0", "--json")
    assert ran.returncode == 1, "a fault that is known is a fault"
    assert "GPU 0 and GPU 3 come out wrong" in ran.stderr
    said = json.loads(ran.stdout)
    assert len(said["pairs"]) == 21, "seven GPUs"
    wait_until(nobody_holds_gpus, "the gang has gone")
    uuids = [gpu.uuid for gpu in current().client.topology("n0").gpus]
    clear = [sys.executable, "-m", "phalanx_agent.main", "clear-gpu", "--state-dir", str(cluster.tmp_path / "agent-0")]
    subprocess.run([*clear, uuids[0]], check=True, timeout=60, capture_output=True)
    wait_until(lambda: not _is_wrong(), "the control plane knows that the pair was cleared")
    ran = gpuctl(cluster, "topo", "verify")
    assert ran.returncode == 0, ran.stderr
    assert "28 of 28 pairs copy 1 MiB right" in ran.stdout
    assert "all-reduce over 8 GPUs" in ran.stdout


def _is_wrong() -> bool:
    return any(link.copies is False for row in current().client.topology("n0").links for link in row)


def test_nodes_that_are_not_there_are_named(cluster: Cluster) -> None:
    ran = gpuctl(cluster, "topo", "verify", "n7")
    assert ran.returncode == 3
    assert "no node is called 'n7'" in ran.stderr


@phalanx.gpu_function(gpus=2, scaledown_window=0.1, env=phalanx.env(vars={"PHALANX_PREFLIGHT": "sometimes"}))
def nonsense() -> None: ...


def test_nonsense_in_a_functions_own_wish_is_told() -> None:
    with pytest.raises(PhalanxError, match="PHALANX_PREFLIGHT='sometimes' of nonsense: give one of"):
        nonsense.remote()
