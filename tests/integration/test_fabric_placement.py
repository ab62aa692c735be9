"""A cell that was told its fabric: gangs of several nodes stay below one leaf, in the order of the fabric."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode
from phalanx.core.topology.fabric_codec import fabric_to_json
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster

SLURM = """SwitchName=spine Switches=leaf[1-2]
SwitchName=leaf1 Nodes=n[0,3,9]
SwitchName=leaf2 Nodes=n[1-2]
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), agents=4, gpus_per_agent=2, replicas=2) as running:
        yield running


@phalanx.gpu_function(gpus=4, scaledown_window=1)
def where() -> str:
    return phalanx.current().placement


@phalanx.gpu_function(gpus=8, nodes=4, scaledown_window=1)
def everywhere() -> tuple[str, str]:
    return os.environ["MASTER_ADDR"], phalanx.current().placement


def gpuctl(cluster: Cluster, *words: str, replica: int = 0) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "phalanx.cli.main", *words]
    return subprocess.run(argv, env=cluster.env(replica), capture_output=True, text=True, timeout=60, check=False)


def told(cluster: Cluster, tmp_path: Path, text: str) -> str:
    file = tmp_path / "fabric"
    file.write_text(text)
    done = gpuctl(cluster, "topo", "fabric", "set", str(file))
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_gang_of_two_nodes_lands_below_one_leaf_in_rank_order(cluster: Cluster, tmp_path: Path) -> None:
    said = told(cluster, tmp_path, SLURM)
    assert "not joined yet, and kept: n9" in said
    placement = where.remote()
    assert placement.startswith("4 GPUs: 2 on n0 (0-1) and 2 on n3 (0-1), the fewest nodes that fit: 2 nodes, ")
    assert "both in leaf leaf1 (tightest that fits: 2 nodes free of 2)" in placement


def test_ranks_follow_the_fabric_and_not_the_names(cluster: Cluster, tmp_path: Path) -> None:
    fabric = Fabric(
        levels=("leaf", "pod"),
        domains=(
            Domain(id="pod", level="pod"),
            Domain(id="a", level="leaf", parent="pod"),
            Domain(id="b", level="leaf", parent="pod"),
        ),
        nodes=tuple(FabricNode(id=f"n{at}", domain="b" if at < 2 else "a") for at in range(4)),
    )
    told(cluster, tmp_path, fabric_to_json(fabric))
    lead, placement = everywhere.remote()
    assert placement.startswith("8 GPUs: 2 on n2 (0-1) and 2 on n3 (0-1) and 2 on n0 (0-1) and 2 on n1 (0-1), 4 nodes")
    assert lead == "127.0.0.3", "the agent of n2 advertises it"


def test_the_fabric_is_shown_survives_a_leader_and_is_forgotten_when_asked(cluster: Cluster, tmp_path: Path) -> None:
    told(cluster, tmp_path, SLURM)
    shown = gpuctl(cluster, "topo", "fabric").stdout
    assert "fabric: 2 leaves, 1 spine; 5 nodes, of which 4 have joined" in shown
    assert "n9  (has not joined)" in shown
    killed = cluster.kill_leader()
    after = gpuctl(cluster, "topo", "fabric", "--json", replica=cluster.leader())
    assert json.loads(after.stdout)["absent"] == ["n9"]
    cluster.start_replica(killed)
    picture = tmp_path / "fabric.svg"
    assert gpuctl(cluster, "topo", "fabric", "show", "--svg", str(picture)).returncode == 0
    assert "n9; has not joined" in picture.read_text()
    assert "the fabric is forgotten" in gpuctl(cluster, "topo", "fabric", "clear").stderr
    assert "nothing to forget" in gpuctl(cluster, "topo", "fabric", "clear").stderr
    known = current().client.fabric()
    assert not known.is_set
    assert [node.id for node in known.fabric.nodes] == ["n0", "n1", "n2", "n3"]


def test_what_is_no_fabric_is_refused_with_what_to_bring(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    done = gpuctl(cluster, "topo", "fabric", "set", str(file))
    assert done.returncode == 2
    assert "does not describe the network between nodes" in done.stderr
