"""The environment of NCCL and gloo for a gang's ranks on one node, from facts. Pure.

What NCCL decides well by itself is not set: each variable needs a fact and a reason. All ranks of a node get the same:
NCCL numbers a node's network devices by what it may use of them, so ranks that may use different ones disagree about
the numbers (NVIDIA/nccl#1478: "You should not set NCCL_IB_HCA differently on each rank"). ``NCCL_IB_HCA`` therefore
lists the ports that are nearest to any rank of the node, and NCCL gives each rank the nearest of these.

Values are those of NCCL's user guide, "Environment Variables": ``=`` before a list of names asks for exact matches,
since ``mlx5_1`` is a prefix of ``mlx5_10``, and ``device:port`` names one port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.topology.equipment import Variable
from phalanx.core.topology.figures import known_link
from phalanx.core.topology.nearest_ports import Near, Ports, has_device_name, nearest_to, usable_ports
from phalanx.core.topology.node import Link, LinkLayer, NodeTopology, Path

OWN_PREFIXES = ("NCCL_", "GLOO_")
_HOPPER = 90
_NAMED = 4
_READ_HERE = frozenset({"nvml", "sysfs"})
# A level that forbids the path, and is never above NCCL's default for Intel hosts, PXB.
_P2P_BELOW = {Path.PIX: "NVL", Path.PXB: "PIX", Path.PHB: "PXB", Path.NODE: "PXB", Path.SYS: "PXB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOnNode:
    """A gang's part on one node. ``gpus``: positions in the node's `gpus`, by local rank; ``nodes``: of the gang.

    ``interface`` carries the ``address`` at which the ranks meet; "" where it is not known. ``differs``: why the gang's
    nodes have only plain sockets in common, if so. ``nccl_file``: where the
    node's topology lies as NCCL reads it, for a node of which NCCL cannot see it.
    """

    node: NodeTopology | None
    gpus: tuple[tuple[int, ...], ...]
    ranks: int
    nodes: int = 1
    interface: str = ""
    address: str = ""
    differs: str = ""
    nccl_file: str = ""


@dataclass(frozen=True, slots=True)
class Network:
    """``near``: by local rank; empty in a gang of one node."""

    variables: tuple[Variable, ...]
    near: tuple[Near, ...] = ()


def network_of(gang: GangOnNode) -> Network:
    """Returns the variables for every rank of the node, and the ports that are nearest to each."""
    if gang.ranks <= 1 and gang.nodes <= 1:
        return Network(())
    found = [*_socket(gang)]
    if gang.nodes > 1 and gang.differs:
        found.append(Variable("NCCL_NET", "Socket", gang.differs))
    near: tuple[Near, ...] = ()
    if gang.node is not None and any(gang.gpus):
        if gang.nodes > 1 and not gang.differs:
            ports = usable_ports(gang.node)
            near = tuple(nearest_to(gang.node, each, ports) for each in gang.gpus)
            found += _fabric(gang.node, gang, ports, near)
        found += [*_peers(gang.node, gang), *_in_switch(gang.node, gang), *_file(gang)]
    return Network(tuple(found), near)


def given(node: NodeTopology) -> bool:
    """Says whether the topology was read from a file, so that NCCL does not find the same on the machine."""
    return any(fact == "links" and source not in _READ_HERE for fact, source in node.sources)


# ---- between nodes ----


def _socket(gang: GangOnNode) -> list[Variable]:
    if not gang.interface:
        why = f"left to NCCL: no interface of this node was found for the rendezvous address {gang.address}"
        return [Variable("NCCL_SOCKET_IFNAME", "", why)]
    why = f"{gang.interface} carries the rendezvous address {gang.address}"
    return [
        Variable("NCCL_SOCKET_IFNAME", f"={gang.interface}", f"{why}; exactly this one"),
        Variable("GLOO_SOCKET_IFNAME", gang.interface, why),
    ]


def _fabric(node: NodeTopology, gang: GangOnNode, ports: Ports, near: Sequence[Near]) -> list[Variable]:
    used = sorted({at for each in near for at in each.ports})
    if not used:
        return [_without_rdma(node, ports)]
    if any(node.nics[at].layer is LinkLayer.EFA for at in used):
        return [Variable("NCCL_IB_HCA", "", "left to NCCL: EFA is used through its plugin, which chooses by itself")]
    return [_hcas(node, used), *_rails(node, used), *_gpudirect(node, gang, near)]


def _without_rdma(node: NodeTopology, ports: Ports) -> Variable:
    if not node.nics:
        return Variable("NCCL_IB_DISABLE", "", "left to NCCL: the node's network ports are not known")
    telling = sorted(ports.refused, key=lambda at: (bool(node.nics[at].virtual), at))
    reasons = ", ".join(f"{node.nics[at].name} is {ports.refused[at]}" for at in telling[:_NAMED])
    more = f", and {len(telling) - _NAMED} more" if len(telling) > _NAMED else ""
    return Variable("NCCL_IB_DISABLE", "1", f"no usable RDMA port: {reasons}{more}")


def _hcas(node: NodeTopology, used: Sequence[int]) -> Variable:
    names = [_named_exactly(node, at) for at in used]
    label = next((node.nics[at].name for at in used if not has_device_name(node.nics[at])), None)
    if label is not None:
        said = label if label and label.isprintable() else repr(label)
        return Variable("NCCL_IB_HCA", "", f"left to NCCL: {said} is a label, not the name of a device")
    unknown = sum(node.nics[at].up is None for at in used)
    doubt = (
        "" if not unknown else "; nothing says whether they are up" if unknown == len(used) else "; some may be down"
    )
    of = f"of {len(node.nics)} ports " if len(node.nics) > len(names) else ""
    return Variable("NCCL_IB_HCA", f"={','.join(names)}", f"{of}the nearest to each rank, exactly these{doubt}")


def _named_exactly(node: NodeTopology, at: int) -> str:
    """Returns ``device:port`` where the device has several ports: its bare name would be all of them."""
    name = node.nics[at].name
    return f"{name}:1" if any(nic.name.startswith(f"{name}:") for nic in node.nics) else name


def _rails(node: NodeTopology, used: Sequence[int]) -> list[Variable]:
    rails = [node.nics[at].rail for at in used]
    if len(used) < 2:
        return [Variable("NCCL_CROSS_NIC", "", "left to NCCL: it has no effect with one port")]
    if None in rails:
        return [Variable("NCCL_CROSS_NIC", "", "left to NCCL: the rails of the ports are not known")]
    if len(set(rails)) < len(rails):
        return [Variable("NCCL_CROSS_NIC", "", "left to NCCL: several of the ports are on one rail")]
    return [
        Variable("NCCL_CROSS_NIC", "0", f"a rail fabric: each of the {len(rails)} ports has a switch of its own"),
        Variable(
            "NCCL_PXN_DISABLE", "", "left to NCCL: where NVLinks are, it sends over the port on the receiver's rail"
        ),
    ]


def _gpudirect(node: NodeTopology, gang: GangOnNode, near: Sequence[Near]) -> list[Variable]:
    pairs = [(gpu, at) for each, gpus in zip(near, gang.gpus, strict=False) for at in each.ports for gpu in gpus]
    if not pairs or not node.nic_links or not all(node.nic_links[gpu][at].gpudirect is False for gpu, at in pairs):
        return []
    return [Variable("NCCL_NET_GDR_LEVEL", "LOC", "GPUDirect RDMA does not work between these GPUs and ports: never")]


# ---- inside the node ----


def _peers(node: NodeTopology, gang: GangOnNode) -> list[Variable]:
    """Keeps NCCL away from pairs whose verified copies came out wrong."""
    all_gpus = sorted({gpu for each in gang.gpus for gpu in each})
    pairs = [(i, j, known_link(node, i, j)) for i in all_gpus for j in all_gpus if i < j]
    wrong = [(i, j, link) for i, j, link in pairs if link.copies is False]
    if not wrong:
        return []
    i, j, link = min(wrong, key=lambda pair: _distance(pair[2]))
    said = f"copies between GPU {node.gpus[i].index} and {node.gpus[j].index} came out wrong"
    if link.nvlinks or link.path is None:
        over = "over NVLink" if link.nvlinks else "over an unknown path"
        return [Variable("NCCL_P2P_DISABLE", "1", f"{said} {over}: no level leaves out this pair alone")]
    level = _P2P_BELOW[link.path]
    return [Variable("NCCL_P2P_LEVEL", level, f"{said}, and their path is {link.path}: nothing farther than {level}")]


def _distance(link: Link) -> int:
    return -1 if link.nvlinks or link.path is None else link.path.distance


def _in_switch(node: NodeTopology, gang: GangOnNode) -> list[Variable]:
    """Says what NCCL does with an NVSwitch, for people: it finds out itself, and gives up quietly where it must."""
    chosen = sorted({gpu for each in gang.gpus for gpu in each})
    if len(chosen) < 2 or not all(known_link(node, i, j).switched for i in chosen for j in chosen if i < j):
        return []
    compute = min((node.gpus[at].compute or 0) for at in chosen)
    if compute < _HOPPER:
        return []
    whole = "all GPUs" if len(chosen) == len(node.gpus) else f"{len(chosen)} of {len(node.gpus)} GPUs"
    why = f"left to NCCL: {whole} of an NVSwitch node, Hopper or newer: it reduces in the switch where it gets room"
    return [Variable("NCCL_NVLS_ENABLE", "", why)]


def _file(gang: GangOnNode) -> list[Variable]:
    if not gang.nccl_file:
        return []
    return [Variable("NCCL_TOPO_FILE", gang.nccl_file, "NCCL cannot see this topology on the machine: it was given")]
