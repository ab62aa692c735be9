"""A node that looks like a known machine: its ranks get the best-connected GPUs, and are told why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import phalanx
from phalanx.core.errors import NotFoundError
from phalanx.core.topology.presets import preset
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), simulate="dgx1_v100") as running:
        yield running


@phalanx.gpu_function(gpus=2, scaledown_window=5)
def where() -> tuple[str, tuple[str, ...]]:
    here = phalanx.current()
    return here.placement, here.gpus


def test_a_pair_of_ranks_gets_a_pair_with_two_links_and_hears_why() -> None:
    placement, gpus = where.remote()
    (node,) = current().client.list_nodes()
    indices = {gpu.info.uuid: gpu.info.index for gpu in node.gpus}
    assert [indices[uuid] for uuid in gpus] == [0, 3]
    assert "ring 0-3 at 40.0 GB/s" in placement
    assert {gpu.info.model for gpu in node.gpus} == {"Tesla V100-SXM2-32GB"}


def test_the_nodes_topology_can_be_asked_for() -> None:
    client = current().client
    topology = client.topology("n0")
    assert topology.links == preset("dgx1_v100").links
    assert [gpu.uuid for gpu in topology.gpus] == [g.info.uuid for g in client.list_nodes()[0].gpus]
    with pytest.raises(NotFoundError, match="there are: n0"):
        client.topology("n7")
