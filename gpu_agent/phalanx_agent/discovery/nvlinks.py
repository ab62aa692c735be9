"""A GPU's NVLinks, through NVML: how many work, where they end, how fast one is. Blocking.

NVLinks whose far end is a switch join all GPUs that have such links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pynvml

from phalanx.core.topology.node import Link
from phalanx.core.topology.node import Path as Crossing
from phalanx_agent.discovery.answers import ask, field_value, kernel_address

_MOST_LINKS = int(pynvml.NVML_NVLINK_MAX_LINKS)
_MBYTE_PER_GBYTE = 1000


@dataclass(frozen=True, slots=True)
class NvLinks:
    """One GPU's. ``to``: links by the PCI address of a peer; ``switched``: those that end at a switch."""

    active: int = 0
    total: int = 0
    switched: int = 0
    to: tuple[tuple[str, int], ...] = ()
    gbyte_s: float | None = None
    """Of one link, one way, as the driver tells it."""

    def direct(self, pci: str) -> int:
        """Returns how many links end at the GPU of that address; none at one whose address is not known."""
        return sum(count for peer, count in self.to if pci and peer == pci)


def read_nvlinks(handle: Any) -> NvLinks | None:
    """Asks link after link until the device has no further one; None where the driver does not say."""
    try:
        pynvml.nvmlDeviceGetNvLinkState(handle, 0)
    except pynvml.NVMLError_NotSupported:  # pyright: ignore[reportAttributeAccessIssue]  made when imported
        return NvLinks()
    except pynvml.NVMLError:
        return None
    active, switched, to = list[int](), 0, dict[str, int]()
    total = 0
    while total < _MOST_LINKS:
        state = ask(lambda link=total: pynvml.nvmlDeviceGetNvLinkState(handle, link), None)
        if state is None:
            break
        if state:
            active.append(total)
            kind = ask(lambda link=total: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), None)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched += 1
            else:
                peer = kernel_address(
                    ask(lambda link=total: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link), None)
                )
                to[peer] = to.get(peer, 0) + 1
        total += 1
    speed = _gbyte_s(handle, active[0]) if active else None
    return NvLinks(len(active), total, switched, tuple(sorted(to.items())), speed)


def _gbyte_s(handle: Any, link: int) -> float | None:
    """Newer drivers tell each link's speed, older ones that which all links have; in MB/s, one way."""
    told = field_value(handle, pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, link) or field_value(
        handle, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
    )
    return told / _MBYTE_PER_GBYTE if told else None


def link_between(one: NvLinks | None, other: NvLinks | None, other_pci: str, path: Crossing | None) -> Link:
    """Returns how many NVLinks join two GPUs, whether through a switch, and the PCIe path beside them."""
    if one is None or other is None:
        return Link(path=path)
    direct = one.direct(other_pci)
    through = min(one.switched, other.switched)
    if direct or not through:
        return Link(nvlinks=direct, path=path, switched=False if direct else None)
    return Link(nvlinks=through, path=path, switched=True)
