"""A fabric while a reader puts it together, domain by domain and node by node; what contradicts is noted. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode, InvalidFabricError
from phalanx.core.topology.names import natural_key

MAX_NODES = 200_000
MAX_DOMAINS = 100_000
_MOST_NOTES = 40


@dataclass(slots=True)
class TreeDraft:
    """``levels``: smallest first. Levels that no domain is at are left out of the fabric."""

    levels: tuple[str, ...]
    domains: dict[str, Domain] = field(default_factory=dict[str, Domain])
    nodes: dict[str, FabricNode] = field(default_factory=dict[str, FabricNode])
    notes: list[str] = field(default_factory=list[str])

    def add_path(self, path: list[tuple[str, str]]) -> str | None:
        """Takes (level, domain) from the largest to the smallest, and returns the smallest domain, None for none."""
        parent: str | None = None
        for level, domain_id in path:
            self.add_domain(Domain(id=domain_id, level=level, parent=parent))
            parent = domain_id
        return parent

    def add_domain(self, domain: Domain) -> None:
        """Adds a domain, or says where one that is there already lies elsewhere: then the first place counts."""
        there = self.domains.setdefault(domain.id, domain)
        if there is domain and len(self.domains) > MAX_DOMAINS:
            raise UnreadableTopologyError(f"more than {MAX_DOMAINS} domains: no fabric has so many")
        if there.parent != domain.parent:
            places = f"{there.parent or 'nothing'} and in {domain.parent or 'nothing'}"
            self.notes.append(f"{domain.id} lies in {places}: the first counts")

    def add_node(self, node: FabricNode) -> None:
        """Adds a node; of one that is listed twice the first counts."""
        there = self.nodes.setdefault(node.id, node)
        if there is node and len(self.nodes) > MAX_NODES:
            raise UnreadableTopologyError(f"more than {MAX_NODES} nodes: no fabric has so many")
        if there is not node and there != node:
            self.notes.append(f"{node.id} is listed twice, in {there.domain} and in {node.domain}: the first counts")

    def fabric(self) -> Fabric:
        """Returns the fabric, in order of names. Raises UnreadableTopologyError where it is no tree."""
        used = {domain.level for domain in self.domains.values()}
        more = len(self.notes) - _MOST_NOTES
        try:
            return Fabric(
                levels=tuple(level for level in self.levels if level in used),
                domains=tuple(sorted(self.domains.values(), key=lambda domain: natural_key(domain.id))),
                nodes=tuple(sorted(self.nodes.values(), key=lambda node: natural_key(node.id))),
                notes=(*self.notes[:_MOST_NOTES], *([f"and {more} more"] if more > 0 else [])),
            )
        except InvalidFabricError as error:
            raise UnreadableTopologyError(str(error)) from error
