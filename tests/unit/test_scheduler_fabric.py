"""Gangs of several nodes: the smallest domain that holds them, few domains where none does, whole ones kept whole."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.topology.fabric import Fabric, FabricNode
from phalanx.core.topology.importers.detect import read_fabric
from phalanx.core.topology.presets import preset
from phalanx_control.scheduler.cell_fabric import known_fabric
from phalanx_control.scheduler.kinds import ANY_GPU
from tests.support.builders import node_info
from tests.support.cells import Cell, looks_like, tree
from tests.support.fabrics import members, nvl72_fabric
from tests.support.topologies import needs_samples, sample


def test_near_nodes_win_over_lower_names_though_nothing_is_required() -> None:
    cell = Cell.of(tree({"leaf-1": "n1 n3", "leaf-2": "n2 n4 n5"}, pods={"pod": "leaf-1 leaf-2"}))
    cell.hold("n1", 0)
    assert cell.nodes(16) == ["n4", "n5"] or cell.nodes(16) == ["n2", "n4"]
    assert cell.nodes(16, 2) == ["n2", "n4"]


def test_the_tightest_domain_is_taken_and_the_sentence_says_so() -> None:
    fabric = tree({"leaf-1": "n1 n2 n3", "leaf-3": "n4 n5", "leaf-10": "n6 n7"})
    place = Cell.of(fabric).place(16)
    assert place.sentence == (
        "16 GPUs: 8 on n4 (0-7) and 8 on n5 (0-7), the fewest nodes that fit: 2 nodes, "
        "both in leaf leaf-3 (tightest that fits: 2 nodes free of 2)"
    )


def test_equally_tight_domains_are_taken_by_natural_name() -> None:
    assert Cell.of(tree({"leaf-10": "n1 n2", "leaf-9": "n3 n4"})).nodes(16) == ["n3", "n4"]


def test_few_domains_the_largest_first_and_the_last_one_the_tightest() -> None:
    fabric = tree(
        {"a": "a1 a2 a3 a4", "b": "b1 b2 b3", "c": "c1 c2", "d": "d1"},
        pods={"p": "a b c d"},
    )
    cell = Cell.of(fabric)
    place = cell.place(48)
    assert [k.node_id for k in place.members] == ["a1", "a2", "a3", "a4", "c1", "c2"]
    assert "all in pod p (tightest that fits: 10 nodes free of 10); no leaf has 6 free, leaf a has 4" in place.sentence


def test_a_pod_that_holds_the_gang_wins_over_two_that_do_together() -> None:
    fabric = tree(
        {"a": "a1 a2 a3", "b": "b1", "c": "c1 c2", "d": "d1 d2"},
        pods={"p": "a b", "q": "c d"},
    )
    cell = Cell.of(fabric)
    cell.hold("b1", 0)
    assert cell.nodes(32) == ["c1", "c2", "d1", "d2"]


def test_where_no_domain_holds_the_gang_it_is_placed_all_the_same_and_told() -> None:
    cell = Cell.of(tree({"a": "n1 n2", "b": "n3"}))
    place = cell.place(24)
    assert [k.node_id for k in place.members] == ["n1", "n2", "n3"]
    assert "in no common domain; no leaf has 3 free, leaf a has 2" in place.sentence


def test_nodes_that_the_fabric_does_not_name_come_last() -> None:
    cell = Cell.of(tree({"a": "n8", "b": "n9 n7"}), [node_info(f"n{at}") for at in (1, 2, 7, 8, 9)])
    assert cell.nodes(16) == ["n7", "n9"]
    assert cell.nodes(24) == ["n8", "n7", "n9"], "both leaves, in the fabric's order"
    assert cell.nodes(32) == ["n8", "n7", "n9", "n1"]


def test_without_a_fabric_the_sentence_says_nothing_of_it() -> None:
    place = Cell.of(None, [node_info("n2"), node_info("n10")]).place(16)
    assert place.sentence == "16 GPUs: 8 on n2 (0-7) and 8 on n10 (0-7), the fewest nodes that fit: 2 nodes"


def test_parts_of_nodes_go_where_no_empty_node_is_opened() -> None:
    cell = Cell.of(tree({"a": "a1 a2", "b": "b1 b2 b3"}))
    for name in ("b1", "b3"):
        cell.hold(name, 0, 1, 2, 3)
    place = cell.place(8, 2)
    assert [k.node_id for k in place.members] == ["b1", "b3"]
    assert "both in leaf b (empty nodes elsewhere stay empty: 3 nodes free of 3)" in place.sentence


def test_one_gpu_goes_to_the_fullest_node_of_the_fullest_domain() -> None:
    cell = Cell.of(tree({"a": "a1 a2", "b": "b1 b2"}))
    cell.hold("b1", *range(8))
    assert cell.nodes(1) == ["b2"], "leaf b has one empty node left, leaf a two"
    cell.hold("a2", 0)
    assert cell.nodes(1) == ["a2"]


def test_nvlink_domains_go_before_leaves_and_agents_know_them_better() -> None:
    fabric = tree({"leaf": "n1 n2 n3 n4"})
    told = replace(fabric, nodes=tuple(replace(node, nvl_domain="old") for node in fabric.nodes))
    look = preset("hgx_h100")
    infos = [looks_like(look, name, nvl=nvl) for name, nvl in (("n1", "x"), ("n2", "y"), ("n3", "x"), ("n4", "y"))]
    cell = Cell.of(told, infos)
    cell.hold("n2", 0)
    assert cell.nodes(16) == ["n1", "n3"]
    assert "both in NVLink domain x (tightest that fits: 2 nodes free of 2)" in cell.place(16).sentence
    known = {node.id: node for node in known_fabric(cell.world.state).nodes}
    assert (known["n1"].nvl_domain, known["n1"].rails) == ("x", tuple(range(8)))


def test_an_nvlink_domain_across_leaves_is_kept_together() -> None:
    fabric = tree({"a": "n1 n2 n3", "b": "n4 n5 n6"}, pods={"p": "a b"})
    domains = {"n1": "x", "n4": "x", "n5": "x", "n2": "y", "n3": "y", "n6": "y"}
    fabric = replace(fabric, nodes=tuple(replace(node, nvl_domain=domains[node.id]) for node in fabric.nodes))
    cell = Cell.of(fabric)
    cell.hold("n6", 0)
    assert cell.nodes(32) == ["n2", "n1", "n4", "n5"], "three over NVLink, side by side"


def test_room_that_comes_free_is_used_at_once() -> None:
    cell = Cell.of(tree({"a": "n1 n2", "b": "n3 n4"}))
    gangs = [cell.hold("n1", 0), cell.hold("n3", 0)]
    assert cell.nodes(16) == ["n2", "n4"]
    cell.rooms.take_out(gangs[1].id)
    assert cell.nodes(16) == ["n3", "n4"]


def test_many_nodes_are_counted_rather_than_named() -> None:
    cell = Cell.of(tree({"a": " ".join(f"n{at}" for at in range(30))}))
    sentence = cell.place(160).sentence
    assert "8 each on n0, n1, n2, n3, n4, n5, n6 and 13 more" in sentence
    assert "all in leaf a (tightest that fits: 30 nodes free of 30)" in sentence


# ---- what waits ----


def test_a_gang_that_lacks_nodes_is_told_how_many_are_free_and_where_most_are() -> None:
    cell = Cell.of(tree({"a": "n1 n2", "b": "n3 n4"}))
    cell.hold("n1", 0)
    cell.hold("n3", *range(6))
    assert cell.find(24, 3) is None
    assert cell.why(24, 3) == (
        "needs 24 GPUs on 3 nodes; 2 of 3 nodes have 8 free, leaf a has 1 of them; "
        "next node n1 has 7 free of 8 (1 held by train of ana)"
    )


def test_a_gang_larger_than_any_node_is_told_how_many_nodes_it_lacks() -> None:
    cell = Cell.of(tree({"a": "n1 n2 n3"}))
    cell.hold("n1", 0)
    assert cell.why(24).startswith("needs 24 GPUs on 3 nodes; 2 of 3 nodes have 8 free, leaf a has 2 of them")


def test_free_gpus_that_make_no_allowed_set_are_not_counted_as_room() -> None:
    look = replace(preset("hgx_h100"), partitions=tuple(tuple(f"n1-gpu{i + j}" for j in (0, 1)) for i in (0, 2, 4, 6)))
    cell = Cell.of(None, [looks_like(look, "n1")])
    cell.hold("n1", 0)
    cell.hold("n1", 2)
    cell.hold("n1", 4)
    cell.hold("n1", 6)
    assert cell.find(2) is None
    assert "n1 has 4 free of 8, but none of the sets of 2 that may be given is free as a whole" in cell.why(2)


def test_a_node_without_an_allowed_set_is_not_counted_among_those_that_have_room() -> None:
    look = replace(preset("hgx_h100"), partitions=(("n1-gpu0", "n1-gpu1"),))
    cell = Cell.of(tree({"a": "n1 n2"}), [looks_like(look, "n1"), looks_like(preset("hgx_h100"), "n2")])
    cell.hold("n1", 0)
    assert cell.why(4, 2) == (
        "needs 4 GPUs on 2 nodes; 1 of 2 nodes has 2 free, leaf a has 1 of them; "
        "n1 has 7 free of 8, but none of the sets of 2 that may be given is free as a whole: 0 1"
    )


# ---- every cell ----


@st.composite
def cells(draw: st.DrawFn) -> tuple[Cell, int, int]:
    count = draw(st.integers(2, 7))
    leaves = dict.fromkeys("abc", "")
    domains: dict[str, str | None] = {}
    outside: list[str] = []
    for at in range(count):
        leaf = draw(st.sampled_from("abc-"))
        if leaf == "-":
            outside.append(f"n{at}")
        else:
            leaves[leaf] += f" n{at}"
        domains[f"n{at}"] = draw(st.sampled_from([None, "x", "y"]))
    fabric = tree(leaves, pods={"p": "a b", "q": "c"} if draw(st.booleans()) else None)
    nodes = (*fabric.nodes, *(FabricNode(id=name) for name in outside))
    fabric = replace(fabric, nodes=tuple(replace(node, nvl_domain=domains[node.id]) for node in nodes))
    cell = Cell.of(fabric, gpus=4)
    for name in domains:
        held = draw(st.integers(0, 4))
        if held:
            cell.hold(name, *range(held))
    return cell, draw(st.integers(2, count)), draw(st.integers(1, 4))


def rank_of(cell: Cell, names: tuple[str, ...]) -> int:
    """The smallest level at which the nodes share a domain."""
    spots = [set(cell.rooms[name].spot) for name in names]
    return min(area.rank for area in set.intersection(*spots))


@settings(max_examples=300, deadline=None)
@given(cells())
def test_no_other_nodes_would_be_nearer(drawn: tuple[Cell, int, int]) -> None:
    cell, count, each = drawn
    fitting = [name for name, room in cell.rooms.items() if room.count_free(ANY_GPU) >= each]
    found = cell.find(count * each, count)
    if len(fitting) < count:
        assert found is None
        return
    assert found is not None
    chosen = tuple(member.node_id for member in found.members)
    assert len(set(chosen)) == count
    assert set(chosen) <= set(fitting)
    assert {len(member.gpus) for member in found.members} == {each}
    assert rank_of(cell, chosen) == min(rank_of(cell, other) for other in combinations(fitting, count))


@settings(max_examples=200, deadline=None)
@given(cells())
def test_no_fewer_domains_of_the_largest_level_below_would_do(drawn: tuple[Cell, int, int]) -> None:
    cell, count, each = drawn
    found = cell.find(count * each, count)
    if found is None or any(room.spot[0].rank == 0 for room in cell.rooms.values()):
        return
    chosen = tuple(member.node_id for member in found.members)
    top = rank_of(cell, chosen)
    fitting = [name for name, room in cell.rooms.items() if room.count_free(ANY_GPU) >= each]
    alike = [other for other in combinations(fitting, count) if rank_of(cell, other) == top]
    assert parts(cell, chosen, top - 1) == min(parts(cell, other, top - 1) for other in alike)


def parts(cell: Cell, names: tuple[str, ...], rank: int) -> int:
    """How many domains of a level the nodes lie in; a node without one counts for itself."""
    spots = {name: cell.rooms[name].spot for name in names}
    return len({next((area.id for area in spot if area.rank == rank), name) for name, spot in spots.items()})


# ---- fabrics that people know ----


def test_a_gang_of_an_nvlink_rack_stays_in_one_and_two_racks_share_a_spine() -> None:
    fabric = nvl72_fabric()
    cell = Cell.of(fabric, gpus=4)
    assert set(cell.nodes(72)) == set(members(fabric, "leaf")["leaf-1-1"])
    cell.hold("tray1101", 0)
    assert set(cell.nodes(72)) == set(members(fabric, "leaf")["leaf-1-2"])
    assert "all in NVLink domain nvl-1-2" in cell.place(72).sentence
    two = cell.nodes(144)
    assert set(two) == set(members(fabric, "spine")["spine-2"])
    assert two == sorted(two)


def lie_in(fabric: Fabric, names: list[str], level: str) -> set[str]:
    return {domain.id for name in names if (domain := fabric.domain_at(name, level))}


@needs_samples
@pytest.mark.parametrize("nodes", [2, 8, 16, 40])
def test_the_slurm_sample_is_filled_leaf_by_leaf(nodes: int) -> None:
    fabric = read_fabric(sample("slurm_tree_topology.conf"))
    names = Cell.of(fabric).nodes(8 * nodes, nodes)
    assert len(lie_in(fabric, names, fabric.levels[0])) == -(-nodes // 8)
    assert len(lie_in(fabric, names, fabric.levels[1])) == -(-nodes // 16)


@needs_samples
def test_the_rail_groups_of_the_gb200_sample_hold_what_they_can() -> None:
    fabric = read_fabric(sample("gb200_fabric_ibnetdiscover.out"))
    cell = Cell.of(fabric, gpus=4)
    for nodes, groups in ((11, 1), (18, 1), (19, 2), (36, 2)):
        assert len(lie_in(fabric, cell.nodes(4 * nodes, nodes), "rail-group")) == groups
    assert "all in rail group leaf-" in cell.place(44, 11).sentence


@needs_samples
def test_the_nvl72_sample_is_placed_as_its_answers_say() -> None:
    ranges = re.findall(r"node\[(\d+)-(\d+)\]", sample("nvl72_fabric_model.yaml.txt"))
    racks = [[f"node{n}" for n in range(int(first), int(last) + 1)] for first, last in ranges]
    fabric = nvl72_fabric()
    own = tuple(replace(node, id=node.id.replace("tray", "node")) for node in fabric.nodes)
    cell = Cell.of(replace(fabric, nodes=own), gpus=4)
    assert [len(rack) for rack in racks] == [18] * 4
    assert cell.nodes(18 * 4) == racks[0]
    assert cell.nodes(36 * 4) == [*racks[0], *racks[1]]
    assert cell.nodes(72 * 4) == [name for rack in racks for name in rack]
