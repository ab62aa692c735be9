"""The node's network ports, from sysfs alone: InfiniBand, RoCE, EFA and plain Ethernet. Blocking.

A port stands here once: an RDMA device together with its network interface; a bond for the ports that it bundles,
which are listed as virtual, as are virtual functions beside their card, bridges, tunnels and the like. The ends of
containers (veth, tap) come and go with them and are left out. A file that is missing or absurd costs one fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.core.topology.importers.ports import MAX_PORTS, PortDraft
from phalanx.core.topology.importers.reading import whole
from phalanx.core.topology.names import natural_key
from phalanx.core.topology.node import LinkLayer, Nic
from phalanx_agent.discovery.pci import PciPlace, place_at, read_line

_PORT_FILES = ("state", "phys_state", "rate", "link_layer")
_ETHER, _INFINIBAND = "1", "32"
_LINE = re.compile(r"^line \d+: ")


@dataclass(frozen=True, slots=True)
class FoundPorts:
    """``places[k]``: where ``nics[k]`` hangs; None off the PCI bus. ``notes``: what could not be read."""

    nics: tuple[Nic, ...] = ()
    places: tuple[PciPlace | None, ...] = ()
    notes: tuple[str, ...] = ()


def read_ports(sysfs: Path = Path("/sys")) -> FoundPorts:
    """Returns every port, RDMA devices first, each kind in the natural order of its names."""
    interfaces = {each.name: each for each in _interfaces(sysfs)}
    notes: list[str] = []
    found = [*_rdma_ports(sysfs, interfaces, notes)]
    taken = {nic.interface for nic, _ in found if nic.interface}
    standing = {slave for each in interfaces.values() for slave in each.slaves}
    standing |= {each.name for each in interfaces.values() if taken & set(each.slaves)}
    found += [
        (_plain(each, counted=each.name in standing), each.place)
        for each in interfaces.values()
        if each.name not in taken and not each.transient
    ]
    kept = found[:MAX_PORTS]
    if len(found) > MAX_PORTS:
        notes.append(f"{len(found)} network ports: only the first {MAX_PORTS} are listed")
    return FoundPorts(tuple(nic for nic, _ in kept), tuple(place for _, place in kept), tuple(notes))


# ---- network interfaces ----


@dataclass(frozen=True, slots=True)
class _Interface:
    """One entry of `/sys/class/net`. ``slaves``: what it bundles, for a bond."""

    name: str
    folder: Path
    place: PciPlace | None
    slaves: tuple[str, ...]

    @property
    def physical(self) -> bool:
        return (self.folder / "device").exists()

    @property
    def virtual_function(self) -> bool:
        return (self.folder / "device" / "physfn").exists()

    @property
    def transient(self) -> bool:
        """The loopback, and what exists as long as a container or a virtual machine does."""
        kind = read_line(self.folder / "uevent")
        named = "DEVTYPE=" in kind or (self.folder / "bridge").exists() or bool(self.slaves)
        return not self.physical and (not named or (self.folder / "tun_flags").exists())

    @property
    def up(self) -> bool | None:
        return {"up": True, "down": False, "lowerlayerdown": False}.get(read_line(self.folder / "operstate"))

    @property
    def port(self) -> int:
        """The number of the port on its card, from 1."""
        return (whole(read_line(self.folder / "dev_port")) or 0) + 1

    @property
    def rate_gbit_s(self) -> float | None:
        megabit_s = whole(read_line(self.folder / "speed"))
        return megabit_s / 1000 if megabit_s is not None and megabit_s > 0 else None


def _interfaces(sysfs: Path) -> Iterator[_Interface]:
    for folder in _listed(sysfs / "class" / "net"):
        if folder.is_dir():
            slaves = tuple(sorted(read_line(folder / "bonding" / "slaves").split(), key=natural_key))
            device = folder.with_name(slaves[0]) / "device" if slaves else folder / "device"
            yield _Interface(folder.name, folder, place_at(device) if device.exists() else None, slaves)


def _plain(interface: _Interface, *, counted: bool) -> Nic:
    """``counted``: another entry stands for it."""
    real = interface.physical or bool(interface.slaves)
    virtual = counted or interface.virtual_function or not real
    layer = {_ETHER: LinkLayer.ETHERNET, _INFINIBAND: LinkLayer.INFINIBAND}.get(read_line(interface.folder / "type"))
    # Whether a bridge is up says which containers run, not what the machine can do.
    up = interface.up if real else None
    return Nic(
        name=interface.name,
        pci=interface.place.address if interface.place else "",
        numa=_label(interface.place.numa if interface.place else None),
        layer=layer or LinkLayer.OTHER,
        rate_gbit_s=interface.rate_gbit_s if up else None,
        up=up,
        virtual=virtual,
        bond=interface.slaves,
    )


# ---- RDMA devices ----


def _rdma_ports(
    sysfs: Path, interfaces: dict[str, _Interface], notes: list[str]
) -> Iterator[tuple[Nic, PciPlace | None]]:
    for folder in _listed(sysfs / "class" / "infiniband"):
        ports = [path for path in _listed(folder / "ports") if whole(path.name) is not None]
        if not ports:
            notes.append(f"{folder.name} shows no port")
        for port in ports:
            yield _rdma_port(folder, int(port.name), interfaces, notes)


def _rdma_port(
    folder: Path, port: int, interfaces: dict[str, _Interface], notes: list[str]
) -> tuple[Nic, PciPlace | None]:
    directory = folder / "ports" / str(port)
    draft = PortDraft(device=folder.name, port=port, line=0)
    draft.facts = {name: read_line(directory / name) for name in _PORT_FILES}
    draft.facts["guid"] = read_line(folder / "node_guid")
    place = place_at(folder / "device")
    draft.numa = _label(place.numa if place else None)
    said: list[str] = []
    nic = draft.nic(said)
    notes += [_LINE.sub("", each) for each in said]
    interface = _interface_of(folder, port, interfaces)
    nic = replace(
        nic,
        pci=place.address if place else "",
        interface=interface.name if interface else "",
        bond=interface.slaves if interface else (),
        virtual=(folder / "device" / "physfn").exists(),
        layer=LinkLayer.EFA if _is_efa(folder) else nic.layer,
    )
    return nic, place


def _interface_of(folder: Path, port: int, interfaces: dict[str, _Interface]) -> _Interface | None:
    """Returns the port's network interface: a bond where the device's own interfaces are bundled."""
    own = [interfaces[path.name] for path in _listed(folder / "device" / "net") if path.name in interfaces]
    named = interfaces.get(read_line(folder / "ports" / str(port) / "gid_attrs" / "ndevs" / "0"))
    bond = next((each for each in interfaces.values() if set(each.slaves) & {mine.name for mine in own}), None)
    if bond is not None and "bond" in folder.name:
        return bond
    mine = [each for each in own if each.port == port] if len(own) > 1 else own
    return named or (mine[0] if mine else None)


def _is_efa(folder: Path) -> bool:
    driver = folder / "device" / "driver"
    return driver.exists() and driver.resolve().name == "efa"


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=lambda path: natural_key(path.name))
    except OSError:
        return []


def _label(numa: int | None) -> tuple[int, ...] | None:
    return None if numa is None else (numa,)
