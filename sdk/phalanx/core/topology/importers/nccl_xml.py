"""Reads NCCL's topology XML, as ``NCCL_TOPO_DUMP_FILE`` writes it and clouds give it for each size of machine. Pure.

The file is a tree: a system of cpus (one for each NUMA node), PCI bridges below them, devices at the ends. What two
devices have in common tells their path: one bridge PIX, several PXB, the cpu PHB, nothing but the system SYS. NCCL
does not tell NODE from PHB. Files that clouds give name no GPUs: there the PCI class tells what a device is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.nccl_devices import (
    Card,
    PortFacts,
    cards_of,
    gpu_of,
    nics_of,
    ports_of,
    unclassified_note,
)
from phalanx.core.topology.importers.nccl_tree import Element, read_tree
from phalanx.core.topology.importers.reading import pci_address, whole
from phalanx.core.topology.node import Link, NicLink, NodeTopology, Path

SOURCE = "nccl_xml"
MAX_GPUS = 128
MAX_NICS = 256
_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}


def read_nccl_xml(text: str) -> NodeTopology:
    """Returns the node that an NCCL topology file describes. Raises UnreadableTopologyError.

    The file holds no UUIDs: GPUs get ``uuid="pci-0000:3b:00.0"`` and so on until `merge.py` adds the real ones. NVLink
    counts stay unknown where the file names no GPUs, or where the links end at the GPU itself, as some machines say.
    """
    system = read_tree(text)
    notes: list[str] = []
    cpus = _cpus_of_one_host(system, notes)
    cards = cards_of(cpus, notes)
    ports = ports_of(cpus)
    _refuse_absurd(cards, ports)
    nvlinks = _NvLinks.of(cards, notes)
    unclassified = unclassified_note(cpus)
    return NodeTopology(
        gpus=tuple(gpu_of(card, nvlinks.active(at)) for at, card in enumerate(cards)),
        links=tuple(tuple(_link(cards, nvlinks, i, j) for j in range(len(cards))) for i in range(len(cards))),
        nics=nics_of(ports),
        nic_links=tuple(tuple(_nic_link(card, port) for port in ports) for card in cards),
        pcie_gen=_pcie_generation(cards),
        sources=tuple((fact, SOURCE) for fact in ("gpus", "links", "nics", "numa", "cpus")),
        notes=(*notes, *([unclassified] if unclassified else [])),
    )


def _cpus_of_one_host(system: Element, notes: list[str]) -> list[Element]:
    """Returns the cpus, those of the first host only: NCCL can merge the files of several."""
    cpus = system.named("cpu")
    if not cpus:
        raise UnreadableTopologyError("<system> holds no <cpu>: expected one for each NUMA node", line=system.line)
    hosts = {cpu.get("host_hash"): None for cpu in cpus}
    if len(hosts) < 2:
        return cpus
    first = next(iter(hosts))
    notes.append(f"the file merges {len(hosts)} hosts: only the first is read")
    return [cpu for cpu in cpus if cpu.get("host_hash") == first]


def _refuse_absurd(cards: list[Card], ports: list[PortFacts]) -> None:
    if len(cards) > MAX_GPUS:
        raise UnreadableTopologyError(f"{len(cards)} GPUs: expected at most {MAX_GPUS}", line=cards[MAX_GPUS].line)
    if len(ports) > MAX_NICS:
        raise UnreadableTopologyError(f"{len(ports)} NICs: expected at most {MAX_NICS}", line=ports[MAX_NICS].line)


def _link(cards: list[Card], nvlinks: _NvLinks, i: int, j: int) -> Link:
    if i == j:
        return Link()
    path, _ = _path(cards[i].places, cards[j].places)
    count = nvlinks.between(i, j)
    return Link(count, path, nvlinks.switched(i, j) if count else None)


def _nic_link(card: Card, port: PortFacts) -> NicLink:
    path, bridges = _path(card.places, port.places)
    claims = (card.gpudirect, port.gpudirect)
    gpudirect = False if False in claims else True if claims == (True, True) else None
    return NicLink(path, bridges if port.on_pci else None, gpudirect)


def _path(one: tuple[Element, ...], other: tuple[Element, ...]) -> tuple[Path, int]:
    """Returns the path and the PCI bridges on it. Places are the elements above a device, the cpu first."""
    shared = 0
    for a, b in zip(one, other, strict=False):
        if a is not b:
            break
        shared += 1
    if shared == 0:
        return Path.SYS, len(one) + len(other) - 2
    bridges = len(one) + len(other) - 2 * shared
    if shared == 1:
        return Path.PHB, bridges
    return (Path.PIX if bridges == 0 else Path.PXB), bridges + 1


def _pcie_generation(cards: list[Card]) -> int | None:
    """Returns the least generation among the GPUs; that of their chip where the file leaves the speed out."""
    stated = [_GENERATIONS[speed] for card in cards if (speed := card.link_speed) in _GENERATIONS]
    if stated:
        return min(stated)
    chips = [3 if card.compute < 80 else 4 if card.compute < 90 else 5 for card in cards if card.compute is not None]
    return min(chips, default=None)


@dataclass(frozen=True, slots=True)
class _NvLinks:
    """How many NVLinks (or xGMI links) each GPU has to each other one, and to each switch."""

    peers: dict[int, Counter[int]]
    switches: dict[int, Counter[str]]
    astray: Counter[int]
    """Links that end at the GPU itself, or at what the file does not name."""
    named: frozenset[int]
    """GPUs whose links the file would show."""

    @classmethod
    def of(cls, cards: list[Card], notes: list[str]) -> _NvLinks:
        at_address = {card.pci: at for at, card in enumerate(cards) if card.pci}
        found = cls(defaultdict(Counter), defaultdict(Counter), Counter(), _with_element(cards))
        for at, card in enumerate(cards):
            for link in card.nvlink_elements():
                found._add(at, link, at_address)
        if found.astray:
            lost = ", ".join(str(cards[at].index) for at in sorted(found.astray))
            notes.append(f"NVLinks of GPU {lost} lead to no other GPU and no switch in the file: not counted")
        return found

    def _add(self, at: int, link: Element, at_address: dict[str, int]) -> None:
        count = min(max(whole(link.get("count")) or 0, 0), 1024)
        target = link.get("target") or ""
        peer = at_address.get(pci_address(target))
        if peer is not None and peer != at:
            self.peers[at][peer] += count
        elif peer is None and (link.get("tclass") or "").lower().startswith("0x0680"):
            self.switches[at][target.lower()] += count
        elif count:
            self.astray[at] += count

    def active(self, at: int) -> int | None:
        if at not in self.named:
            return None
        return sum(self.peers[at].values()) + sum(self.switches[at].values()) + self.astray[at]

    def between(self, i: int, j: int) -> int | None:
        direct = max(self.peers[i][j], self.peers[j][i])
        count = direct + self._through_switches(i, j)
        if count:
            return count
        return None if {i, j} - self.named or self.astray[i] or self.astray[j] else 0

    def switched(self, i: int, j: int) -> bool:
        return self._through_switches(i, j) > 0

    def _through_switches(self, i: int, j: int) -> int:
        mine, theirs = self.switches[i], self.switches[j]
        shared = mine.keys() & theirs.keys()
        return min(sum(mine[switch] for switch in shared), sum(theirs[switch] for switch in shared))


def _with_element(cards: list[Card]) -> frozenset[int]:
    return frozenset(at for at, card in enumerate(cards) if card.element is not None)
