"""Writes a node as an NCCL topology file: the other direction of `importers/nccl_xml.py`. Pure.

The file is a tree, so paths become places in it: devices one switch apart lie below the same bridge, several switches
apart below bridges of the same bridge, and what shares no more than a host bridge or a NUMA node lies below the same
cpu. NCCL does not tell NODE from PHB, and neither does the file. What is unknown counts as far, or is left out: NCCL
fills it in from the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from phalanx.core.topology.affinity import cpus_in
from phalanx.core.topology.figures import known_link, pcie_gen
from phalanx.core.topology.node import Gpu, LinkLayer, Nic, NodeTopology, Path

_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
_GPU_CLASS, _BRIDGE_CLASS, _SWITCH_CLASS = "0x030200", "0x060400", "0x068000"
_NIC_CLASSES = {LinkLayer.INFINIBAND: "0x020700", LinkLayer.EFA: "0x020000"}
_ETHERNET_CLASS = "0x020000"
_AMAZON = {"vendor": "0x1d0f", "device": "0xefa1"}
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NOT_XML = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_GUID = re.compile(r"[0-9a-f]{1,16}")
_SWITCH = "fffe:00:00.0"
_WORD_BITS = 32


def nccl_xml_text(node: NodeTopology) -> str:
    """Returns the file. A device without a PCI address gets one that no other has."""
    return _Writer(node).text()


@dataclass(frozen=True, slots=True)
class _Levels:
    """For each device (GPUs, then ports) the group that it is in: below one switch, one host bridge, one cpu."""

    switch: tuple[int, ...]
    bridge: tuple[int, ...]
    cpu: tuple[int, ...]


class _Writer:
    def __init__(self, node: NodeTopology) -> None:
        self._node = node
        self._count = len(node.gpus) + len(node.nics)
        self._addresses = self._all_addresses()
        self._speed = f"{_SPEEDS[pcie_gen(node)]} GT/s PCIe"
        self._levels = _Levels(*(self._groups(limit) for limit in (Path.PIX, Path.PXB, Path.NODE)))
        self._bridges = 0

    def text(self) -> str:
        cpus = [self._cpu(group) for group in dict.fromkeys(self._levels.cpu) or (-1,)]
        return "\n".join(('<system version="1">', *(line for cpu in cpus for line in cpu), "</system>", ""))

    # ---- the tree ----

    def _groups(self, limit: Path) -> tuple[int, ...]:
        """Returns a number for each device: the same for those that lie within the limit of each other."""
        group = list(range(self._count))
        for one in range(self._count):
            for other in range(one):
                path = self._path(one, other)
                if path is not None and path.distance <= limit.distance and group[one] != group[other]:
                    old, new = sorted((group[one], group[other]), reverse=True)
                    group = [new if each == old else each for each in group]
        return tuple(group)

    def _path(self, one: int, other: int) -> Path | None:
        gpus = len(self._node.gpus)
        if other > one:
            one, other = other, one
        if one < gpus:
            return known_link(self._node, one, other).path
        if other < gpus:
            row = self._node.nic_links[other] if other < len(self._node.nic_links) else ()
            return row[one - gpus].path if one - gpus < len(row) else None
        return None

    def _cpu(self, group: int) -> Iterable[str]:
        members = [at for at in range(self._count) if self._levels.cpu[at] == group]
        mask = self._mask(members)
        yield f"  <cpu{_words({'numaid': self._numa(members), **({'affinity': mask} if mask else {})})}>"
        for bridge in dict.fromkeys(self._levels.bridge[at] for at in members):
            yield from self._below_bridge([at for at in members if self._levels.bridge[at] == bridge])
        yield "  </cpu>"

    def _below_bridge(self, members: list[int]) -> Iterable[str]:
        switches = dict.fromkeys(self._levels.switch[at] for at in members)
        groups = [[at for at in members if self._levels.switch[at] == switch] for switch in switches]
        if len(groups) == 1:
            yield from self._below_switch(groups[0], "    ")
            return
        yield f"    <pci{self._bridge()}>"
        for group in groups:
            yield from self._below_switch(group, "      ", always=True)
        yield "    </pci>"

    def _below_switch(self, members: list[int], indent: str, *, always: bool = False) -> Iterable[str]:
        if len(members) == 1 and not always:
            yield from self._device(members[0], indent)
            return
        yield f"{indent}<pci{self._bridge()}>"
        for at in members:
            yield from self._device(at, indent + "  ")
        yield f"{indent}</pci>"

    def _bridge(self) -> str:
        self._bridges += 1
        address = _made_up("ffff", self._bridges)
        return _words({"busid": address, "class": _BRIDGE_CLASS, "link_speed": self._speed, "link_width": "16"})

    # ---- devices ----

    def _device(self, at: int, indent: str) -> Iterable[str]:
        gpus = len(self._node.gpus)
        yield from self._gpu(at, indent) if at < gpus else self._nic(at, self._node.nics[at - gpus], indent)

    def _gpu(self, at: int, indent: str) -> Iterable[str]:
        gpu = self._node.gpus[at]
        place = {"busid": self._addresses[at], "class": _GPU_CLASS, "link_speed": self._speed, "link_width": "16"}
        compute = {"sm": str(gpu.compute)} if gpu.compute is not None else {}
        yield f"{indent}<pci{_words(place)}>"
        yield f"{indent}  <gpu{_words({'dev': str(gpu.index), **compute, 'rank': str(at), 'gdr': '1'})}>"
        for target, count, kind in self._nvlinks(at):
            yield f"{indent}    <nvlink{_words({'target': target, 'count': str(count), 'tclass': kind})}/>"
        yield f"{indent}  </gpu>"
        yield f"{indent}</pci>"

    def _nvlinks(self, at: int) -> Iterable[tuple[str, int, str]]:
        links = {other: known_link(self._node, at, other) for other in range(len(self._node.gpus)) if other != at}
        switched = max((link.nvlinks or 0 for link in links.values() if link.switched), default=0)
        if switched:
            yield _SWITCH, switched, _SWITCH_CLASS
        for other, link in links.items():
            if link.nvlinks and not link.switched:
                yield self._addresses[other], link.nvlinks, _GPU_CLASS

    def _nic(self, at: int, nic: Nic, indent: str) -> Iterable[str]:
        amazon = _AMAZON if nic.layer is LinkLayer.EFA else {}
        kind = _NIC_CLASSES.get(nic.layer, _ETHERNET_CLASS) if nic.layer else _ETHERNET_CLASS
        yield f"{indent}<pci{_words({'busid': self._addresses[at], 'class': kind, **amazon})}>"
        yield f"{indent}  <nic>"
        yield f"{indent}    <net{_words(self._net(at, nic))}/>"
        yield f"{indent}  </nic>"
        yield f"{indent}</pci>"

    def _net(self, at: int, nic: Nic) -> dict[str, str]:
        name, _, port = nic.name.partition(":") if re.fullmatch(r"\w+:[0-9]+", nic.name) else (nic.name, "", "")
        rate = {} if nic.rate_gbit_s is None else {"speed": str(round(nic.rate_gbit_s * 1000))}
        rail = {} if nic.rail is None else {"railId": str(nic.rail)}
        reach = [row[at - len(self._node.gpus)].gpudirect for row in self._node.nic_links]
        direct = {"gdr": "0" if False in reach else "1"} if reach and None not in reach else {}
        guid = {"guid": f"0x{nic.guid}"} if _GUID.fullmatch(nic.guid) else {}
        return {
            "name": _NOT_XML.sub("_", name),
            "dev": str(at - len(self._node.gpus)),
            **rate,
            "port": port or "1",
            **guid,
            **rail,
            **direct,
        }

    # ---- facts of groups ----

    def _numa(self, members: list[int]) -> str:
        places = [self._parts()[at].numa for at in members]
        known = [min(numa) for numa in places if numa]
        return str(known[0]) if known else "-1"

    def _mask(self, members: list[int]) -> str:
        gpus = [self._node.gpus[at] for at in members if at < len(self._node.gpus)]
        cpus = {cpu for gpu in gpus for cpu in (cpus_in(gpu.cpus) or () if gpu.cpus else ())}
        if not cpus:
            return ""
        words = max(cpus) // _WORD_BITS + 1
        bits = sum(1 << cpu for cpu in cpus)
        return ",".join(f"{bits >> (_WORD_BITS * at) & 0xFFFFFFFF:08x}" for at in reversed(range(words)))

    def _parts(self) -> tuple[Gpu | Nic, ...]:
        return (*self._node.gpus, *self._node.nics)

    def _all_addresses(self) -> list[str]:
        found: list[str] = []
        for at, part in enumerate(self._parts()):
            taken = part.pci in found or not _PCI.fullmatch(part.pci)
            found.append(_made_up("fffd", at) if taken else part.pci)
        return found


def _made_up(domain: str, number: int) -> str:
    """Returns an address that no machine has: the bus counts first, then the device."""
    return f"{domain}:{number & 0xFF:02x}:{number >> 8:02x}.0"


def _words(facts: dict[str, str]) -> str:
    return "".join(f" {name}={quoteattr(value)}" for name, value in facts.items())
