"""Tables over all subsets, against trying everything: rings, scores, leftovers, and choices on any node."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.topology import bitsets
from phalanx.core.topology.choice import choose
from phalanx.core.topology.leftover import SIZES, leftover_values
from phalanx.core.topology.node import Gpu, Link, Nic, NicLink, NodeTopology, Path
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.rings import best_rings, slowest
from phalanx.core.topology.tables import Score, Tables, build_tables
from tests.support import brute_force
from tests.support.choice_answers import dgx2, linked

LINKS = st.builds(Link, nvlinks=st.sampled_from([None, 0, 0, 1, 2, 4]), path=st.sampled_from([None, *Path]))
NEAR = st.builds(NicLink, path=st.sampled_from([None, *Path]))


@st.composite
def nodes(draw: st.DrawFn, most: int = 7) -> NodeTopology:
    """Any links, NUMA nodes and ports; nothing need make sense together."""
    count = draw(st.integers(1, most))
    above = {(i, j): draw(LINKS) for i in range(count) for j in range(i)}
    ports = draw(st.integers(0, 3))
    numa = st.sampled_from([None, (0,), (1,), (0, 4)])
    rails = st.sampled_from([None, 0, 1])
    return NodeTopology(
        gpus=tuple(Gpu(uuid=f"GPU-{at}", index=at, numa=draw(numa), compute=70) for at in range(count)),
        links=tuple(
            tuple(Link() if i == j else above[max(i, j), min(i, j)] for j in range(count)) for i in range(count)
        ),
        nics=tuple(Nic(name=f"port{at}", rail=draw(rails)) for at in range(ports)),
        nic_links=tuple(tuple(draw(NEAR) for _ in range(ports)) for _ in range(count)),
    )


@st.composite
def weights(draw: st.DrawFn, most: int = 7) -> tuple[tuple[int, ...], ...]:
    count = draw(st.integers(1, most))
    figures = draw(st.lists(st.integers(1, 9), min_size=count * count, max_size=count * count))
    return tuple(
        tuple(0 if i == j else figures[max(i, j) * count + min(i, j)] for j in range(count)) for i in range(count)
    )


@given(weights())
def test_the_best_ring_of_every_subset_is_the_best_there_is_and_is_given_in_its_order(
    table: tuple[tuple[int, ...], ...],
) -> None:
    rings = best_rings(table)
    for mask in range(1, 1 << len(table)):
        ring = rings.ring(mask)
        assert sorted(ring) == list(brute_force.members_of(mask))
        assert slowest(table, ring) == rings.bottleneck(mask) == brute_force.best_ring(table, mask)


def test_no_gpus_and_one_have_no_ring_to_speak_of() -> None:
    assert best_rings(()).ring(0) == ()
    one = best_rings(((0,),))
    assert (one.bottleneck(1), one.ring(1)) == (0, (0,))


@given(nodes(), st.data())
@settings(max_examples=150)
def test_a_choice_has_the_best_ring_there_is_and_asking_again_gives_the_same(
    node: NodeTopology, data: st.DataObject
) -> None:
    tables = build_tables(node)
    free = data.draw(st.integers(1, (1 << len(node.gpus)) - 1))
    size = data.draw(st.integers(1, free.bit_count()))
    required = data.draw(st.sampled_from([0, free & -free]))
    chosen = choose(tables, free, size, required=required)
    assert isinstance(chosen, Chosen)
    assert not chosen.mask & ~free
    assert chosen.mask & required == required
    assert chosen.mask.bit_count() == size
    fitting = [mask for mask in brute_force.subsets(free, size) if mask & required == required]
    best = max(brute_force.best_ring(tables.weights, mask) for mask in fitting)
    assert size == 1 or slowest(tables.weights, chosen.ring) == best
    assert sorted(chosen.ring) == list(brute_force.members_of(chosen.mask))
    again = choose(build_tables(node), free, size, required=required)
    assert isinstance(again, Chosen)
    assert (again.mask, again.ring, again.why) == (chosen.mask, chosen.ring, chosen.why)


@given(nodes(most=6), st.data())
def test_among_equal_scores_the_best_leftover_wins_then_the_lowest_indices(
    node: NodeTopology, data: st.DataObject
) -> None:
    tables = build_tables(node)
    free = data.draw(st.integers(1, (1 << len(node.gpus)) - 1))
    size = data.draw(st.integers(1, free.bit_count()))

    def rank(mask: int) -> tuple[int, ...]:
        later = tables.leftover[tables.rules.usable ^ mask]
        return tables.score[mask], tables.leftover[free ^ mask], later, tables.nearness[mask]

    masks = brute_force.subsets(free, size)
    chosen = choose(tables, free, size)
    assert isinstance(chosen, Chosen)
    if size > 1:
        assert chosen.mask == max(masks, key=rank)
    else:
        assert chosen.mask == min(masks, key=lambda mask: (tables.spoils(free, mask), mask))
    if len(masks) > 1:
        others = [mask for mask in masks if mask != chosen.mask]
        assert chosen.runner_up == (max(others, key=rank) if size > 1 else chosen.runner_up)


@given(nodes(most=5))
def test_every_score_is_what_its_fields_say(node: NodeTopology) -> None:
    tables = build_tables(node)
    for mask in range(1 << len(node.gpus)):
        members = brute_force.members_of(mask)
        score = Score.of(tables.score[mask])
        assert score.ring_mbyte_s == (brute_force.best_ring(tables.weights, mask) if members else 0)
        assert score.pairs_mbyte_s == brute_force.pair_sum(tables.weights, mask)
        assert score.numa_nodes == len({(numa[0] if (numa := node.gpus[at].numa) else f"of {at}") for at in members})
        assert score.nic_closeness == sum(closeness(node, at) for at in members)
        assert score.rails == brute_force.most_distinct([near_rails(node, at) for at in members])


def closeness(node: NodeTopology, gpu: int) -> int:
    return max((5 - link.path.distance for link in node.nic_links[gpu] if link.path), default=0)


def near_rails(node: NodeTopology, gpu: int) -> frozenset[int]:
    near = [
        nic.rail
        for nic, link in zip(node.nics, node.nic_links[gpu], strict=True)
        if link.path and 5 - link.path.distance == closeness(node, gpu)
    ]
    return frozenset(rail for rail in near if rail is not None)


@given(weights())
def test_the_leftover_counts_the_disjoint_sets_of_every_quality(table: tuple[tuple[int, ...], ...]) -> None:
    count = len(table)
    groups = {size: grouped(table, size) for size in SIZES}
    values = leftover_values(groups, count, ())
    for free in range(1 << count):
        assert values[free] == sum(size * layered(sets, free) for size, sets in groups.items())


def grouped(table: tuple[tuple[int, ...], ...], size: int) -> list[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {}
    for mask in brute_force.subsets((1 << len(table)) - 1, size):
        found.setdefault(brute_force.pair_sum(table, mask), []).append(mask)
    return sorted(found.items(), reverse=True)


def layered(groups: list[tuple[int, list[int]]], free: int) -> int:
    """For each quality: what it adds over the next lower one, for each disjoint set at least that good."""
    total, sets = 0, list[int]()
    for (quality, masks), below in zip(groups, [*(value for value, _ in groups[1:]), 0], strict=False):
        sets += masks
        total += (quality - below) * brute_force.most_disjoint(sets, free)
    return total


@pytest.mark.parametrize("pairs", ["01 23 45 67", "02 13 46 57", "04 15 26 37"])
def test_the_leftover_of_a_node_of_equal_pairs_is_the_value_of_its_best_split(pairs: str) -> None:
    counts = {(int(pair[1]), int(pair[0])): 4 for pair in pairs.split()}
    tables = build_tables(linked(8, counts, sockets=(8,), switches=(), compute=86))
    whole, broken = (1 << 8) - 1, (1 << 8) - 2
    quad = next(masks[0] for value, masks in tables.order[4] if value)
    assert tables.leftover[quad] == 2 * 2 * tables.order[2][0][0] + 4 * tables.score[quad]
    assert tables.leftover[broken] < tables.leftover[whole]


@pytest.mark.parametrize("free", [0xFFFF, 0x7FFE, 0x0F0F, 0x1357])
def test_the_leftover_of_sixteen_gpus_counts_what_fits(free: int) -> None:
    tables = build_tables(dgx2())
    values = Score.of(tables.leftover[free])
    per_ring = 120_000
    assert values.ring_mbyte_s == per_ring * sum(free.bit_count() // size * size for size in SIZES)


@given(st.sets(st.integers(0, 63)), st.integers(6, 7))
def test_families_of_sets_are_kept_as_they_are(masks: set[int], count: int) -> None:
    family = bitsets.family(masks, count)
    assert {mask for mask in range(1 << count) if family >> mask & 1} == masks
    assert bitsets.counts([family, family], count) == bytes(2 * (mask in masks) for mask in range(1 << count))
    above = bitsets.supersets(family, bitsets.without(count))
    assert {mask for mask in range(1 << count) if above >> mask & 1} == {
        mask for mask in range(1 << count) if any(mask & each == each for each in masks)
    }


@given(st.sets(st.integers(0, 20)))
def test_a_set_is_its_positions(members: set[int]) -> None:
    assert set(bitsets.positions(bitsets.mask_of(members))) == members


def wide(count: int) -> NodeTopology:
    """Pairs, quads and halves below PCIe switches, with a few NVLinks that fit none of it."""
    counts = {(j, i): (i * 7 + j * 3) % 4 for i, j in combinations(range(count), 2) if (i + j) % 3 == 0}
    return linked(count, counts, sockets=(count // 2, count - count // 2), switches=(), compute=80)


@pytest.mark.parametrize("count", [9, 11, 13, 16])
def test_choices_beyond_eight_gpus_are_exact_too(count: int) -> None:
    tables: Tables = build_tables(wide(count))
    for size in (2, 3, 4):
        chosen = choose(tables, (1 << count) - 2, size)
        assert isinstance(chosen, Chosen)
        assert slowest(tables.weights, chosen.ring) == brute_force.best_among(tables.weights, (1 << count) - 2, size)
