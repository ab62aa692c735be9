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
_USUAL = 0.1
"""An adapter's number tells a rail where at least this share of the hosts has it."""


@dataclass(slots=True)
class _Group:
    hosts: list[str] = field(default_factory=list[str])
    leaves: list[str] = field(default_factory=list[str])
    rails: dict[str, int] = field(default_factory=dict[str, int])
    """The rail of each leaf, where the group has several."""


def fabric_of(attachments: tuple[Attachment, ...], cables: tuple[Cable, ...], notes: tuple[str, ...]) -> Fabric:
    """Returns the fabric. Adapters without a host count for what links carry, and are no nodes."""
    of_host: dict[str, list[Attachment]] = defaultdict(list)
    for attachment in attachments:
        of_host[attachment.adapter.host].append(attachment)
    unnamed = of_host.pop("", [])
    groups = _groups(of_host)
    rail_count = _name_rails(groups, of_host)
    tree = SwitchTree.of(attachments, cables, [group.leaves for group in groups])
    bottom = "rail-group" if any(len(group.leaves) > 1 for group in groups) else "leaf"
    draft = TreeDraft((bottom, *tree.levels), notes=list(notes))
    if unnamed:
        draft.notes.append(f"{len(unnamed)} adapters have no host name: they are nobody's here")
    for group in groups:
        _add_group(draft, tree, group, of_host, rail_count)
    tree.add_domains_above(draft)
    return draft.fabric()


def _add_group(
    draft: TreeDraft, tree: SwitchTree, group: _Group, of_host: dict[str, list[Attachment]], rail_count: int
) -> None:
    leaves = sorted(group.leaves, key=natural_key)
    every_rail = range(max(rail_count, len(leaves))) if group.rails else range(0)
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


def _name_rails(groups: list[_Group], of_host: dict[str, list[Attachment]]) -> int:
    """Numbers the leaves of each group by the adapters that end there. Returns how many rails hosts usually have."""
    positions = _positions(of_host)
    for group in groups:
        if len(group.leaves) < 2:
            continue
        seen: dict[str, Counter[int]] = defaultdict(Counter)
        for host in group.hosts:
            for cable in of_host[host]:
                position = positions.get((cable.adapter.family, cable.adapter.number))
                if position is not None:
                    seen[cable.switch][position] += 1
        rails = {leaf: seen[leaf].most_common(1)[0][0] for leaf in group.leaves if seen[leaf]}
        if len(set(rails.values())) == len(group.leaves):
            group.rails = rails
        else:
            group.rails = {leaf: at for at, leaf in enumerate(sorted(group.leaves, key=natural_key))}
    return max((len({at for name, at in positions.items() if name[0] == family}) for family, _ in positions), default=0)


def _positions(of_host: dict[str, list[Attachment]]) -> dict[tuple[str, int], int]:
    """Returns the place of each adapter among those that hosts usually have: HCA-1, 2, 5, 6 are 0, 1, 2, 3."""
    hosts_with: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for host, cables in of_host.items():
        for cable in cables:
            hosts_with[cable.adapter.family][cable.adapter.number].add(host)
    found: dict[tuple[str, int], int] = {}
    for family, numbers in hosts_with.items():
        hosts = len(set[str]().union(*numbers.values()))
        usual = sorted(number for number, having in numbers.items() if len(having) >= _USUAL * hosts)
        found.update({(family, number): at for at, number in enumerate(usual)})
    return found


def _usual_gbyte_s(group: _Group, of_host: dict[str, list[Attachment]]) -> float | None:
    """Returns what most of the hosts can send, one way. None where a rate is unknown."""
    sums = Counter(sum_gbit_s([cable.gbit_s for cable in of_host[host]]) for host in group.hosts)
    usual = sums.most_common(1)[0][0]
    return usual / _GBIT_PER_GBYTE if usual else None
