"""The network between nodes: a tree of domains, and which of them each node lies in. Pure.

Levels are named, smallest first, as leaf, spine, core. A domain lies in one of a later level, which need not be the
next. In a rail fabric the ports of a node end at different leaves, so a node lies in no leaf but in a *rail group*:
the nodes that share a set of leaves. NVLink domains are labels apart, since they may cut across the tree.

None means unknown: a node whose place is unknown is as far as can be from every other, and two such are not together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite

from phalanx.core.errors import InvalidSpecError
from phalanx.core.topology.names import NaturalKey, natural_key


class InvalidFabricError(InvalidSpecError):
    """Domains and nodes that do not make a tree."""

    hint = "check the fabric's file with `gpuctl topo import`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Nodes that are near each other: those of a leaf switch, of a rail group, of a pod."""

    id: str
    """Of this domain alone, at whatever level."""
    level: str
    parent: str | None = None
    bandwidth_gbyte_s: float | None = None
    """What each node can send to other nodes of this domain when all do, one way."""
    oversubscription: float | None = None
    """What the nodes below can send, over what the links up can carry: 1 or less is none."""
    switches: tuple[str, ...] = ()
    """In a rail group one for each rail, "" where there is none; elsewhere those that join the domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricNode:
    """A node's place: the smallest domain that it is known to lie in, at whatever level."""

    id: str
    domain: str | None = None
    nvl_domain: str | None = None
    """As `NodeTopology.nvl_domain`: nodes with the same reach each other over NVLink."""
    rails: tuple[int, ...] = ()
    """Those with a working port; empty where rails are not known."""
    degraded_rails: tuple[int, ...] = ()
    """Those of its rail group that it has no working port on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """``levels``: smallest first. Raises InvalidFabricError for what is no tree."""

    levels: tuple[str, ...] = ()
    domains: tuple[Domain, ...] = ()
    nodes: tuple[FabricNode, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read, and what was left out, for people."""
    _domains: dict[str, Domain] = field(init=False, repr=False, compare=False)
    _nodes: dict[str, FabricNode] = field(init=False, repr=False, compare=False)
    _heights: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _set_once(self, "_heights", {level: at for at, level in enumerate(self.levels)})
        _set_once(self, "_domains", {domain.id: domain for domain in self.domains})
        _set_once(self, "_nodes", {node.id: node for node in self.nodes})
        _check_names("level", self.levels)
        _check_names("domain", [domain.id for domain in self.domains])
        _check_names("node", [node.id for node in self.nodes])
        for domain in self.domains:
            self._check_domain(domain)
        for node in self.nodes:
            self._check_node(node)

    def domain(self, domain_id: str) -> Domain:
        """Raises KeyError."""
        return self._domains[domain_id]

    def node(self, node_id: str) -> FabricNode | None:
        return self._nodes.get(node_id)

    def domains_of(self, node_id: str) -> tuple[Domain, ...]:
        """Returns the domains that a node lies in, smallest first; none for a node whose place is unknown."""
        node = self._nodes.get(node_id)
        return tuple(self._upwards(node.domain)) if node else ()

    def domain_at(self, node_id: str, level: str) -> Domain | None:
        """Returns a node's domain at a level, or None where it is unknown."""
        return next((domain for domain in self.domains_of(node_id) if domain.level == level), None)

    def common_domain(self, a: str, b: str) -> Domain | None:
        """Returns the smallest domain that both nodes lie in, or None where none is known."""
        mine = {domain.id for domain in self.domains_of(a)}
        return next((domain for domain in self.domains_of(b) if domain.id in mine), None)

    def common_level(self, a: str, b: str) -> str | None:
        """Returns the level of `common_domain`."""
        common = self.common_domain(a, b)
        return common.level if common else None

    def share_nvlink(self, a: str, b: str) -> bool:
        """Whether two nodes are known to reach each other over NVLink."""
        one, other = self._nodes.get(a), self._nodes.get(b)
        return (
            one is not None and other is not None and one.nvl_domain is not None and one.nvl_domain == other.nvl_domain
        )

    def distance(self, a: str, b: str) -> int:
        """Returns 0 for one node, 1 over NVLink, 2 and on by the level that joins two, and one more where none does."""
        if a == b:
            return 0
        if self.share_nvlink(a, b):
            return 1
        level = self.common_level(a, b)
        return 2 + (len(self.levels) if level is None else self._heights[level])

    def order(self, node_ids: Iterable[str]) -> tuple[str, ...]:
        """Returns the nodes so that near ones follow each other: the order of ranks.

        Down the tree, by name within a domain. The nodes of an NVLink domain stay together below the smallest domain
        that holds all of them. Nodes whose place is unknown come last.
        """
        wanted = list(node_ids)
        paths = {node_id: self._path_from_top(node_id) for node_id in set(wanted)}
        held_at = self._nvl_depths(paths)
        return tuple(sorted(wanted, key=lambda node_id: self._order_key(node_id, paths[node_id], held_at)))

    def _upwards(self, domain_id: str | None) -> Iterator[Domain]:
        while domain_id is not None:
            domain = self._domains[domain_id]
            yield domain
            domain_id = domain.parent

    def _path_from_top(self, node_id: str) -> tuple[str, ...]:
        """Returns a node's domains by level, largest first, "" where one is unknown."""
        at_level = {domain.level: domain.id for domain in self.domains_of(node_id)}
        return tuple(at_level.get(level, "") for level in reversed(self.levels))

    def _nvl_depths(self, paths: dict[str, tuple[str, ...]]) -> dict[str, int]:
        """Returns, for each NVLink domain, how many steps from the top all its nodes have in common."""
        members: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for node_id, path in paths.items():
            node = self._nodes.get(node_id)
            if node is not None and node.nvl_domain is not None:
                members[node.nvl_domain].append(path)
        return {nvl: _shared_steps(of_nvl) for nvl, of_nvl in members.items()}

    def _order_key(self, node_id: str, path: tuple[str, ...], held_at: dict[str, int]) -> tuple[_Step, ...]:
        node = self._nodes.get(node_id)
        nvl = node.nvl_domain if node else None
        steps = [_step(domain) for domain in path]
        if nvl is not None:
            steps.insert(held_at[nvl], (0, natural_key(nvl)))
        return (*steps, _step(node_id))

    def _check_domain(self, domain: Domain) -> None:
        if domain.level not in self._heights:
            raise InvalidFabricError(
                f"domain {domain.id!r} is at level {domain.level!r}: levels are {self._level_names()}"
            )
        _check_figure(domain.id, "bandwidth_gbyte_s", domain.bandwidth_gbyte_s)
        _check_figure(domain.id, "oversubscription", domain.oversubscription)
        if domain.parent is None:
            return
        parent = self._domains.get(domain.parent)
        if parent is None:
            raise InvalidFabricError(f"domain {domain.id!r} lies in {domain.parent!r}, which is not a domain here")
        if self._heights.get(parent.level, len(self.levels)) <= self._heights[domain.level]:
            raise InvalidFabricError(
                f"domain {domain.id!r} at level {domain.level!r} cannot lie in {parent.id!r} at level "
                f"{parent.level!r}: a parent is at a later one of {self._level_names()}, so that nothing lies in itself"
            )

    def _check_node(self, node: FabricNode) -> None:
        if node.domain is not None and node.domain not in self._domains:
            raise InvalidFabricError(f"node {node.id!r} lies in {node.domain!r}, which is not a domain here")
        both = sorted(set(node.rails) & set(node.degraded_rails))
        if both:
            raise InvalidFabricError(f"node {node.id!r}: rails {both} both work and are degraded")
        if any(rail < 0 for rail in (*node.rails, *node.degraded_rails)):
            raise InvalidFabricError(f"node {node.id!r}: rails {node.rails + node.degraded_rails}: expected 0 and more")

    def _level_names(self) -> str:
        return ", ".join(self.levels) or "none"


_Step = tuple[int, NaturalKey]


def _step(name: str) -> _Step:
    """Orders by name, unknown last."""
    return (0, natural_key(name)) if name else (2, ())


def _shared_steps(paths: list[tuple[str, ...]]) -> int:
    shared = 0
    for steps in zip(*paths, strict=True):
        if len(set(steps)) > 1 or "" in steps:
            break
        shared += 1
    return shared


def _set_once(fabric: Fabric, name: str, value: object) -> None:
    object.__setattr__(fabric, name, value)


def _check_names(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise InvalidFabricError(f"a {what} has no name")
        if name in seen:
            raise InvalidFabricError(f"{what} {name!r} is there twice")
        seen.add(name)


def _check_figure(domain_id: str, what: str, value: float | None) -> None:
    if value is not None and not (isfinite(value) and value > 0):
        raise InvalidFabricError(f"domain {domain_id!r}: {what} {value}: expected a number above 0, or none")
