"""Reads `/sys/class/infiniband` as text, a path and its content on each line: ``…/mlx5_0/ports/1/state 4: ACTIVE``.

Any number of files may be missing: of a port that says nothing of its rate, the rate is unknown. Pure.
"""

from __future__ import annotations

import re

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.ports import MAX_PORTS, PortDraft, Ports
from phalanx.core.topology.importers.reading import whole
from phalanx.core.topology.importers.text import plain_lines

_FILE = re.compile(r"\S*/infiniband/([^/\s]{1,64})/(\S+)")
_PORT_FILE = re.compile(r"ports/([0-9]{1,3})/(link_layer|phys_state|state|rate)")


def read_sysfs_infiniband(text: str) -> Ports:
    """Returns one `Nic` for each port, in the order of the text. Raises UnreadableTopologyError where there is none."""
    drafts: dict[tuple[str, int], PortDraft] = {}
    of_device: dict[str, dict[str, str]] = {}
    lines = plain_lines(text, "/sys/class/infiniband")
    for line_number, line in enumerate(lines, start=1):
        path, _, content = line.strip().partition(" ")
        if match := _FILE.fullmatch(path):
            device, file = match.groups()
            of_device.setdefault(device, {})[file] = content.strip()
            if port_file := _PORT_FILE.fullmatch(file):
                draft = _draft(drafts, device, int(port_file[1]), line_number)
                draft.facts[port_file[2]] = content.strip()
    if not drafts:
        first = next((at for at, line in enumerate(lines, start=1) if line.strip()), 1)
        raise UnreadableTopologyError(
            "no port: expected /sys/class/infiniband/mlx5_0/ports/1/state 4: ACTIVE", line=first
        )
    notes: list[str] = []
    for draft in drafts.values():
        _add_device_facts(draft, of_device[draft.device])
    return Ports(tuple(draft.nic(notes) for draft in drafts.values()), tuple(notes))


def _draft(drafts: dict[tuple[str, int], PortDraft], device: str, port: int, line: int) -> PortDraft:
    if (device, port) not in drafts and len(drafts) >= MAX_PORTS:
        raise UnreadableTopologyError(f"more than {MAX_PORTS} ports: no node has so many", line=line)
    return drafts.setdefault((device, port), PortDraft(device=device, port=port, line=line))


def _add_device_facts(draft: PortDraft, files: dict[str, str]) -> None:
    draft.facts["guid"] = files.get("node_guid", "")
    numa = whole(files.get("device/numa_node"))
    draft.numa = (numa,) if numa is not None and numa >= 0 else None
