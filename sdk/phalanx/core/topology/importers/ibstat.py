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
    drafts: dict[tuple[str, int], PortDraft] = {}
    last: PortDraft | None = None
    lines = [(number, line.strip()) for number, line in enumerate(plain_lines(text, "ibstat"), start=1)]
    for number, line in lines:
        if match := _DEVICE.fullmatch(line):
            device, last = match[1], None
        elif match := _PORT.fullmatch(line):
            last = _new_port(device, int(match[1]), number, drafts)
        elif last is not None:
            key, colon, value = line.partition(":")
            if colon and key in _FACTS:
                last.facts.setdefault(_FACTS[key], value.strip())
    if not drafts:
        first = next((number for number, line in lines if line), 1)
        raise UnreadableTopologyError("no port: expected lines such as CA 'mlx5_0' and Port 1:", line=first)
    notes: list[str] = []
    return Ports(tuple(draft.nic(notes) for draft in drafts.values()), tuple(notes))


def _new_port(device: str, port: int, line: int, drafts: dict[tuple[str, int], PortDraft]) -> PortDraft:
    if not device:
        raise UnreadableTopologyError("a port before any device: expected a line such as CA 'mlx5_0'", line=line)
    if (device, port) in drafts:
        raise UnreadableTopologyError(f"port {port} of {device} is listed twice", line=line)
    if len(drafts) >= MAX_PORTS:
        raise UnreadableTopologyError(f"more than {MAX_PORTS} ports: no node has so many", line=line)
    drafts[device, port] = PortDraft(device=device, port=port, line=line)
    return drafts[device, port]
