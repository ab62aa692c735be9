"""Reads what `lspci -nn` prints: which PCI devices are GPUs, NVSwitches and network ports. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.reading import pci_address
from phalanx.core.topology.importers.text import plain_lines
from phalanx.core.topology.node import LinkLayer, Nic

MAX_DEVICES = 8192
_LINE = re.compile(r"([0-9a-fA-F:.]{7,16}) (.{0,200}?) \[([0-9a-fA-F]{4})\]: (.*)")
_IDS = re.compile(r"(.*)\[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_NVIDIA, _AMD, _AMAZON = "10de", "1002", "1d0f"
_GPU_CLASSES = frozenset({"0302", "0300", "1200", "0380"})
_LAYERS = {"0200": LinkLayer.ETHERNET, "0207": LinkLayer.INFINIBAND}


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """``pci`` keeps the domain: on virtual machines it alone tells devices apart. ``kind``: the class, as "0302"."""

    pci: str
    kind: str
    vendor: str
    device: str
    name: str

    @property
    def is_gpu(self) -> bool:
        return self.vendor in (_NVIDIA, _AMD) and self.kind in _GPU_CLASSES

    @property
    def is_nvswitch(self) -> bool:
        return self.vendor == _NVIDIA and self.kind == "0680"

    @property
    def is_virtual_function(self) -> bool:
        """A part of a card that a hypervisor gives to a virtual machine: a training port like any other."""
        return "Virtual Function" in self.name

    @property
    def layer(self) -> LinkLayer | None:
        """None where it is no network port."""
        if self.vendor == _AMAZON and self.device.startswith("efa"):
            return LinkLayer.EFA
        return _LAYERS.get(self.kind, LinkLayer.OTHER if self.kind.startswith("02") else None)

    def nic(self) -> Nic | None:
        """Returns the network port, named by its address; None where it is none."""
        return Nic(name=self.pci, pci=self.pci, layer=self.layer, virtual=False) if self.layer else None


def read_lspci(text: str) -> tuple[PciDevice, ...]:
    """Returns the devices in the order of the text. Details (`-v`) are left out.

    Raises UnreadableTopologyError where no line names a device with its numbers, as `lspci` without `-nn` does not.
    """
    lines = plain_lines(text, "lspci")
    devices: list[PciDevice] = []
    for number, line in enumerate(lines, start=1):
        device = _device(line)
        if device and len(devices) >= MAX_DEVICES:
            raise UnreadableTopologyError(f"more than {MAX_DEVICES} devices: no node has so many", line=number)
        if device:
            devices.append(device)
    if not devices:
        first = next((at for at, line in enumerate(lines, start=1) if line.strip()), 1)
        expected = "0001:00:00.0 3D controller [0302]: NVIDIA … [10de:20b2]"
        raise UnreadableTopologyError(f"no device: expected lines such as {expected}, from lspci -nn", line=first)
    return tuple(devices)


def _device(line: str) -> PciDevice | None:
    match = _LINE.match(line)
    ids = _IDS.match(match[4]) if match else None
    pci = pci_address(match[1]) if match else ""
    if not (match and ids and pci):
        return None
    return PciDevice(
        pci=pci,
        kind=match[3].lower(),
        vendor=ids[2].lower(),
        device=ids[3].lower(),
        name=ids[1].strip(),
    )
