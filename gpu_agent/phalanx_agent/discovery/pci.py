"""Where a PCI device hangs, from sysfs, and what lies between two of them. Blocking; it knows no kind of device.

A switch is two bridges to the kernel, one up and one down; a path is counted in switches, as `nvidia-smi topo -m` does:

    one switch                          PIX
    several switches below one port     PXB
    one host bridge                     PHB
    two host bridges of one NUMA node   NODE
    two NUMA nodes                      SYS
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.topology.importers.reading import whole
from phalanx.core.topology.node import NicLink
from phalanx.core.topology.node import Path as Crossing

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PciPlace:
    """``bridges``: from the root port down, the device itself left out. ``numa``: None where it is not told."""

    address: str
    root: str = ""
    bridges: tuple[str, ...] = ()
    numa: int | None = None


def place_of(sysfs: Path, address: str) -> PciPlace | None:
    """Returns where the device is; None where sysfs has no such device."""
    link = sysfs / "bus" / "pci" / "devices" / address
    if not address or not link.exists():
        return None
    return place_at(link)


def place_at(link: Path) -> PciPlace | None:
    """Returns where the PCI device is that a path of sysfs leads to, or into; None where there is none."""
    parts = link.resolve().parts
    above = [part for part in parts if _ADDRESS.fullmatch(part)]
    if not above:
        return None
    roots = [part for part in parts if _ROOT.fullmatch(part)]
    return PciPlace(
        address=above[-1],
        root=roots[-1] if roots else "",
        bridges=tuple(above[:-1]),
        numa=numa_of(_device_folder(link.resolve(), above[-1])),
    )


def _device_folder(path: Path, address: str) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.name == address)


def numa_of(device: Path) -> int | None:
    """Returns the NUMA node; None for -1, which is the kernel's word for not knowing."""
    number = whole(read_line(device / "numa_node"))
    return number if number is not None and number >= 0 else None


def read_line(path: Path) -> str:
    """Returns a file's text without its end; "" where it is missing, or where the driver has no answer."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def one_numa_node(sysfs: Path) -> bool:
    """Says whether the machine is known to have a single NUMA node, so that no path leads to another."""
    return read_line(sysfs / "devices" / "system" / "node" / "online") == "0"


def between(one: PciPlace | None, other: PciPlace | None, *, single_numa: bool = False) -> NicLink:
    """Returns the path and the switches on it; what is not known stays unknown."""
    if one is None or other is None or not one.root or not other.root:
        return NicLink()
    shared = 0
    for a, b in zip(one.bridges, other.bridges, strict=False):
        if a != b:
            break
        shared += 1
    below = [len(place.bridges) - shared for place in (one, other)]
    if one.root == other.root and shared:
        switches = 1 + sum(count // 2 for count in below)
        return NicLink(Crossing.PIX if switches == 1 else Crossing.PXB, switches)
    return NicLink(_far(one, other, single_numa=single_numa), sum(count // 2 for count in below))


def _far(one: PciPlace, other: PciPlace, *, single_numa: bool) -> Crossing | None:
    if one.root == other.root:
        return Crossing.PHB
    if single_numa:
        return Crossing.NODE
    if one.numa is None or other.numa is None:
        return None
    return Crossing.NODE if one.numa == other.numa else Crossing.SYS
