"""Tells what the devices of an NCCL topology file are: GPUs, network ports, or nothing that one can say. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from phalanx.core.topology.importers.nccl_tree import Element
from phalanx.core.topology.importers.reading import cpu_list, guid, pci_address, whole
from phalanx.core.topology.node import Gpu, LinkLayer, Nic

# PCI base classes and subclasses, as in "0x030200".
_CLASS = re.compile(r"0x([0-9a-fA-F]{2})([0-9a-fA-F]{2})")
_ACCELERATOR_VENDORS = frozenset({None, "0x10de", "0x1002"})
_AMAZON = "0x1d0f"
_SEPARATORS = str.maketrans("", "", ":.")
_LAST = 10**15
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) GT/s.*")
_RDMA = re.compile(r"(mlx|rdma|efa|bnxt|irdma|ib)")
_VIRTUAL = re.compile(r"(lo|veth|br-|br[0-9]|docker|virbr|vnet|tap|tun|cali|cni|flannel|vxlan|dummy|ovs|wg|podman)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU: its element where the file has one, and the elements that it lies in, the cpu first."""

    element: Element | None
    pci_element: Element | None
    places: tuple[Element, ...]
    pci: str
    uuid: str
    index: int
    line: int

    @property
    def compute(self) -> int | None:
        """Compute capability. AMD's files write the number of compute units there."""
        if self.element is None or self.element.get("gcn"):
            return None
        return whole(self.element.get("sm"))

    @property
    def gpudirect(self) -> bool | None:
        return _flag(self.element.get("gdr")) if self.element is not None else None

    @property
    def link_speed(self) -> str | None:
        """GT/s, as "16"."""
        stated = self.pci_element.get("link_speed") if self.pci_element is not None else None
        match = _SPEED.fullmatch(stated or "")
        return match[1].removesuffix(".0") if match else None

    def nvlink_elements(self) -> list[Element]:
        return self.element.named("nvlink", "xgmi") if self.element is not None else []


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """A network port: ``net`` where the file names it, ``device`` the PCI device where it has one."""

    net: Element | None
    device: Element | None
    places: tuple[Element, ...]
    line: int

    @property
    def on_pci(self) -> bool:
        return self.device is not None

    @property
    def gpudirect(self) -> bool | None:
        return _flag(self.net.get("gdr")) if self.net is not None else None


def cards_of(cpus: list[Element], notes: list[str]) -> list[Card]:
    """Returns the GPUs, in the order of their ``dev`` where the file has it, else of their PCI addresses."""
    found: list[tuple[Element | None, Element]] = []
    for cpu in cpus:
        for element in cpu.below():
            if element.tag == "gpu":
                found.append((element, element.parent or cpu))
            elif _is_gpu_by_class(element):
                found.append((None, element))
    found.sort(key=_cuda_order)
    devs = [dev for gpu, _ in found if gpu is not None and (dev := whole(gpu.get("dev"))) is not None]
    indices = devs if len(set(devs)) == len(found) else list(range(len(found)))
    seen: Counter[str] = Counter()
    return [_card(gpu, holder, index, seen, notes) for (gpu, holder), index in zip(found, indices, strict=True)]


def _cuda_order(found: tuple[Element | None, Element]) -> tuple[int, int]:
    gpu, holder = found
    dev = whole(gpu.get("dev")) if gpu is not None else None
    address = pci_address(holder.get("busid") or "").translate(_SEPARATORS)
    return (_LAST if dev is None else dev, int(address, 16) if address else _LAST)


def _card(gpu: Element | None, holder: Element, index: int, seen: Counter[str], notes: list[str]) -> Card:
    address = pci_address(holder.get("busid") or "")
    seen[address] += 1
    own = bool(address) and seen[address] == 1
    uuid = f"pci-{address}" if own else f"pci-{address}#{seen[address]}"
    if not own:
        notes.append(f"line {holder.line}: a GPU without a PCI address of its own: called {uuid}")
    return Card(
        element=gpu,
        pci_element=holder if holder.tag == "pci" else None,
        places=_places(holder),
        pci=address if own else "",
        uuid=uuid,
        index=index,
        line=holder.line,
    )


def _places(holder: Element) -> tuple[Element, ...]:
    """Returns the cpu and the bridges that a device lies in. The device's own PCI function is not one of them."""
    above = [element for element in holder.above() if element.tag in ("cpu", "pci")]
    return tuple(reversed(above[1:] if holder.tag == "pci" else above))


