"""What connects a node's GPUs, through NVML and sysfs. Blocking; every fact is asked for by itself.

A GPU that does not answer is lost and the others are described all the same; a fact that a driver does not tell is
unknown, never 0. NVLinks whose far end is a switch join all GPUs that have such links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx.core.topology.node import Gpu, Health, Link, NodeTopology
from phalanx.core.topology.node import Path as Crossing
from phalanx_agent.discovery.answers import ask, text

T = TypeVar("T")

_MOST_LINKS = int(pynvml.NVML_NVLINK_MAX_LINKS)
_CROSSINGS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: Crossing.PIX,
    pynvml.NVML_TOPOLOGY_SINGLE: Crossing.PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: Crossing.PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: Crossing.PHB,
    pynvml.NVML_TOPOLOGY_NODE: Crossing.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: Crossing.SYS,
}
_NOT_LOOKED_AT = "network ports were not looked at"


@dataclass(frozen=True, slots=True)
class _Nvlinks:
    """One GPU's. ``to``: links by the PCI address of a peer; ``switched``: those that end at a switch."""

    active: int
    total: int
    switched: int
    to: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Found:
    handle: Any
    gpu: Gpu
    nvlinks: _Nvlinks | None


def read_topology(gpus: Sequence[GpuInfo], *, sysfs: Path = Path("/sys")) -> NodeTopology:
    """Returns the node as NVML and sysfs describe it, with ``gpus`` in their order."""
    found = [_look(info, sysfs) for info in gpus]
    gens = [gen for each in found if (gen := _of(each.handle, pynvml.nvmlDeviceGetMaxPcieLinkGeneration)) is not None]
    return NodeTopology(
        gpus=tuple(each.gpu for each in found),
        links=tuple(tuple(_link(one, other) for other in found) for one in found),
        pcie_gen=min(gens, default=None),
        driver=text(ask(pynvml.nvmlSystemGetDriverVersion, "")),
        sources=(("links", "nvml"), ("numa", "sysfs")),
        notes=(_NOT_LOOKED_AT,),
    )


def _look(info: GpuInfo, sysfs: Path) -> _Found:
    handle = None if info.state is GpuState.DOWN else ask(lambda: pynvml.nvmlDeviceGetHandleByUUID(info.uuid), None)
    if handle is None:
        reason = info.reason or "it does not answer"
        return _Found(None, Gpu(uuid=info.uuid, index=info.index, health=Health.LOST, reason=reason), None)
    pci = _address(_of(handle, pynvml.nvmlDeviceGetPciInfo))
    capability = _of(handle, pynvml.nvmlDeviceGetCudaComputeCapability)
    nvlinks = _nvlinks(handle)
    mig = _of(handle, pynvml.nvmlDeviceGetMigMode)
    gpu = Gpu(
        uuid=info.uuid,
        index=info.index,
        model=info.model,
        pci=pci,
        numa=_numa(sysfs, pci),
        cpus=_read(sysfs, pci, "local_cpulist") or None,
        memory_bytes=info.memory_bytes or None,
        compute=None if capability is None else capability[0] * 10 + capability[1],
        mig_enabled=None if mig is None else bool(mig[0]),
        nvlinks_active=None if nvlinks is None else nvlinks.active,
        nvlinks_total=None if nvlinks is None else nvlinks.total,
        module_id=_of(handle, lambda device: int(pynvml.nvmlDeviceGetModuleId(device, pynvml.c_uint()))),
    )
    return _Found(handle, gpu, nvlinks)


def _nvlinks(handle: Any) -> _Nvlinks | None:
    """Asks link after link until the device has no further one; None where the driver does not say."""
    try:
        pynvml.nvmlDeviceGetNvLinkState(handle, 0)
    except pynvml.NVMLError_NotSupported:  # pyright: ignore[reportAttributeAccessIssue]  made when imported
        return _Nvlinks(0, 0, 0, {})
    except pynvml.NVMLError:
        return None
    active, switched, to = 0, 0, dict[str, int]()
    total = 0
    while total < _MOST_LINKS:
        state = ask(lambda link=total: pynvml.nvmlDeviceGetNvLinkState(handle, link), None)
        if state is None:
            break
        if state:
            active += 1
            kind = ask(lambda link=total: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), None)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched += 1
            else:
                peer = _address(ask(lambda link=total: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link), None))
                to[peer] = to.get(peer, 0) + 1
        total += 1
    return _Nvlinks(active, total, switched, to)


def _link(one: _Found, other: _Found) -> Link:
    if one is other or one.handle is None or other.handle is None:
        return Link()
    level = ask(lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(one.handle, other.handle), None)
    nvlinks, switched = _between(one, other)
    return Link(nvlinks=nvlinks, path=None if level is None else _CROSSINGS.get(level), switched=switched)


def _between(one: _Found, other: _Found) -> tuple[int | None, bool | None]:
    """Returns how many NVLinks join two GPUs, and whether through a switch."""
    if one.nvlinks is None or other.nvlinks is None:
        return None, None
    direct = one.nvlinks.to.get(other.gpu.pci, 0)
    through = min(one.nvlinks.switched, other.nvlinks.switched)
    if direct or not through:
        return direct, False if direct else None
    return through, True


def _numa(sysfs: Path, pci: str) -> tuple[int, ...] | None:
    node = _read(sysfs, pci, "numa_node")
    return (int(node),) if node.isdecimal() else None


def _read(sysfs: Path, pci: str, name: str) -> str:
    try:
        return (sysfs / "bus" / "pci" / "devices" / pci / name).read_text().strip() if pci else ""
    except OSError:
        return ""


def _address(pci: Any) -> str:
    """Writes ``00000000:3B:00.0`` as the kernel does: ``0000:3b:00.0``."""
    if pci is None:
        return ""
    domain, _, rest = text(pci.busId).lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""


def _of(handle: Any, question: Callable[[Any], T]) -> T | None:
    return None if handle is None else ask(lambda: question(handle), None)
