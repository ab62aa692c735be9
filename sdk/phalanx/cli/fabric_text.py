"""A cell's fabric as text for a terminal: its tree, the nodes of each domain, and what is known of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from phalanx.cli.text import folded
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode
from phalanx.core.topology.names import natural_key


def drawing(fabric: Fabric, *, absent: Collection[str] | None = None) -> Iterator[str]:
    """Yields the lines of a fabric. ``absent``: nodes of it that have not joined the cell, where it is one's."""
    yield headline(fabric, absent)
    absent = absent or ()
    below: defaultdict[str | None, list[Domain]] = defaultdict(list)
    nodes: defaultdict[str | None, list[FabricNode]] = defaultdict(list)
    for domain in sorted(fabric.domains, key=lambda domain: natural_key(domain.id)):
        below[domain.parent].append(domain)
    for node in sorted(fabric.nodes, key=lambda node: natural_key(node.id)):
        nodes[node.domain].append(node)
    open_domains = [(domain, 1) for domain in reversed(below[None])]
    while open_domains:
        domain, depth = open_domains.pop()
        yield f"{'  ' * depth}{_domain(domain)}"
        yield from _nodes(nodes[domain.id], depth + 1, absent)
        open_domains += [(each, depth + 1) for each in reversed(below[domain.id])]
    if nodes[None]:
        yield "  no domain known"
        yield from _nodes(nodes[None], 2, absent)
    for note in fabric.notes:
        yield f"  note: {note}"


def headline(fabric: Fabric, absent: Collection[str] | None) -> str:
    """Returns one line: what the fabric has."""
    levels = ", ".join(_count(sum(d.level == level for d in fabric.domains), level) for level in fabric.levels)
    nodes = _count(len(fabric.nodes), "node")
    here = len(fabric.nodes) - len(absent or ())
    joined = "" if absent is None else f", of which {here} {'has' if here == 1 else 'have'} joined"
    return f"fabric: {levels or 'no levels'}; {nodes}{joined}"


def _count(number: int, level: str) -> str:
    words = level.replace("-", " ")
    many = f"{words[:-1]}ves" if words.endswith("leaf") else f"{words}s"
    return f"{number} {words if number == 1 else many}"


def _domain(domain: Domain) -> str:
    facts = [f"{domain.bandwidth_gbyte_s:.4g} GB/s a node"] if domain.bandwidth_gbyte_s is not None else []
    facts += [f"oversubscription {domain.oversubscription:.3g}"] if domain.oversubscription is not None else []
    switches = [switch or "none" for switch in domain.switches]
    facts += [f"switches {folded(switches)}"] if len(switches) > 1 else []
    name = domain.id.removeprefix(f"{domain.level}:")
    title = f"{domain.level.replace('-', ' ')} {name}"
    return f"{title}: {'; '.join(facts)}" if facts else title


def _nodes(nodes: list[FabricNode], depth: int, absent: Collection[str]) -> Iterator[str]:
    """One line for the nodes of which the same is known."""
    alike: dict[str, list[str]] = {}
    for node in nodes:
        alike.setdefault(_facts(node, absent), []).append(node.id)
    for facts, names in alike.items():
        yield f"{'  ' * depth}{folded(names)}{f'  ({facts})' if facts else ''}"


def _facts(node: FabricNode, absent: Collection[str]) -> str:
    facts = [f"NVLink domain {node.nvl_domain}"] if node.nvl_domain else []
    facts += [f"rails {_numbers(node.rails)}"] if node.rails else []
    facts += [f"no working port on rail {_numbers(node.degraded_rails)}"] if node.degraded_rails else []
    facts += ["has not joined"] if node.id in absent else []
    return ", ".join(facts)


def _numbers(rails: tuple[int, ...]) -> str:
    first, last = min(rails), max(rails)
    whole = len(rails) > 2 and last - first == len(rails) - 1
    return f"{first}-{last}" if whole else ", ".join(map(str, rails))
