"""Makes a fabric of switches and cables: finds the leaves, the rail groups, their rails, and what lies above. Pure.

A leaf is a switch that adapters end at. Hosts that share most of their leaves form a group, named a rail group where
it has several leaves, one for each rail; a host that lacks some of them stays in it, degraded. The other switches
count by how far they are from the leaves: spines, then cores. What they join is a domain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from phalanx.core.topology.fabric import Domain, Fabric, FabricNode
from phalanx.core.topology.importers.cables import Attachment, Cable, sum_gbit_s
from phalanx.core.topology.importers.switch_tree import SwitchTree
from phalanx.core.topology.importers.tree_draft import TreeDraft
from phalanx.core.topology.names import natural_key

_GBIT_PER_GBYTE = 8
_KINDS = 64
"""Of hosts, by the adapters that they have: more are not looked at."""


@dataclass(slots=True)
class _Group:
    hosts: list[str] = field(default_factory=list[str])
    leaves: list[str] = field(default_factory=list[str])
    rails: dict[str, int] = field(default_factory=dict[str, int])
    """The rail of each leaf, where the group has several."""
    rail_count: int = 0


def fabric_of(attachments: tuple[Attachment, ...], cables: tuple[Cable, ...], notes: tuple[str, ...]) -> Fabric:
    """Returns the fabric. Adapters without a host count for what links carry, and are no nodes."""
    of_host: dict[str, list[Attachment]] = defaultdict(list)
    for attachment in attachments:
        of_host[attachment.adapter.host].append(attachment)
    unnamed = of_host.pop("", [])
    groups = _groups(of_host)
    _name_rails(groups, of_host)
    tree = SwitchTree.of(attachments, cables, [group.leaves for group in groups])
    bottom = "rail-group" if any(len(group.leaves) > 1 for group in groups) else "leaf"
    draft = TreeDraft((bottom, *tree.levels), notes=list(notes))
    if unnamed:
        draft.notes.append(f"{len(unnamed)} adapters have no host name: they are nobody's here")
    for group in groups:
        _add_group(draft, tree, group, of_host)
    tree.add_domains_above(draft)
    return draft.fabric()


def _add_group(draft: TreeDraft, tree: SwitchTree, group: _Group, of_host: dict[str, list[Attachment]]) -> None:
    leaves = sorted(group.leaves, key=natural_key)
    every_rail = range(group.rail_count)
    at_rail = {rail: leaf for leaf, rail in group.rails.items()}
    domain = Domain(
        id=f"{draft.levels[0]}:{leaves[0]}",
        level=draft.levels[0],
        parent=tree.domain_id(leaves[0], 1),
        bandwidth_gbyte_s=_usual_gbyte_s(group, of_host),
        oversubscription=tree.oversubscription(leaves),
        switches=tuple(at_rail.get(rail, "") for rail in every_rail) or tuple(leaves),
    )
    draft.add_domain(domain)
    for host in group.hosts:
        rails = {group.rails[cable.switch] for cable in of_host[host] if cable.switch in group.rails}
        missing = set(every_rail) - rails
        draft.add_node(
            FabricNode(id=host, domain=domain.id, rails=tuple(sorted(rails)), degraded_rails=tuple(sorted(missing)))
        )


def _groups(of_host: dict[str, list[Attachment]]) -> list[_Group]:
    """Puts hosts that share more than half of their leaves together, beginning with the leaves that most share."""
    sharing: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host in sorted(of_host, key=natural_key):
        sharing[tuple(sorted({cable.switch for cable in of_host[host]}, key=natural_key))].append(host)
    owner: dict[str, _Group] = {}
    groups: list[_Group] = []
    for leaves, hosts in sorted(sharing.items(), key=lambda item: (-len(item[1]), -len(item[0]), item[0])):
        owners = Counter(id(owner[leaf]) for leaf in leaves if leaf in owner)
        found = next(
            (owner[leaf] for leaf in leaves if leaf in owner and owners[id(owner[leaf])] * 2 > len(leaves)), None
        )
        if found is None:
            found = _Group()
            groups.append(found)
        found.hosts.extend(hosts)
        for leaf in leaves:
            if owner.setdefault(leaf, found) is found and leaf not in found.leaves:
                found.leaves.append(leaf)
    return groups


def _name_rails(groups: list[_Group], of_host: dict[str, list[Attachment]]) -> None:
    """Numbers the leaves of each group by the adapters that end there; by name, where those do not tell."""
    usual = [_usual_adapters([of_host[host] for host in group.hosts]) for group in groups]
    hosts_with: Counter[_Adapters] = Counter()
    for adapters, group in zip(usual, groups, strict=True):
        hosts_with[adapters] += len(group.hosts)
    most_common = [adapters for adapters, _ in hosts_with.most_common(_KINDS)]
    for adapters, group in zip(usual, groups, strict=True):
        if len(group.leaves) > 1:
            _name_rails_of(group, _expected(adapters, most_common), of_host)


def _name_rails_of(group: _Group, expected: _Adapters, of_host: dict[str, list[Attachment]]) -> None:
    family, numbers = expected
    seen: dict[str, Counter[int]] = {leaf: Counter() for leaf in group.leaves}
    for host in group.hosts:
        for cable in of_host[host]:
            if cable.adapter.family == family and cable.adapter.number in numbers and cable.switch in seen:
                seen[cable.switch][numbers.index(cable.adapter.number)] += 1
    rails = {leaf: counts.most_common(1)[0][0] for leaf, counts in seen.items() if counts}
    if len(set(rails.values())) == len(group.leaves):
        group.rails, group.rail_count = rails, len(numbers)
    else:
        group.rails = {leaf: at for at, leaf in enumerate(sorted(group.leaves, key=natural_key))}
        group.rail_count = len(group.leaves)


_Adapters = tuple[str, tuple[int, ...]]
"""A family and the numbers in it that hosts have, which are their rails in this order: HCA-1, 2, 5, 6 are 0 to 3."""


def _usual_adapters(hosts: list[list[Attachment]]) -> _Adapters:
    """Returns the family that most hosts have, and the numbers that at least half of these have."""
    having: Counter[str] = Counter()
    numbers: dict[str, Counter[int]] = defaultdict(Counter)
    for cables in hosts:
        adapters = {cable.adapter for cable in cables}
        having.update({adapter.family for adapter in adapters})
        for adapter in adapters:
            numbers[adapter.family][adapter.number] += 1
    family = min(having, key=lambda name: (-having[name], name))
    return family, tuple(sorted(at for at, count in numbers[family].items() if 2 * count >= having[family]))


def _expected(adapters: _Adapters, most_common: list[_Adapters]) -> _Adapters:
    """Returns what hosts of this kind have in most groups: where a whole group lacks a rail, the others tell."""
    family, numbers = adapters
    fuller = (
        other
        for other in most_common
        if other[0] == family and len(other[1]) < 2 * len(numbers) and set(other[1]) >= set(numbers)
    )
    return next(fuller, adapters)


def _usual_gbyte_s(group: _Group, of_host: dict[str, list[Attachment]]) -> float | None:
    """Returns what most of the hosts can send, one way. None where a rate is unknown."""
    sums = Counter(sum_gbit_s([cable.gbit_s for cable in of_host[host]]) for host in group.hosts)
    usual = sums.most_common(1)[0][0]
    return usual / _GBIT_PER_GBYTE if usual else None
