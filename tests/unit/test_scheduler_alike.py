"""A gang of several nodes gets the same GPUs on each of them where it can, and is told where it cannot."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.messages import NodeInfo
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.presets import preset
from phalanx.core.topology.tables import Tables
from phalanx_control.scheduler.fit import Place
from phalanx_control.scheduler.kinds import ANY_GPU
from phalanx_control.scheduler.nearest import bench_of
from tests.support.builders import node_info
from tests.support.cells import Cell, looks_like, tree

SAME = "the same GPUs on every node"


def racks(*names: str, look: NodeTopology | None = None) -> Cell:
    """Nodes below one leaf that look alike."""
    infos = [looks_like(look or preset("hgx_h100"), name) for name in names]
    return Cell.of(tree({"leaf": " ".join(names)}), infos)


def indices(place: Place) -> list[list[int]]:
    return [[int(gpu.partition("-gpu")[2]) for gpu in member.gpus] for member in place.members]


def test_what_is_free_on_both_nodes_is_taken_in_one_ring_order() -> None:
    cell = racks("n1", "n2")
    cell.hold("n1", 0, 1)
    cell.hold("n2", 6, 7)
    place = cell.place(8, 2)
    first, second = indices(place)
    assert first == second
    assert set(first) == {2, 3, 4, 5}
    assert SAME in place.sentence


def test_whole_nodes_need_no_remark() -> None:
    place = racks("n1", "n2").place(16)
    assert indices(place)[0] == indices(place)[1]
    assert SAME not in place.sentence


def test_other_nodes_as_near_are_taken_when_they_have_a_set_in_common() -> None:
    cell = racks("n1", "n2", "n3")
    cell.hold("n1", 0, 1, 2, 3, 4)
    cell.hold("n2", 4, 5, 6, 7)
    cell.hold("n3", 0, 1, 2, 3)
    place = cell.place(4, 2)
    assert [member.node_id for member in place.members] == ["n1", "n3"], "n2 is as full as n3"
    assert SAME in place.sentence


def test_where_no_set_is_free_on_all_nodes_each_gives_its_own_and_it_is_said() -> None:
    cell = racks("n1", "n2")
    cell.hold("n1", 0, 1, 2, 3)
    cell.hold("n2", 4, 5, 6, 7)
    place = cell.place(4, 2)
    assert "not the same GPUs on every node: no set of 2 is free on all of them" in place.sentence
    assert [set(each) <= part for each, part in zip(indices(place), ({4, 5, 6, 7}, {0, 1, 2, 3}), strict=True)]


def ports_down(name: str, *down: int) -> NodeInfo:
    look = preset("hgx_h100")
    return looks_like(replace(look, nics=tuple(replace(nic, up=nic.rail not in down) for nic in look.nics)), name)


def test_a_port_that_is_down_makes_no_node_another_kind_and_its_rail_is_avoided_on_all() -> None:
    cell = Cell.of(tree({"leaf": "n1 n2"}), [ports_down("n1", 0), ports_down("n2", 1, 2)])
    place = cell.place(8, 2)
    assert SAME in place.sentence
    assert indices(place)[0] == indices(place)[1]
    assert not {0, 1, 2} & set(indices(place)[0])


def test_where_only_ports_that_are_down_are_left_the_gang_is_placed_all_the_same() -> None:
    cell = Cell.of(tree({"leaf": "n1 n2"}), [ports_down("n1", 0), ports_down("n2")])
    for name in ("n1", "n2"):
        cell.hold(name, 2, 3, 4, 5, 6, 7)
    assert indices(cell.place(4, 2)) == [[0, 1], [0, 1]]


def test_nodes_of_different_kinds_give_their_own_best_sets() -> None:
    infos = [looks_like(preset("hgx_h100"), "n1"), looks_like(preset("dgx1_v100"), "n2")]
    place = Cell.of(tree({"leaf": "n1 n2"}), infos).place(4, 2)
    assert "the nodes are of different kinds" in place.sentence
    assert indices(place)[1] == [0, 3]


def test_nodes_that_say_nothing_of_their_links_get_no_remark() -> None:
    place = Cell.of(tree({"leaf": "n1 n2"})).place(4, 2)
    assert "same GPUs" not in place.sentence


def test_a_mesh_gives_the_pair_that_is_best_among_those_free_on_both() -> None:
    cell = racks("n1", "n2", look=preset("dgx1_v100"))
    cell.hold("n1", 0)
    cell.hold("n2", 7)
    first, second = indices(cell.place(4, 2))
    assert first == second
    assert tuple(sorted(first)) in {(1, 2), (1, 5), (2, 3), (5, 6)}, "two links, and free on both"


def test_partitions_of_a_shared_switch_are_given_whole_on_every_node() -> None:
    def split(name: str) -> NodeTopology:
        pairs = tuple(tuple(f"{name}-gpu{at + more}" for more in (0, 1)) for at in (0, 2, 4, 6))
        return replace(preset("hgx_h100"), partitions=pairs)

    infos = [looks_like(split(name), name) for name in ("n1", "n2", "n3")]
    cell = Cell.of(tree({"leaf": "n1 n2 n3"}), infos)
    for at in (0, 2, 4, 6):
        cell.hold("n1", at)
    cell.hold("n2", 0, 3)
    place = cell.place(4, 2)
    assert [member.node_id for member in place.members] == ["n2", "n3"], "n1 has four free GPUs and no free pair"
    assert [sorted(each) for each in indices(place)] == [[4, 5], [4, 5]]


def test_gpus_that_a_nodes_topology_does_not_name_keep_no_gang_waiting() -> None:
    look = preset("hgx_h100")
    short = replace(look, gpus=look.gpus[:2], links=(), nic_links=())
    half = replace(node_info("n1"), topology=looks_like(short, "n1").topology)
    cell = Cell.of(tree({"leaf": "n1 n2 n3"}), [half, looks_like(look, "n2"), looks_like(look, "n3")])
    assert cell.nodes(24) == ["n1", "n2", "n3"]
    assert "different kinds" in cell.place(24).sentence
    twins = [replace(node_info(name), topology=looks_like(short, name).topology) for name in ("n1", "n2")]
    assert Cell.of(tree({"leaf": "n1 n2"}), twins).nodes(16) == ["n1", "n2"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 7), max_size=6), min_size=2, max_size=5),
    st.integers(2, 3),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["hgx_h100", "dgx1_v100"]),
)
def test_a_set_in_common_is_found_wherever_there_is_one(held: list[set[int]], count: int, each: int, look: str) -> None:
    cell = racks(*(f"n{at}" for at in range(len(held))), look=preset(look))
    for at, gpus in enumerate(held):
        if gpus:
            cell.hold(f"n{at}", *gpus)
    place = cell.find(count * each, count)
    if place is None:
        return
    benches = [bench for room in cell.rooms.values() if (bench := bench_of(room, ANY_GPU)) is not None]
    tables = benches[0].tables
    assert isinstance(tables, Tables)
    sets = (places for _, group in tables.order[each] for places in group)
    there_is_one = any(sum(not places & ~bench.free for bench in benches) >= count for places in sets)
    chosen = indices(place)
    assert (len({tuple(gpus) for gpus in chosen}) == 1) or not there_is_one
    for member, gpus in zip(place.members, chosen, strict=True):
        assert not set(gpus) & held[int(member.node_id[1:])]
        assert len(set(gpus)) == each