def ports_of(cpus: list[Element]) -> list[PortFacts]:
    """Returns the network ports in the order of the file."""
    ports: list[PortFacts] = []
    for cpu in cpus:
        for element in cpu.below():
            if element.tag == "net":
                ports.append(_port(element))
            elif element.tag == "pci" and not element.children and _pci_class(element)[:1] == ("02",):
                ports.append(PortFacts(net=None, device=element, places=_places(element), line=element.line))
    return ports


def _port(net: Element) -> PortFacts:
    holder = next(element for element in net.above() if element.tag in ("pci", "cpu"))
    device = holder if holder.tag == "pci" else None
    return PortFacts(net=net, device=device, places=_places(holder), line=net.line)


def gpu_of(card: Card, nvlinks_active: int | None) -> Gpu:
    cpu = card.places[0]
    return Gpu(
        uuid=card.uuid,
        index=card.index,
        model=(card.element.get("gcn") or "") if card.element is not None else "",
        pci=card.pci,
        numa=_numa(cpu),
        cpus=cpu_list(cpu.get("affinity") or ""),
        compute=card.compute,
        nvlinks_active=nvlinks_active,
    )


def nics_of(ports: list[PortFacts]) -> tuple[Nic, ...]:
    """Returns the ports as the model has them. A second port of one device is called ``mlx5_0:2``, as NCCL does."""
    nics: list[Nic] = []
    taken: set[str] = set()
    for at, port in enumerate(ports):
        nic = _nic(port)
        number = port.net.get("port") if port.net is not None else None
        names = (nic.name, f"{nic.name}:{number or at}", f"{nic.name}#{at}")
        name = next(name for name in names if name not in taken)
        taken.add(name)
        nics.append(replace(nic, name=name))
    return tuple(nics)


def _nic(port: PortFacts) -> Nic:
    address = pci_address((port.device.get("busid") or "") if port.device is not None else "")
    if port.net is None:
        return Nic(name=address or "nic", pci=address, numa=_numa(port.places[0]), layer=_layer(port), virtual=False)
    name = port.net.get("name") or address or "nic"
    rail = next((port.net.get(key) for key in ("rail", "railId", "railid", "rail_id") if port.net.get(key)), None)
    megabit_s = whole(port.net.get("speed"))
    return Nic(
        name=name,
        pci=address,
        numa=_numa(port.places[0]),
        layer=_layer(port),
        rate_gbit_s=megabit_s / 1000 if megabit_s and megabit_s > 0 else None,
        virtual=bool(_VIRTUAL.match(name)) and not address,
        rail=whole(rail),
        guid=guid(port.net.get("guid") or ""),
    )


def _layer(port: PortFacts) -> LinkLayer | None:
    if port.device is None:
        return None if port.net is None or _RDMA.match(port.net.get("name") or "") else LinkLayer.ETHERNET
    if port.device.get("vendor") == _AMAZON and (port.device.get("device") or "").lower().startswith("0xefa"):
        return LinkLayer.EFA
    kind = _pci_class(port.device)
    if kind == ("02", "07"):
        return LinkLayer.INFINIBAND
    return LinkLayer.ETHERNET if kind == ("02", "00") else None


def unclassified_note(cpus: list[Element]) -> str:
    """Says how many devices the file does not say anything of; "" where there are none."""
    counts: Counter[str] = Counter()
    for cpu in cpus:
        counts[cpu.get("numaid") or "?"] += _unclassified(cpu)
    counts = +counts
    if not counts:
        return ""
    places = ", ".join(f"{count} on NUMA {numa}" for numa, count in counts.items())
    return f"{sum(counts.values())} devices have no PCI class ({places}): nothing says which of them are GPUs"


def _unclassified(cpu: Element) -> int:
    return sum(1 for item in cpu.below() if item.tag == "pci" and not item.children and not _pci_class(item))


def _is_gpu_by_class(element: Element) -> bool:
    if element.tag != "pci" or element.children:
        return False
    kind, vendor = _pci_class(element), (element.get("vendor") or "").lower() or None
    if kind == ("03", "02"):
        return True
    return kind in (("03", "00"), ("12", "00")) and vendor in _ACCELERATOR_VENDORS


def _pci_class(element: Element) -> tuple[str, ...]:
    match = _CLASS.match(element.get("class") or "")
    return (match[1].lower(), match[2].lower()) if match else ()


def _numa(cpu: Element) -> tuple[int, ...] | None:
    numa = whole(cpu.get("numaid"))
    return (numa,) if numa is not None and numa >= 0 else None


def _flag(text: str | None) -> bool | None:
    return {"0": False, "1": True}.get(text or "")
