"""The node's topology, put together: GPUs and what connects them through NVML, where they hang and the network ports
through sysfs. Blocking; every fact is asked for by itself.

A GPU that does not answer is lost and the others are described all the same; a fact that a driver does not tell is
unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx.core.topology.node import Gpu, Health, Link, NodeTopology
from phalanx.core.topology.node import Path as Crossing
from phalanx_agent.discovery.answers import ask, kernel_address, of, text
from phalanx_agent.discovery.clique import read_clique
from phalanx_agent.discovery.mig import mig_enabled, mig_parts
from phalanx_agent.discovery.nvlinks import NvLinks, link_between, read_nvlinks
from phalanx_agent.discovery.pci import PciPlace, between, one_numa_node, place_of, read_line
from phalanx_agent.discovery.ports import FoundPorts, read_ports

_CROSSINGS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: Crossing.PIX,
    pynvml.NVML_TOPOLOGY_SINGLE: Crossing.PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: Crossing.PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: Crossing.PHB,
    pynvml.NVML_TOPOLOGY_NODE: Crossing.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: Crossing.SYS,
}
SOURCES = (
    ("links", "nvml"),
    ("mig", "nvml"),
    ("nvl_domain", "nvml"),
    ("health", "nvml"),
    ("numa", "sysfs"),
    ("nics", "sysfs"),
    ("nic_links", "sysfs"),
)


@dataclass(frozen=True, slots=True)
class _Found:
    handle: Any
    gpu: Gpu
    nvlinks: NvLinks | None = None
    place: PciPlace | None = None


def read_topology(gpus: Sequence[GpuInfo], *, sysfs: Path = Path("/sys")) -> NodeTopology:
    """Returns the node as NVML and sysfs describe it, with ``gpus`` in their order."""
    found = [_look(info, sysfs) for info in gpus]
    gens = [gen for each in found if (gen := of(each.handle, pynvml.nvmlDeviceGetMaxPcieLinkGeneration)) is not None]
    clique = read_clique([each.handle for each in found])
    ports = read_ports(sysfs)
    split = [each.gpu for each in found if each.gpu.mig]
    return NodeTopology(
        gpus=tuple(each.gpu for each in found),
        links=tuple(tuple(_link(one, other) for other in found) for one in found),
        nics=ports.nics,
        nic_links=_nic_links(found, ports, single_numa=one_numa_node(sysfs)),
        nvl_domain=clique.domain,
        pcie_gen=min(gens, default=None),
        driver=text(ask(pynvml.nvmlSystemGetDriverVersion, "")),
        sources=SOURCES,
        notes=(*ports.notes, *([clique.note] if clique.note else []), *map(_split_note, split)),
    )


def _look(info: GpuInfo, sysfs: Path) -> _Found:
    handle = None if info.state is GpuState.DOWN else ask(lambda: pynvml.nvmlDeviceGetHandleByUUID(info.uuid), None)
    if handle is None:
        reason = info.reason or "it does not answer"
        return _Found(None, Gpu(uuid=info.uuid, index=info.index, health=Health.LOST, reason=reason))
    pci = kernel_address(of(handle, pynvml.nvmlDeviceGetPciInfo))
    place = place_of(sysfs, pci)
    capability = of(handle, pynvml.nvmlDeviceGetCudaComputeCapability)
    nvlinks = read_nvlinks(handle)
    gpu = Gpu(
        uuid=info.uuid,
        index=info.index,
        model=info.model,
        pci=pci,
        numa=None if place is None or place.numa is None else (place.numa,),
        cpus=(read_line(sysfs / "bus" / "pci" / "devices" / pci / "local_cpulist") or None) if place else None,
        memory_bytes=info.memory_bytes or None,
        compute=None if capability is None else capability[0] * 10 + capability[1],
        mig_enabled=mig_enabled(handle),
        mig=mig_parts(handle),
        nvlinks_active=None if nvlinks is None else nvlinks.active,
        nvlinks_total=None if nvlinks is None else nvlinks.total,
        nvlink_gbyte_s=None if nvlinks is None else nvlinks.gbyte_s,
        module_id=of(handle, lambda device: int(pynvml.nvmlDeviceGetModuleId(device, pynvml.c_uint()))),
    )
    return _Found(handle, gpu, nvlinks, place)


def _link(one: _Found, other: _Found) -> Link:
    if one is other or one.handle is None or other.handle is None:
        return Link()
    level = ask(lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(one.handle, other.handle), None)
    path = None if level is None else _CROSSINGS.get(level)
    return link_between(one.nvlinks, other.nvlinks, other.gpu.pci, path)


def _nic_links(found: Sequence[_Found], ports: FoundPorts, *, single_numa: bool) -> tuple[tuple[Any, ...], ...]:
    if not ports.nics:
        return ()
    return tuple(tuple(between(each.place, place, single_numa=single_numa) for place in ports.places) for each in found)


def _split_note(gpu: Gpu) -> str:
    return f"GPU {gpu.index} is split into {len(gpu.mig)} parts (MIG): it is not leased as a whole"
