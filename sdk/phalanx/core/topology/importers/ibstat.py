"""Reads what `ibstat` prints: the InfiniBand and RoCE ports of a node. Pure."""

from __future__ import annotations

import re

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.ports import MAX_PORTS, PortDraft, Ports
from phalanx.core.topology.importers.text import plain_lines

_DEVICE = re.compile(r"CA '([^']{1,64})'")
_PORT = re.compile(r"Port ([0-9]{1,3}):")
_FACTS = {
    "State": "state",
    "Physical state": "phys_state",
    "Rate": "rate",
    "Port GUID": "guid",
    "Link layer": "link_layer",
}


def read_ibstat(text: str) -> Ports:
    """Returns one `Nic` for each port: up, layer, rate, GUID. Raises UnreadableTopologyError where there is none."""
    device = ""
    drafts: list[PortDraft] = []
    lines = [(number, line.strip()) for number, line in enumerate(plain_lines(text, "ibstat"), start=1)]
    for number, line in lines:
        if match := _DEVICE.fullmatch(line):
            device = match[1]
        elif match := _PORT.fullmatch(line):
            drafts.append(_new_port(device, int(match[1]), number, drafts))
        elif drafts and drafts[-1].device == device:
            key, colon, value = line.partition(":")
            if colon and key in _FACTS:
                drafts[-1].facts.setdefault(_FACTS[key], value.strip())
    if not drafts:
        first = next((number for number, line in lines if line), 1)
        raise UnreadableTopologyError("no port: expected lines such as CA 'mlx5_0' and Port 1:", line=first)
    notes: list[str] = []
    return Ports(tuple(draft.nic(notes) for draft in drafts), tuple(notes))


def _new_port(device: str, port: int, line: int, drafts: list[PortDraft]) -> PortDraft:
    if not device:
        raise UnreadableTopologyError("a port before any device: expected a line such as CA 'mlx5_0'", line=line)
    if any(draft.device == device and draft.port == port for draft in drafts[-MAX_PORTS:]):
        raise UnreadableTopologyError(f"port {port} of {device} is listed twice", line=line)
    if len(drafts) >= MAX_PORTS:
        raise UnreadableTopologyError(f"more than {MAX_PORTS} ports: no node has so many", line=line)
    return PortDraft(device=device, port=port, line=line)
