"""Which network ports of a node a gang of several nodes may use, and which of them are nearest to a rank. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.topology.node import LinkLayer, Nic, NodeTopology, Path

_RDMA_DEVICE = re.compile(r"(mlx[0-9]|rdma|roce|bnxt_re|irdma|i40iw|ib[ps_]|hfi|qedr|hns_|cxgb|erdma|mana_|efa_)\w*")
_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,63}(?::[0-9]{1,3})?")
_LABEL = re.compile(r"NIC[0-9]+|nic|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7].*")
_WORDS = {
    Path.PIX: "behind the same PCIe switch",
    Path.PXB: "behind PCIe switches of one host bridge",
    Path.PHB: "through a host bridge",
    Path.NODE: "on the same NUMA node",
    Path.SYS: "across the sockets",
}
SAME_CLASS = 2
"""A port at less than the fastest one's rate divided by this is not used with it."""


@dataclass(frozen=True, slots=True)
class Ports:
    """``usable``: positions in the node's `nics`. ``refused``: why others are not, by position."""

    usable: tuple[int, ...]
    refused: dict[int, str]


@dataclass(frozen=True, slots=True)
class Near:
    """What is nearest to one rank: positions in `nics`, how far, and in words."""

    ports: tuple[int, ...]
    path: Path | None
    why: str


def has_device_name(nic: Nic) -> bool:
    """Says whether ``nic.name`` is what NCCL knows the device by, not a label of the tool that printed it.

    A name that would be something else in a list of names, or in an environment, is none.
    """
    return _DEVICE.fullmatch(nic.name) is not None and not _LABEL.fullmatch(nic.name)


def usable_ports(node: NodeTopology) -> Ports:
    """Returns the ports for traffic between nodes: real, not down, RDMA, of the fabric's kind, and as fast as most."""
    refused = {at: why for at, nic in enumerate(node.nics) if (why := _unusable(node, nic))}
    left = [at for at in range(len(node.nics)) if at not in refused]
    if any(node.nics[at].layer is LinkLayer.INFINIBAND for at in left):
        ethernet = [at for at in left if node.nics[at].layer is LinkLayer.ETHERNET]
        refused |= dict.fromkeys(ethernet, "Ethernet on a node with InfiniBand")
        left = [at for at in left if at not in refused]
    fastest = max((rate for at in left if (rate := node.nics[at].rate_gbit_s) is not None), default=0.0)
    for at in left:
        rate = node.nics[at].rate_gbit_s
        if rate is not None and rate * SAME_CLASS < fastest:
            refused[at] = f"{rate:g} Gb/s where others have {fastest:g}"
    return Ports(tuple(at for at in left if at not in refused), refused)


def _unusable(node: NodeTopology, nic: Nic) -> str:
    if nic.virtual:
        return "virtual"
    if nic.up is False:
        return "down"
    bond = next((other.name for other in node.nics if nic.name in other.bond and other is not nic), "")
    if bond:
        return f"a part of {bond}"
    if nic.layer is LinkLayer.ETHERNET and not _RDMA_DEVICE.fullmatch(nic.name.partition(":")[0]):
        return "Ethernet without RDMA"
    return ""


def nearest_to(node: NodeTopology, gpus: Sequence[int], ports: Ports) -> Near:
    """Returns the usable ports that are nearest to any of a rank's GPUs: positions in `gpus`."""
    if not ports.usable:
        return Near((), None, "no usable port")
    distances = {at: path for at in range(len(node.nics)) if (path := _path(node, gpus, at)) is not None}
    known = {at: distances[at] for at in ports.usable if at in distances}
    if not known:
        return Near(ports.usable, None, "all usable ports: nothing says which is nearest")
    best = min(known.values(), key=lambda path: path.distance)
    nearest = tuple(at for at, path in known.items() if path is best)
    words = _WORDS[best] + (", all as near" if len(nearest) > 1 else "")
    return Near(nearest, best, words + _passed_over(node, distances, ports, best))


def _passed_over(node: NodeTopology, distances: dict[int, Path], ports: Ports, best: Path) -> str:
    """Says which ports are as near and why they are not taken."""
    others = [at for at, path in distances.items() if at in ports.refused and path.distance <= best.distance]
    return "".join(f"; not {node.nics[at].name}: {ports.refused[at]}" for at in others)


def _path(node: NodeTopology, gpus: Sequence[int], port: int) -> Path | None:
    rows = [node.nic_links[gpu] for gpu in gpus if gpu < len(node.nic_links)]
    paths = [path for row in rows if port < len(row) and (path := row[port].path) is not None]
    return min(paths, key=lambda path: path.distance, default=None)
