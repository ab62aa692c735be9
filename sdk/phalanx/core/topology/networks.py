"""Whether a gang's nodes have one network in common: NCCL takes the same transport on all ranks, or hangs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.core.topology.nearest_ports import usable_ports
from phalanx.core.topology.node import LinkLayer, NodeTopology

_WORDS = {
    LinkLayer.INFINIBAND: "InfiniBand",
    LinkLayer.ETHERNET: "RoCE",
    LinkLayer.EFA: "EFA",
    LinkLayer.OTHER: "other RDMA",
}
_NONE = "no usable RDMA port"


def network_in_words(node: NodeTopology) -> str:
    """Returns what a node's ranks would use between nodes; "" where its ports, or their kinds, are not known."""
    if not node.nics:
        return ""
    layers = {node.nics[at].layer for at in usable_ports(node).usable}
    if None in layers:
        return ""
    return " and ".join(sorted(_WORDS[layer] for layer in layers if layer is not None)) or _NONE


def disagreement(nodes: Mapping[str, str]) -> str:
    """Returns why the gang's nodes have no network in common but plain sockets; "" where they have, or nobody knows.

    ``nodes``: of each node's id, what `network_in_words` says.
    """
    known = {node_id: words for node_id, words in nodes.items() if words}
    if len(set(known.values())) < 2:
        return ""
    first = {words: node_id for node_id, words in reversed(known.items())}
    return "the gang's nodes are on different networks: " + ", ".join(
        f"{node_id} has {words}" for words, node_id in sorted(first.items())
    )
