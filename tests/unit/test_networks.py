"""Gangs over nodes of different kinds: all ranks use the same network, or plain sockets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.topology.nccl_env import network_of
from phalanx.core.topology.networks import disagreement, network_in_words
from phalanx.core.topology.node import LinkLayer, NodeTopology
from phalanx.core.topology.presets import preset
from tests.support.equipment_golden import gang_on


def on(layer: LinkLayer | None) -> NodeTopology:
    node = preset("hgx_h100")
    return replace(node, nics=tuple(replace(nic, layer=layer) for nic in node.nics))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (on(LinkLayer.INFINIBAND), "InfiniBand"),
        (on(LinkLayer.EFA), "EFA"),
        (replace(preset("hgx_h100"), nics=(), nic_links=()), ""),
        (
            replace(preset("hgx_h100"), nics=tuple(replace(n, up=False) for n in preset("hgx_h100").nics)),
            "no usable RDMA port",
        ),
    ],
    ids=["InfiniBand", "EFA", "unknown", "down"],
)
def test_what_a_nodes_ranks_would_use(node: NodeTopology, words: str) -> None:
    assert network_in_words(node) == words


def test_nodes_that_agree_or_are_not_known_change_nothing() -> None:
    assert disagreement({"a": "InfiniBand", "b": "InfiniBand", "c": ""}) == ""
    assert disagreement({"a": "no usable RDMA port", "b": "no usable RDMA port"}) == ""
    assert disagreement({}) == ""


def test_nodes_that_differ_are_named_with_what_they_have() -> None:
    why = disagreement({"n0": "InfiniBand", "n1": "no usable RDMA port", "n2": "InfiniBand"})
    assert why == "the gang's nodes are on different networks: n0 has InfiniBand, n1 has no usable RDMA port"


def test_a_mixed_gang_uses_sockets_on_every_rank_and_says_why() -> None:
    why = disagreement({"n0": "InfiniBand", "n1": "no usable RDMA port"})
    gang = gang_on(preset("hgx_h100"), 8)
    names = {each.name for each in network_of(gang).variables if each.value}
    assert "NCCL_IB_HCA" in names
    mixed = {each.name: each for each in network_of(replace(gang, differs=why)).variables}
    assert (mixed["NCCL_NET"].value, mixed["NCCL_NET"].why) == ("Socket", why)
    assert not [name for name in mixed if name.startswith("NCCL_IB_")]
    assert "NCCL_NET" not in {each.name for each in network_of(replace(gang, differs=why, nodes=1)).variables}
