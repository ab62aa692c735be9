"""A simulated fleet, planned: which machines, what their nodes are called, and the fabric between them. No I/O.

Figures of the fabric are the machines' own port rates; nobody has measured such a network.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from phalanx.core.errors import InvalidSpecError
from phalanx.core.topology.codec import to_json
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode
from phalanx.core.topology.node import NodeTopology

MAX_NODES = 1000
RAIL_GROUP, POD = "rail-group", "pod"
_GROUP = re.compile(r"\s*(\d+)\s*[x×]\s*([^\s,]+),?", re.IGNORECASE)
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_GBIT_PER_GBYTE = 8
_EXAMPLE = "write it as `64 x aws_p5`, or `64 x aws_p5 8 x dgx_h100`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that look alike. ``machine``: a preset's name, or a file's."""

    machine: str
    topology: NodeTopology
    node_ids: tuple[str, ...]


def plan(words: Sequence[str], prefix: str, look: Callable[[str], NodeTopology]) -> tuple[Group, ...]:
    """Reads ``64 x aws_p5 8 x dgx_h100``. ``look`` returns what a machine looks like.

    Raises InvalidSpecError naming what cannot be read, or the number of nodes where there are too many.
    """
    asked = _read(" ".join(words))
    if not _PREFIX.fullmatch(prefix):
        raise InvalidSpecError(
            f"--name {prefix[:60]!r} cannot begin the name of a node: use 32 letters, digits, '.', '_' and '-'",
            hint=f"--name {_NOT_IN_NAMES.sub('-', prefix).strip('-._')[:32] or 'fleet'}",
        )
    total = sum(count for count, _ in asked)
    if total > MAX_NODES:
        raise InvalidSpecError(f"{total} nodes are too many to play in one process: {MAX_NODES} at most")
    named: Counter[str] = Counter()
    groups: list[Group] = []
    for count, machine in asked:
        topology = look(machine)
        stem = f"{prefix}-{_name_of(machine)}"
        first = named[stem] + 1
        named[stem] += count
        ids = tuple(f"{stem}-{number}" for number in range(first, first + count))
        groups.append(Group(machine=machine, topology=topology, node_ids=ids))
    return tuple(groups)


def fabric_of(groups: Sequence[Group], prefix: str, group_nodes: int) -> Fabric:
    """Returns a rail fabric: groups of ``group_nodes`` alike nodes that share their leaves, all in one pod."""
    domains = [Domain(id=f"{prefix}-{POD}", level=POD)]
    nodes: list[FabricNode] = []
    for group in groups:
        rails = tuple(sorted({nic.rail for nic in group.topology.nics if nic.rail is not None}))
        for first in range(0, len(group.node_ids), group_nodes):
            rail_group = f"{prefix}-rails-{len(domains)}"
            speed = _ports_gbyte_s(group.topology)
            domains.append(Domain(id=rail_group, level=RAIL_GROUP, parent=domains[0].id, bandwidth_gbyte_s=speed))
            members = group.node_ids[first : first + group_nodes]
            nodes += [FabricNode(id=node_id, domain=rail_group, rails=rails) for node_id in members]
    return Fabric(levels=(RAIL_GROUP, POD), domains=tuple(domains), nodes=tuple(nodes), notes=("simulated",))


def is_fleets(fabric: Fabric, prefix: str) -> bool:
    """Says whether a fabric was made by `fabric_of` for a fleet of this name, which a killed one leaves behind."""
    return all(domain.id.startswith((f"{prefix}-{POD}", f"{prefix}-rails-")) for domain in fabric.domains)


def orders(
    groups: Sequence[Group], tokens: Mapping[str, str], *, address: str, ca: str, folder: str, call_ms: int
) -> str:
    """Returns what the fleet's process reads, as one line.

    ``tokens``: one join token for each node; ``folder``: where it keeps the nodes' keys while it lives.
    """
    return json.dumps(
        {
            "control": [address],
            "ca": ca,
            "folder": folder,
            "call_ms": call_ms,
            "topologies": {group.machine: to_json(group.topology) for group in groups},
            "nodes": [[node_id, group.machine, tokens[node_id]] for group in groups for node_id in group.node_ids],
        }
    )


def summary(groups: Sequence[Group]) -> str:
    """Writes ``64 nodes, 512 GPUs: 64 x aws_p5``."""
    nodes = sum(len(group.node_ids) for group in groups)
    gpus = sum(len(group.node_ids) * len(group.topology.gpus) for group in groups)
    kinds = ", ".join(f"{len(group.node_ids)} x {group.machine}" for group in groups)
    return f"{nodes} node{'s' if nodes != 1 else ''}, {gpus} GPU{'s' if gpus != 1 else ''}: {kinds}"


def _read(text: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    at = 0
    while text[at:].strip():
        match = _GROUP.match(text, at)
        if match is None:
            raise InvalidSpecError(f"{text[at:].strip()[:60]!r} is no number of machines: {_EXAMPLE}")
        count = int(match[1])
        if not count:
            raise InvalidSpecError(f"0 x {match[2]}: give at least one node")
        found.append((count, match[2]))
        at = match.end()
    if not found:
        raise InvalidSpecError(f"no machines are named: {_EXAMPLE}")
    return found


def _name_of(machine: str) -> str:
    stem = machine.rpartition("/")[2].partition(".")[0]
    return _NOT_IN_NAMES.sub("-", stem).strip("-")[:32] or "node"


def _ports_gbyte_s(topology: NodeTopology) -> float | None:
    rates = [nic.rate_gbit_s for nic in topology.nics if nic.rate_gbit_s and nic.rail is not None]
    return sum(rates) / _GBIT_PER_GBYTE if rates else None
