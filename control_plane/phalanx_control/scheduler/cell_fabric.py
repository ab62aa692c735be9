"""Where each node stands: its NVLink domain and its domains of the cell's fabric, smallest first. Pure.

The fabric is what an admin told the cell. What a node's agent found out about its NVLink domain goes before what the
fabric says of it. A node that neither says anything of stands in the cell alone, away from every other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

from phalanx.core.topology.codec import from_json, nvl_domain_in
from phalanx.core.topology.devices import training_nics
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Fabric, FabricNode
from phalanx.core.topology.fabric_codec import fabric_from_json
from phalanx.core.topology.names import NaturalKey, natural_key
from phalanx_control.state.model import Node, State

NVLINK = "NVLink domain"
_FABRICS = 4
_NODES = 65_536
_nvl_domain_in = lru_cache(maxsize=_NODES)(nvl_domain_in)


@dataclass(frozen=True, slots=True, eq=False)
class Area:
    """A set of nodes that are near each other. ``rank``: 0 over NVLink, then by level; the whole cell last."""

    rank: int
    level: str
    id: str
    key: NaturalKey

    @property
    def words(self) -> str:
        """Returns what people call it: ``rail group leaf-3``."""
        return f"{level_words(self.level)} {self.id.removeprefix(f'{self.level}:')}"


Spot = tuple[Area, ...]
"""A node's areas, smallest first, the cell last. Nodes that share all of them have the very same tuple."""


class CellFabric:
    """Finds spots, and remembers them for as long as nodes say the same of themselves."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.cell = Area(len(fabric.levels) + 1, "cell", "", ())
        self._rank = {level: rank for rank, level in enumerate(fabric.levels, start=1)}
        self._areas: dict[tuple[int, str], Area] = {}
        self._spots: dict[Spot, Spot] = {}
        self._seen: dict[str, tuple[str, Spot]] = {}

    @property
    def levels(self) -> tuple[str, ...]:
        """By rank; the last is the cell."""
        return (NVLINK, *self.fabric.levels, self.cell.level)

    def spot(self, node: Node) -> Spot:
        """Returns where a node stands."""
        node_id, text = node.info.node_id, node.info.topology
        seen = self._seen.get(node_id)
        if seen is not None and seen[0] is text:
            return seen[1]
        found = self._find(node_id, _nvl_domain_in(text))
        if len(self._seen) >= _NODES:
            self._seen.clear()
        self._seen[node_id] = (text, found)
        return found

    def rank_of(self, required: str) -> int | None:
        """Returns in areas of which rank the nodes of a gang must be together: one that no area has, where no fabric
        is known; None: anywhere.
        """
        if required == "nvlink":
            return 0
        if required == "rail":
            return 1 if self.fabric.levels else len(self.levels)
        return None

    def order(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Returns the nodes' names as their ranks follow each other: near ones together."""
        places = [_place(self.fabric, node) for node in nodes]
        above = {domain.id: domain for place in places for domain in self.fabric.domains_of(place.id)}
        few = Fabric(levels=self.fabric.levels, domains=tuple(above.values()), nodes=tuple(places))
        return few.order(place.id for place in places)

    def _find(self, node_id: str, nvl: str | None) -> Spot:
        known = self.fabric.node(node_id)
        nvl = nvl or (known.nvl_domain if known else None)
        own = [self._area(0, NVLINK, nvl)] if nvl else []
        above = [self._area(self._rank[each.level], each.level, each.id) for each in self.fabric.domains_of(node_id)]
        spot = (*own, *above, self.cell)
        return self._spots.setdefault(spot, spot)

    def _area(self, rank: int, level: str, name: str) -> Area:
        known = self._areas.get((rank, name))
        return known or self._areas.setdefault((rank, name), Area(rank, level, name, natural_key(name)))

    @cached_property
    def is_empty(self) -> bool:
        """Says whether no fabric was set."""
        return not self.fabric.levels and not self.fabric.nodes


def level_words(level: str) -> str:
    """Returns a level's name as a word in a sentence."""
    return level.replace("-", " ")


@lru_cache(maxsize=_FABRICS)
def cell_fabric(text: str) -> CellFabric:
    """Returns the fabric that a state holds; an empty one where it holds none."""
    return CellFabric(fabric_from_json(text) if text else Fabric())


def known_fabric(state: State) -> Fabric:
    """Returns the fabric with everything that agents know of their nodes, and with all nodes that have joined."""
    fabric = cell_fabric(state.fabric).fabric
    joined = (_described(fabric, node) for node in state.nodes.values())
    merged = {node.id: node for node in chain(fabric.nodes, joined)}
    return replace(fabric, nodes=tuple(sorted(merged.values(), key=lambda node: natural_key(node.id))))


def absent_nodes(state: State) -> tuple[str, ...]:
    """Returns the nodes that the fabric names and that have not joined."""
    names = (node.id for node in cell_fabric(state.fabric).fabric.nodes)
    return tuple(sorted((name for name in names if name not in state.nodes), key=natural_key))


def _place(fabric: Fabric, node: Node) -> FabricNode:
    known = fabric.node(node.info.node_id) or FabricNode(id=node.info.node_id)
    nvl = _nvl_domain_in(node.info.topology)
    return replace(known, nvl_domain=nvl) if nvl else known


def _described(fabric: Fabric, node: Node) -> FabricNode:
    """As `_place`, and with the rails of its network ports."""
    known = _place(fabric, node)
    rails = _rails(node.info.topology)
    missing = tuple(sorted({*known.rails, *known.degraded_rails} - set(rails)))
    return replace(known, rails=rails, degraded_rails=missing) if rails else known


def _rails(text: str) -> tuple[int, ...]:
    try:
        topology = from_json(text) if text else None
    except UnreadableTopologyError:
        return ()
    ports = [topology.nics[at] for at in training_nics(topology)] if topology is not None else []
    return tuple(sorted({nic.rail for nic in ports if nic.rail is not None}))
