"""What a choice picks from on one node: whole GPUs, and parts of those that are split (MIG). Also which cards train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.topology.figures import Figures, known_link
from phalanx.core.topology.node import Gpu, Health, Nic, NodeTopology, Path
from phalanx.core.topology.nvlink_islands import islands

_FAR_SLOWER = 4
"""A card at less than the fastest one's rate divided by this is for management, not for training."""


@dataclass(frozen=True, slots=True)
class Device:
    """``gpu``: position in the node's `gpus`. ``name``: what people call it. ``unusable``: why it is never chosen."""

    uuid: str
    gpu: int
    name: str
    mig: bool = False
    unusable: str = ""


def devices_of(node: NodeTopology) -> tuple[Device, ...]:
    """Returns the devices in the order of `gpus`: positions are the same where no GPU is split."""
    found: list[Device] = []
    for at, gpu in enumerate(node.gpus):
        found += _parts(at, gpu) if gpu.mig else [Device(gpu.uuid, at, str(gpu.index), unusable=_unusable(gpu))]
    return tuple(found)


def _parts(at: int, gpu: Gpu) -> list[Device]:
    lost = _unusable(gpu) if gpu.health is Health.LOST else ""
    return [Device(part.uuid, at, f"{gpu.index}:{part.profile}#{nth}", True, lost) for nth, part in enumerate(gpu.mig)]


def _unusable(gpu: Gpu) -> str:
    if gpu.health is Health.LOST:
        return f"GPU {gpu.index} is lost" + (f" ({gpu.reason})" if gpu.reason else "")
    if gpu.mig_enabled:
        return f"GPU {gpu.index} is in MIG mode without any MIG device"
    return ""


def weights_of(node: NodeTopology, devices: Sequence[Device], figures: Figures) -> tuple[tuple[int, ...], ...]:
    """Returns MB/s one way between devices. Parts of split GPUs have no peer access: theirs counts as the farthest."""
    far = figures.path_mbyte_s[Path.SYS]
    return tuple(
        tuple(
            0 if one is other else far if one.mig or other.mig else figures.link_mbyte_s(node, one.gpu, other.gpu)
            for other in devices
        )
        for one in devices
    )


def nearness_of(node: NodeTopology, devices: Sequence[Device]) -> tuple[tuple[int, ...], ...]:
    """Returns 0 (unknown or between sockets) to 4 (one switch) by the PCIe path between devices, NVLink or not."""
    return tuple(tuple(_nearness(_path(node, one, other)) for other in devices) for one in devices)


def _path(node: NodeTopology, one: Device, other: Device) -> Path | None:
    return None if one.gpu == other.gpu else known_link(node, one.gpu, other.gpu).path


def _nearness(path: Path | None) -> int:
    return 0 if path is None else Path.SYS.distance - path.distance


def wrong_pairs(node: NodeTopology, devices: Sequence[Device]) -> tuple[int, ...]:
    """Returns the pairs, as sets of positions, whose copies were seen to come out wrong."""
    return tuple(
        (1 << i) | (1 << j)
        for i, one in enumerate(devices)
        for j, other in enumerate(devices[:i])
        if one.gpu != other.gpu and known_link(node, one.gpu, other.gpu).copies is False
    )


def numa_places(node: NodeTopology, devices: Sequence[Device]) -> tuple[int, ...]:
    """Returns a number per device, the same for the same NUMA node; unknown ones are alone.

    A GPU near several NUMA nodes counts with the lowest: further ones of coherent hosts hold no host memory.
    """
    numbers: dict[tuple[str, int], int] = {}
    found: list[int] = []
    for device in devices:
        numa = node.gpus[device.gpu].numa
        key = ("numa", min(numa)) if numa else ("gpu", device.gpu)
        found.append(numbers.setdefault(key, len(numbers)))
    return tuple(found)


def training_nics(node: NodeTopology) -> tuple[int, ...]:
    """Returns the positions of network ports worth training over: real, not down, not far slower than the fastest."""
    real = [(at, nic) for at, nic in enumerate(node.nics) if not nic.virtual and nic.up is not False]
    fastest = max((nic.rate_gbit_s for _, nic in real if nic.rate_gbit_s is not None), default=0.0)
    return tuple(at for at, nic in real if _fast_enough(nic, fastest))


def _fast_enough(nic: Nic, fastest_gbit_s: float) -> bool:
    return nic.rate_gbit_s is None or nic.rate_gbit_s * _FAR_SLOWER >= fastest_gbit_s


@dataclass(frozen=True, slots=True)
class NicSight:
    """``closeness``: 0 (none known) to 5 (one switch). ``rails``: as a set, those known of the nearest ports."""

    closeness: int
    rails: int


def nic_sights(node: NodeTopology, devices: Sequence[Device]) -> tuple[NicSight, ...]:
    """Returns, for each device, how near the nearest training port is and which rails start there."""
    ports = training_nics(node)
    known = sorted({rail for at in ports if (rail := node.nics[at].rail) is not None})
    bits = {rail: 1 << nth for nth, rail in enumerate(known)}
    return tuple(_sight(node, device, ports, bits) for device in devices)


def _sight(node: NodeTopology, device: Device, ports: Sequence[int], bits: dict[int, int]) -> NicSight:
    links = node.nic_links[device.gpu] if device.gpu < len(node.nic_links) else ()
    distances = {at: path.distance for at in ports if at < len(links) and (path := links[at].path)}
    if not distances:
        return NicSight(0, 0)
    nearest = min(distances.values())
    rails = {node.nics[at].rail for at, distance in distances.items() if distance == nearest}
    return NicSight(len(Path) - nearest, sum(bits[rail] for rail in rails if rail is not None))


def island_masks(node: NodeTopology, devices: Sequence[Device]) -> tuple[int, ...]:
    """Returns the sets of devices that NVLinks connect, each device in one; parts of split GPUs are alone."""
    joined = {gpu: nth for nth, island in enumerate(islands(node)) for gpu in island}
    found: dict[tuple[str, int], int] = {}
    for at, device in enumerate(devices):
        key = ("alone", at) if device.mig else ("island", joined[device.gpu])
        found[key] = found.get(key, 0) | 1 << at
    return tuple(found.values())


def nvlink_partners(node: NodeTopology, devices: Sequence[Device], weights: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns, for each device, the set of those with which it is an NVLinked pair as good as any of the node."""
    pairs = [
        (weights[i][j], i, j)
        for i, one in enumerate(devices)
        for j, other in enumerate(devices)
        if not one.mig and not other.mig and i != j and known_link(node, one.gpu, other.gpu).nvlinks
    ]
    best = max((weight for weight, _, _ in pairs), default=0)
    partners = [0] * len(devices)
    for weight, i, j in pairs:
        partners[i] |= (weight == best) << j
    return tuple(partners)


def partition_masks(node: NodeTopology, devices: Sequence[Device]) -> frozenset[int] | None:
    """Returns the sets that a shared NVSwitch allows; None where anything goes. A part with a missing GPU is none."""
    if not node.partitions:
        return None
    at = {device.uuid: position for position, device in enumerate(devices)}
    whole = [part for part in node.partitions if all(uuid in at for uuid in part)]
    return frozenset(sum(1 << at[uuid] for uuid in set(part)) for part in whole)
