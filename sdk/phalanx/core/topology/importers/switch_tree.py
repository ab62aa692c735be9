"""What lies above the leaves: switches by their distance from them, and the domains that they join. Pure.

Distance 1 is a spine, 2 a core. Switches up to a distance, with the groups that hosts make of leaves, join others; what
is joined at a distance is one domain, named by its first switch.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Domain
from phalanx.core.topology.importers.cables import Attachment, Cable, sum_gbit_s
from phalanx.core.topology.importers.tree_draft import TreeDraft
from phalanx.core.topology.names import natural_key

MAX_TIERS = 8
_LEVELS = ("leaf", "spine", "core")


@dataclass(frozen=True, slots=True)
class SwitchTree:
    """``heights``: each switch's distance from the leaves. ``joined[height][switch]``: what it is in at that height."""

    heights: dict[str, int]
    joined: tuple[dict[str, str], ...]
    members: tuple[dict[str, list[str]], ...]
    """For each height, the switches of that height in each set, in order of names."""
    down: dict[str, list[float | None]]
    up: dict[str, list[float | None]]

    @classmethod
    def of(cls, attachments: tuple[Attachment, ...], cables: tuple[Cable, ...], groups: list[list[str]]) -> SwitchTree:
        heights = _heights({cable.switch for cable in attachments}, cables)
        far = max(heights, key=lambda switch: heights[switch], default="")
        if far and heights[far] >= MAX_TIERS:
            raise UnreadableTopologyError(
                f"{far[:80]} is {heights[far]} switches from any host: expected {MAX_TIERS - 1}"
            )
        joined = _joined(heights, cables, groups)
        members: list[dict[str, list[str]]] = [defaultdict(list) for _ in joined]
        for switch in sorted(heights, key=natural_key):
            members[heights[switch]][joined[heights[switch]][switch]].append(switch)
        tree = cls(heights, joined, tuple(members), defaultdict(list), defaultdict(list))
        tree._add_rates(attachments, cables)
        return tree

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the levels above the leaves."""
        return tuple(_level(height) for height in range(1, len(self.joined)))

    def domain_id(self, switch: str, height: int) -> str | None:
        """Returns the domain that a switch is in where those up to a height join others; None where they do not."""
        if height >= len(self.joined):
            return None
        peers = self.members[height].get(self.joined[height][switch])
        return f"{_level(height)}:{peers[0]}" if peers else None

    def oversubscription(self, switches: list[str]) -> float | None:
        """Returns what comes from below over what goes up. None where nothing goes up, or a rate is unknown."""
        below = sum_gbit_s([rate for switch in switches for rate in self.down[switch]])
        above = sum_gbit_s([rate for switch in switches for rate in self.up[switch]])
        return round(below / above, 4) if below and above else None

    def add_domains_above(self, draft: TreeDraft) -> None:
        """Adds the domains that those in the draft lie in, and those that these lie in."""
        below = list(draft.domains.values())
        for height in range(1, len(self.joined)):
            inside: dict[str, list[Domain]] = defaultdict(list)
            for domain in below:
                if domain.parent is not None:
                    inside[domain.parent].append(domain)
            below = [self._domain(domain_id, height, of_domain) for domain_id, of_domain in inside.items()]
            for domain in below:
                draft.add_domain(domain)

    def _domain(self, domain_id: str, height: int, inside: list[Domain]) -> Domain:
        first = domain_id.partition(":")[2]
        switches = self.members[height][self.joined[height][first]]
        shares = [_upwards_gbyte_s(domain) for domain in inside]
        known = [share for share in shares if share is not None]
        return Domain(
            id=domain_id,
            level=_level(height),
            parent=self.domain_id(first, height + 1),
            bandwidth_gbyte_s=min(known) if len(known) == len(shares) else None,
            oversubscription=self.oversubscription(switches),
            switches=tuple(switches),
        )

    def _add_rates(self, attachments: tuple[Attachment, ...], cables: tuple[Cable, ...]) -> None:
        for attachment in attachments:
            self.down[attachment.switch].append(attachment.gbit_s)
        for cable in cables:
            for near, far in ((cable.one, cable.other), (cable.other, cable.one)):
                rise = self.heights.get(far, 0) - self.heights.get(near, 0)
                if rise:
                    (self.up if rise > 0 else self.down)[near].append(cable.gbit_s)


def _level(height: int) -> str:
    return _LEVELS[height] if height < len(_LEVELS) else f"core-{height - 1}"


def _upwards_gbyte_s(domain: Domain) -> float | None:
    """Returns what each node of a domain can send out of it when all do."""
    if domain.bandwidth_gbyte_s is None or domain.oversubscription is None:
        return None
    return round(domain.bandwidth_gbyte_s / max(1.0, domain.oversubscription), 3)


def _heights(leaves: set[str], cables: tuple[Cable, ...]) -> dict[str, int]:
    beside: dict[str, list[str]] = defaultdict(list)
    for cable in cables:
        beside[cable.one].append(cable.other)
        beside[cable.other].append(cable.one)
    heights = dict.fromkeys(leaves, 0)
    waiting = deque(leaves)
    while waiting:
        switch = waiting.popleft()
        for other in beside[switch]:
            if other not in heights:
                heights[other] = heights[switch] + 1
                waiting.append(other)
    return heights


def _joined(heights: dict[str, int], cables: tuple[Cable, ...], groups: list[list[str]]) -> tuple[dict[str, str], ...]:
    sets = _Sets()
    for leaves in groups:
        for leaf in leaves:
            sets.join(leaves[0], leaf)
    at_height: dict[int, list[Cable]] = defaultdict(list)
    for cable in cables:
        if cable.one in heights and cable.other in heights:
            at_height[max(heights[cable.one], heights[cable.other])].append(cable)
    joined: list[dict[str, str]] = []
    for height in range(max(heights.values(), default=-1) + 1):
        for cable in at_height[height]:
            sets.join(cable.one, cable.other)
        joined.append({switch: sets.root(switch) for switch in heights})
    return tuple(joined)


class _Sets:
    """Disjoint sets of names."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def root(self, name: str) -> str:
        above = self._above
        while (parent := above.setdefault(name, name)) != name:
            above[name] = above[parent]
            name = parent
        return name

    def join(self, one: str, other: str) -> None:
        self._above[self.root(one)] = self.root(other)
