"""One node: its GPUs, what connects them, its network cards. Data only; what a link is worth is `figures.py`'s.

None means unknown, everywhere: never 0, and two unknowns are not the same place. Positions in `gpus` and `nics` order
the matrices; outside the node a GPU is named by its UUID, and `index` is what tools on the node call it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from phalanx.core.topology.names import links_of


class Path(StrEnum):
    """What a transfer crosses besides NVLink, nearest first. "SOC" of old drivers is SYS."""

    PIX = "PIX"
    """One PCIe switch at most."""
    PXB = "PXB"
    """Several PCIe switches, no host bridge."""
    PHB = "PHB"
    """A host bridge, typically the processor."""
    NODE = "NODE"
    """Several host bridges of one NUMA node."""
    SYS = "SYS"
    """The link between sockets."""

    @property
    def distance(self) -> int:
        """0 is nearest."""
        return _PATHS.index(self)


_PATHS = tuple(Path)


class Health(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    LOST = "lost"


class LinkLayer(StrEnum):
    INFINIBAND = "infiniband"
    ETHERNET = "ethernet"
    EFA = "efa"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A part of a GPU: it has no NVLink and no peer access to any other."""

    uuid: str
    profile: str
    """As ``1g.10gb``."""
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """``numa``: the host's NUMA nodes near it, as labels. ``cpus``: as the kernel writes lists, "0-19,40-59"."""

    uuid: str
    index: int
    model: str = ""
    pci: str = ""
    """Domain (4 digits), bus, device and function, in lower case: ``0000:3b:00.0``."""
    numa: tuple[int, ...] | None = None
    cpus: str | None = None
    memory_bytes: int | None = None
    memory_numa: int | None = None
    """The GPU's own memory as a NUMA node, on coherent hosts: nothing else may be bound there."""
    compute: int | None = None
    """Compute capability, as 90."""
    mig_enabled: bool | None = None
    mig: tuple[MigDevice, ...] = ()
    nvlinks_active: int | None = None
    nvlinks_total: int | None = None
    nvlink_gbyte_s: float | None = None
    """Of one NVLink, one way, as the link itself reports it."""
    module_id: int | None = None
    """Place on the baseboard, which NVSwitch partitions are named by; not in PCI order."""
    health: Health = Health.OK
    reason: str = ""
    """Why it is not `Health.OK`."""


@dataclass(frozen=True, slots=True)
class Link:
    """Between two GPUs. A tool that shows one of the two facts leaves the other unknown."""

    nvlinks: int | None = None
    """0: known to have none."""
    path: Path | None = None
    switched: bool | None = None
    """The NVLinks end at an NVSwitch, or something like it."""
    copies: bool | None = None
    """Whether a verified copy between the two went right; None where nobody tried."""
    measured_gbyte_s: float | None = None
    """What that copy moved, one way."""
    slowed: float | None = None
    """Only where it moved clearly less than copies over links like this one: the part of theirs, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network port. ``rail``: ports of one rail on all nodes end at the same switch."""

    name: str
    """The device's name, as ``mlx5_0`` or ``eth0``; a tool's own label where that is all it shows."""
    interface: str = ""
    """The network interface of an Ethernet port, where it has another name."""
    pci: str = ""
    numa: tuple[int, ...] | None = None
    layer: LinkLayer | None = None
    rate_gbit_s: float | None = None
    """As advertised, in Gb/s."""
    up: bool | None = None
    virtual: bool | None = None
    """veth, bridge, tunnel, or a port that a bond already stands for."""
    bond: tuple[str, ...] = ()
    """The ports that this one bundles."""
    rail: int | None = None
    guid: str = ""


@dataclass(frozen=True, slots=True)
class NicLink:
    """Between a GPU and a network port."""

    path: Path | None = None
    bridges: int | None = None
    """PCIe bridges crossed."""
    gpudirect: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTopology:
    """``links[i][j]``: between ``gpus[i]`` and ``gpus[j]``, empty for i = j. ``nic_links[i][k]``: to ``nics[k]``."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[tuple[Link, ...], ...] = ()
    nics: tuple[Nic, ...] = ()
    nic_links: tuple[tuple[NicLink, ...], ...] = ()
    nvl_domain: str | None = None
    """``ClusterUUID.CliqueId``: GPUs of other nodes with the same are reached over NVLink."""
    partitions: tuple[tuple[str, ...], ...] = ()
    """UUIDs of the sets that a shared NVSwitch allows; empty: no restriction."""
    pcie_gen: int | None = None
    socket_gbyte_s: float | None = None
    """Between sockets, one way."""
    all_reduce_gbyte_s: float | None = None
    """The bus bandwidth of an all-reduce over all GPUs, as it was measured last."""
    driver: str = ""
    cuda: str = ""
    sources: tuple[tuple[str, str], ...] = ()
    """Fact and where it was read, as ("links", "nvml")."""
    notes: tuple[str, ...] = field(default=())
    """What could not be read, and what was left out, for people."""

    def position(self, uuid: str) -> int:
        """Returns where in `gpus` a GPU stands. Raises KeyError."""
        for at, gpu in enumerate(self.gpus):
            if gpu.uuid == uuid:
                return at
        raise KeyError(uuid)

    def __str__(self) -> str:
        """A few lines, however large the node; `repr` has it all."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        models = Counter(gpu.model or "GPU" for gpu in self.gpus)
        yield ", ".join(_some([f"{count} x {model}" for model, count in models.items()])) or "no GPU"
        by_numa: dict[str, list[str]] = {}
        for gpu in self.gpus:
            by_numa.setdefault(",".join(map(str, gpu.numa or ())) or "unknown", []).append(str(gpu.index))
        yield from _some([f"  NUMA {numa}: GPU {' '.join(indices)}" for numa, indices in by_numa.items()])
        own = links_of(self.gpus[0].model) if self.gpus else ""
        pairs = Counter(_kind(link, own) for at, row in enumerate(self.links) for link in row[:at])
        if pairs:
            yield "  pairs: " + ", ".join(_some([f"{count} x {kind}" for kind, count in pairs.most_common()]))
        ill = [f"{gpu.index} {gpu.health}" for gpu in self.gpus if gpu.health is not Health.OK]
        if ill:
            yield f"  GPU {', '.join(_some(ill))}"
        ports = [nic.name + (" (down)" if nic.up is False else "") for nic in self.nics]
        if ports:
            yield f"  ports: {', '.join(_some(ports, 8))}"


def _kind(link: Link, own: str) -> str:
    kind = f"{own} x{link.nvlinks}" if link.nvlinks else str(link.path or "unknown")
    wrong = " (copies come out wrong)" if link.copies is False else ""
    return f"{kind}{' through a switch' if link.nvlinks and link.switched else ''}{wrong}"


def _some(names: Sequence[str], most: int = 4) -> list[str]:
    return [*names[:most], *([f"and {len(names) - most} more"] if len(names) > most else [])]
