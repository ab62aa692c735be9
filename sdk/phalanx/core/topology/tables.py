"""Tables over all subsets of one node's devices, built once per topology: what a choice then only looks up.

A subset is an integer whose bits are positions in `devices`. Its score is one integer too, compared between subsets of
the same size: the fields of `Score`, most important first. Up to 16 devices; nodes with more are `islands.py`'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from operator import add

from phalanx.core.topology import bitsets, devices
from phalanx.core.topology.devices import Device, NicSight
from phalanx.core.topology.figures import Figures, figures_of
from phalanx.core.topology.leftover import SIZES, Groups, coarser, leftover_values
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.rings import Rings, Weights, best_rings
from phalanx.core.topology.rules import Rules, names

MOST_DEVICES = 16

_RAILS_BITS, _NIC_BITS, _NUMA_BITS, _PAIRS_BITS = 8, 12, 10, 40
_NIC_AT = _RAILS_BITS
_NUMA_AT = _NIC_AT + _NIC_BITS
_PAIRS_AT = _NUMA_AT + _NUMA_BITS
_RING_AT = _PAIRS_AT + _PAIRS_BITS


@dataclass(frozen=True, slots=True)
class Score:
    """A score taken apart. ``nic_closeness``: 5 for each GPU beside a port to 1 across sockets, 0 unknown, added up."""

    ring_mbyte_s: int
    pairs_mbyte_s: int
    numa_nodes: int
    nic_closeness: int
    rails: int

    @classmethod
    def of(cls, score: int) -> Score:
        return cls(
            score >> _RING_AT,
            _field(score, _PAIRS_AT, _PAIRS_BITS),
            MOST_DEVICES - _field(score, _NUMA_AT, _NUMA_BITS),
            _field(score, _NIC_AT, _NIC_BITS),
            _field(score, 0, _RAILS_BITS),
        )


def _field(score: int, at: int, bits: int) -> int:
    return score >> at & ((1 << bits) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """``order[size]``: groups of equally good sets a gang may have, best first, lowest indices first within a group."""

    devices: tuple[Device, ...]
    weights: Weights
    rings: Rings
    score: list[int]
    order: tuple[Groups, ...]
    leftover: list[int]
    nearness: Sequence[int]
    """How near the GPUs of a set are on PCIe, over its pairs; settles ties between NVLinked sets only."""
    islands: tuple[int, ...]
    """NVLinked sets of two or more."""
    partners: tuple[int, ...]
    """For each position: those with which it is an NVLinked pair as good as any of the node."""
    rules: Rules

    def names(self, mask: int) -> str:
        """Returns what people call the members."""
        return names(self.devices, mask)

    def spoils(self, free: int, single: int) -> tuple[bool, bool, int, int, int]:
        """Returns what taking one free device spoils: a complete pair, a whole island, the leftover, now and once all
        others are free, its links to those that are."""
        rest = free ^ single
        at = single.bit_length() - 1
        whole = any(island & single and not island & ~free for island in self.islands)
        links = sum(map(self.weights[at].__getitem__, bitsets.positions(rest)))
        later = self.leftover[self.rules.usable ^ single]
        return bool(self.partners[at] & rest), whole, -self.leftover[rest], -later, links


def build_tables(node: NodeTopology, figures: Figures | None = None) -> Tables:
    """Returns the tables of a node with at most 16 devices. Raises ValueError for more."""
    return tables_of(node, devices.devices_of(node), figures or figures_of(node))


def tables_of(node: NodeTopology, members: tuple[Device, ...], figures: Figures) -> Tables:
    """Returns the tables of some of a node's devices, at most 16."""
    if len(members) > MOST_DEVICES:
        raise ValueError(f"{len(members)} devices; tables hold at most {MOST_DEVICES}")
    weights = devices.weights_of(node, members, figures)
    rings = best_rings(weights)
    score = _scores(node, members, weights, rings)
    rules = Rules.of(node, members)
    order = tuple(_grouped(rules.allowed(masks), score) for masks in _lowest_first(len(members)))
    return Tables(
        devices=members,
        weights=weights,
        rings=rings,
        score=score,
        order=order,
        leftover=_leftover(order, len(members), rules.mig),
        nearness=_pair_sums(devices.nearness_of(node, members), [0] * len(members)),
        islands=tuple(island for island in devices.island_masks(node, members) if island.bit_count() > 1),
        partners=devices.nvlink_partners(node, members, weights),
        rules=rules,
    )


