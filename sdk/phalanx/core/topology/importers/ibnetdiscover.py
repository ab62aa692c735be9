"""Reads what `ibnetdiscover` prints: the switches and adapters of an InfiniBand subnet, and the links between. Pure.

`rail_groups.py` makes a fabric of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Fabric
from phalanx.core.topology.importers.cables import Adapter, Attachment, Cable
from phalanx.core.topology.importers.rail_groups import fabric_of
from phalanx.core.topology.importers.reading import MAX_FABRIC_CHARS, bounded_lines

_DEVICE = re.compile(r'(Switch|Ca|Rt)\s+[0-9]+\s+"([^"]{1,64})"(?:\s*#\s*"([^"]*)")?')
_PORT = re.compile(
    r'\[([0-9]{1,4})\](?:\[ext [0-9]+\])?(?:\([^)]*\))?\s+"([^"]{1,64})"\[([0-9]{1,4})\](?:[^#]*)(?:#(.*))?'
)
_QUOTED = re.compile(r'"([^"]*)"')
_RATE = re.compile(r"\b([0-9]{1,2})x([A-Z]{3}[0-9]{0,2})\b")
_LANE_GBIT_S = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}
_MOST_NOTES = 20
_SWITCH_NAME = re.compile(r"[^;]{1,64};([^:;]{1,128}):.*")
_HOST_PORT = re.compile(r"(\S{1,255}) ((?:HCA|mlx|ib|hfi|qib|bnxt|irdma|roce)\S{0,62}?([0-9]{1,4}))")
_NOT_A_HOST = frozenset({"localhost", "(none)"})
_IN_SWITCH = "Aggregation Node"
"""What a switch's own engine for reductions calls itself: an adapter that is no host's."""


class DeviceKind(StrEnum):
    SWITCH = "Switch"
    ADAPTER = "Ca"
    ROUTER = "Rt"


@dataclass(frozen=True, slots=True)
class IbPort:
    """One line: a port and the one at the other end of its cable. ``rate`` as "4xNDR", "" where it is not shown."""

    number: int
    peer: str
    peer_port: int
    peer_description: str
    rate: str


@dataclass(frozen=True, slots=True)
class IbDevice:
    guid: str
    kind: DeviceKind
    description: str
    ports: tuple[IbPort, ...]


@dataclass(frozen=True, slots=True)
class Subnet:
    devices: tuple[IbDevice, ...]
    notes: tuple[str, ...] = ()

    def of_kind(self, kind: DeviceKind) -> tuple[IbDevice, ...]:
        return tuple(device for device in self.devices if device.kind is kind)


def read_ibnetdiscover(text: str) -> Fabric:
    """Returns leaves or rail groups, spines and cores, and the hosts below. Raises UnreadableTopologyError."""
    subnet = read_subnet(text)
    if not subnet.of_kind(DeviceKind.SWITCH):
        raise UnreadableTopologyError('no switch: expected a line such as Switch 65 "S-0002…" # "MF0;leaf-01:…"')
    names, cables = _switch_names(subnet), _Cables.of(subnet)
    return fabric_of(tuple(cables.attachments(names)), tuple(cables.between_switches(names)), subnet.notes)


def read_subnet(text: str) -> Subnet:
    """Returns the devices as they are listed. Raises UnreadableTopologyError where there is none."""
    drafts: list[tuple[str, DeviceKind, str, list[IbPort]]] = []
    notes: list[str] = []
    lines = bounded_lines(text, "ibnetdiscover", max_chars=MAX_FABRIC_CHARS)
    for number, line in enumerate(lines, start=1):
        if match := _DEVICE.match(line):
            drafts.append((match[2], DeviceKind(match[1]), match[3] or "", []))
        elif line.startswith("["):
            port = _port(line)
            if port is None or not drafts:
                notes.append(f'line {number}: expected a port such as [1] "S-0002…"[3] # … 4xNDR, below its device')
            else:
                drafts[-1][3].append(port)
    if not drafts:
        first = next((at for at, line in enumerate(lines, start=1) if line.strip()), 1)
        raise UnreadableTopologyError('no device: expected lines such as Switch 65 "S-0002…" # "leaf-01"', line=first)
    kept = notes if len(notes) <= _MOST_NOTES else [*notes[:_MOST_NOTES], f"and {len(notes) - _MOST_NOTES} lines more"]
    return Subnet(tuple(IbDevice(guid, kind, name, tuple(ports)) for guid, kind, name, ports in drafts), tuple(kept))


def _port(line: str) -> IbPort | None:
    match = _PORT.match(line)
    if not match:
        return None
    comment = match[4] or ""
    described = _QUOTED.search(comment)
    rates = _RATE.findall(_QUOTED.sub("", comment))
    rate = "x".join(rates[-1]) if rates else ""
    return IbPort(int(match[1]), match[2], int(match[3]), described[1] if described else "", rate)


def rate_gbit_s(rate: str) -> float | None:
    """Returns what "4xNDR" carries, one way: 400 Gb/s."""
    match = _RATE.fullmatch(rate)
    lane = _LANE_GBIT_S.get(match[2]) if match else None
    return int(match[1]) * lane if match and lane else None


def _switch_names(subnet: Subnet) -> dict[str, str]:
    """Returns each switch's name by its GUID: the name in its description, with the GUID where two have the same."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for switch in subnet.of_kind(DeviceKind.SWITCH):
        match = _SWITCH_NAME.fullmatch(switch.description)
        name = match[1] if match else switch.description or switch.guid
        if name in taken:
            name = f"{name} {switch.guid}"
        if switch.guid not in names and name not in taken:
            names[switch.guid] = name
            taken.add(name)
    return names


@dataclass(frozen=True, slots=True)
class _Cables:
    """Each cable once, though both of its ends list it: its two ends, and its rate."""

    ends: dict[tuple[tuple[str, int], tuple[str, int]], str]
    descriptions: dict[str, str]

    @classmethod
    def of(cls, subnet: Subnet) -> _Cables:
        cables = cls({}, {device.guid: device.description for device in subnet.devices})
        for device in subnet.devices:
            for port in device.ports:
                one, other = sorted([(device.guid, port.number), (port.peer, port.peer_port)])
                cables.ends[one, other] = port.rate or cables.ends.get((one, other), "")
                cables.descriptions.setdefault(port.peer, port.peer_description)
        return cables

    def attachments(self, names: dict[str, str]) -> Iterator[Attachment]:
        """Yields the cables from adapters to switches, leaving out those inside switches."""
        for (one, other), rate in self.ends.items():
            for (guid, _), (peer, _) in ((one, other), (other, one)):
                if guid not in names and peer in names and _IN_SWITCH not in self.descriptions[guid]:
                    yield Attachment(self._adapter(guid), names[peer], rate_gbit_s(rate))

    def between_switches(self, names: dict[str, str]) -> Iterator[Cable]:
        for ((one, _), (other, _)), rate in self.ends.items():
            if one in names and other in names and one != other:
                yield Cable(names[one], names[other], rate_gbit_s(rate))

    def _adapter(self, guid: str) -> Adapter:
        match = _HOST_PORT.fullmatch(" ".join(self.descriptions[guid].split()))
        if not match or match[1] in _NOT_A_HOST:
            return Adapter()
        return Adapter(host=match[1], family=match[2].removesuffix(match[3]), number=int(match[3]))
