"""A node's topology as one gang sees it: its own GPUs, in its own order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phalanx.core.topology.node import NodeTopology


def positions_of(node: NodeTopology, uuids: Sequence[str]) -> tuple[int, ...]:
    """Returns where GPUs, or the GPUs that MIG parts belong to, stand in `gpus`, in this order.

    Unknown ones are left out. A GPU that is named twice, by two of its parts, is there once.
    """
    places = {gpu.uuid: at for at, gpu in enumerate(node.gpus)}
    for at, gpu in enumerate(node.gpus):
        places.update({part.uuid: at for part in gpu.mig})
    return tuple(dict.fromkeys(places[uuid] for uuid in uuids if uuid in places))


def restricted(node: NodeTopology, uuids: Sequence[str]) -> NodeTopology:
    """Returns the topology with these GPUs alone, in this order; ports stay, and partitions that are whole in it."""
    at = positions_of(node, uuids)
    names = {node.gpus[each].uuid for each in at}
    return replace(
        node,
        gpus=tuple(node.gpus[each] for each in at),
        links=tuple(tuple(node.links[i][j] for j in at) for i in at) if node.links else (),
        nic_links=tuple(node.nic_links[each] for each in at) if node.nic_links else (),
        partitions=tuple(part for part in node.partitions if names.issuperset(part)),
    )