def _scores(node: NodeTopology, members: tuple[Device, ...], weights: Weights, rings: Rings) -> list[int]:
    sights = devices.nic_sights(node, members)
    pairs = tuple(tuple(weight << _PAIRS_AT for weight in row) for row in weights)
    total = _pair_sums(pairs, [sight.closeness << _NIC_AT for sight in sights])
    ring = [0] + [level << _RING_AT for level in rings.levels]
    parts = (
        map(ring.__getitem__, rings.reached),
        _numa_part(devices.numa_places(node, members)),
        _distinct_rails(sights),
    )
    for part in parts:
        total = list(map(add, total, part))
    return total


def _pair_sums(pairs: Weights, first: list[int]) -> list[int]:
    """For each subset: the figures of its pairs and of its members, added up."""
    sums = [0]
    for at, row in enumerate(pairs):
        gained = [first[at]]
        for other in range(at):
            gained += list(map(add, gained, repeat(row[other])))
        sums += list(map(add, sums, gained))
    return sums


def _numa_part(places: tuple[int, ...]) -> list[int]:
    nodes = [0]
    for place in places:
        bit = 1 << place
        nodes += [seen | bit for seen in nodes]
    parts = [(MOST_DEVICES - number) << _NUMA_AT for number in range(MOST_DEVICES + 1)]
    return list(map(parts.__getitem__, map(int.bit_count, nodes)))


def _distinct_rails(sights: tuple[NicSight, ...]) -> bytes:
    """For each subset: how many members can have a nearest rail of their own at the same time."""
    count = len(sights)
    lacking = bitsets.without(count)
    matched = by_size = 1
    for rail in range(max((sight.rails for sight in sights), default=0).bit_length()):
        served = matched
        for at, sight in enumerate(sights):
            if sight.rails >> rail & 1:
                served |= (matched & lacking[at]) << (1 << at)
        matched = served
    layers: list[int] = []
    sizes = _by_size(count)
    for size in range(1, count + 1):
        by_size = matched & sizes[size]
        if by_size:
            layers.append(bitsets.supersets(by_size, lacking))
    return bitsets.counts(layers, count)


def _by_size(count: int) -> list[int]:
    sizes = [1] + [0] * count
    for at in range(count):
        sizes = [sizes[0]] + [sizes[size] | sizes[size - 1] << (1 << at) for size in range(1, count + 1)]
    return sizes


def _grouped(masks: Sequence[int], score: list[int]) -> Groups:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for mask in masks:
        groups[score[mask]].append(mask)
    return sorted(groups.items(), reverse=True)


@lru_cache(maxsize=MOST_DEVICES + 1)
def _lowest_first(count: int) -> tuple[tuple[int, ...], ...]:
    """All subsets by size; of two of a size, the one whose indices come first in a dictionary comes first."""
    mirrored = [0]
    for at in range(count):
        bit = 1 << (count - 1 - at)
        mirrored += [mask | bit for mask in mirrored]
    sizes: list[list[int]] = [[] for _ in range(count + 1)]
    for mask in reversed(mirrored):
        sizes[mask.bit_count()].append(mask)
    return tuple(map(tuple, sizes))


def _leftover(order: tuple[Groups, ...], count: int, mig: int) -> list[int]:
    groups = {size: _for_others(order[size], mig) for size in SIZES if size <= count}
    return leftover_values(groups, count, (_PAIRS_AT, _RING_AT))


def _for_others(groups: Groups, mig: int) -> Groups:
    """By links and NUMA nodes only: a choice by network ports takes the near ones, wherever the best links are left."""
    if mig:
        groups = [(value, [mask for mask in masks if not mask & mig]) for value, masks in groups]
    return coarser([group for group in groups if group[1]], _NUMA_AT)
