"""A gang gets the best-connected of a node's free GPUs, in ring order, and the reason; lowest indices where unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core import messages as m
from phalanx.core.errors import UnschedulableError
from phalanx.core.states import GpuState
from phalanx.core.topology.codec import to_json
from phalanx.core.topology.node import Gpu, Health, Link, MigDevice, NodeTopology, Path
from phalanx.core.topology.presets import preset
from phalanx_control.scheduler.capacity import ensure_possible
from phalanx_control.scheduler.fit import Place, find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import rooms_of
from tests.support.builders import World, node_info, spec
from tests.support.cells import Cell, looks_like


def node(name: str, topology: NodeTopology, *, taken: tuple[int, ...] = ()) -> m.NodeInfo:
    """A node that looks like ``topology``, some of whose GPUs are down."""
    info = node_info(name, gpus=len(topology.gpus))
    own = tuple(replace(gpu, uuid=f"{name}-gpu{gpu.index}") for gpu in topology.gpus)
    gpus = tuple(replace(g, state=GpuState.DOWN) if g.index in taken else g for g in info.gpus)
    return replace(info, gpus=gpus, topology=to_json(replace(topology, gpus=own)))


def place(world: World, gpus: int, nodes: int | None = None) -> Place | None:
    return find_place(Need(spec=spec(gpus=gpus, nodes=nodes or 0), workspace="default"), rooms_of(world.state))


def ring(found: Place | None, member: int = 0) -> list[int]:
    assert found is not None
    return [int(gpu.partition("-gpu")[2]) for gpu in found.members[member].gpus]


def test_a_pair_of_a_cube_mesh_has_two_links() -> None:
    world = World(node("n1", preset("dgx1_v100")))
    found = place(world, 2)
    assert ring(found) == [0, 3]
    assert found is not None
    assert "one node; ring 0-3 at 40.0 GB/s" in found.sentence


def test_a_place_that_is_worse_than_the_node_could_give_says_by_how_much_and_who_has_the_rest() -> None:
    cell = Cell.of(None, [looks_like(preset("dgx1_v100"), "n1")])
    best = cell.place(2)
    assert "less than" not in best.sentence
    cell.hold("n1", *range(2, 8))
    found = cell.place(2)
    assert found.sentence.endswith("50% less than the 40.0 GB/s of 0, 3: 3 held by train of ana")
    foreign = find_place(Need(spec=spec(gpus=2), workspace="other"), cell.rooms)
    assert foreign is not None
    assert foreign.sentence.endswith("3 held by others")


def test_the_ring_of_a_gang_of_two_nodes_is_told_as_one_nodes_own() -> None:
    found = place(World(*(node(f"n{at}", preset("hgx_h100")) for at in range(4))), 16)
    assert found is not None
    assert "2 nodes; within n0: ring 0-1-2-3-4-5-6-7 at 370.8 GB/s" in found.sentence
    assert found.sentence.endswith("no other set on the node fits")


@pytest.mark.parametrize(("free", "pair"), [("0 1 3", [0, 3]), ("0 1 4", [0, 4]), ("0 4 5 6", [5, 6])])
def test_free_gpus_that_are_connected_win_over_lower_indices(free: str, pair: list[int]) -> None:
    taken = tuple(at for at in range(8) if str(at) not in free.split())
    world = World(node("n1", preset("dgx1_v100"), taken=taken))
    assert sorted(ring(place(world, 2))) == pair


def test_ranks_stand_in_the_order_of_the_best_ring() -> None:
    world = World(node("n1", preset("dgx1_v100")))
    order = ring(place(world, 4))
    topology = preset("dgx1_v100")
    slowest = min(topology.links[a][b].nvlinks or 0 for a, b in zip(order, [*order[1:], order[0]], strict=True))
    assert sorted(order) == [0, 1, 2, 3]
    assert slowest == 1, order


def test_nodes_that_look_alike_each_give_their_own() -> None:
    world = World(node("n1", preset("hgx_h100")), node("n2", preset("hgx_h100"), taken=(0, 1)))
    assert place(world, 16) is None
    found = place(world, 12, nodes=2)
    assert found is not None
    assert len(set(ring(found, 0))) == 6
    assert sorted(ring(found, 1)) == [2, 3, 4, 5, 6, 7]
    assert {gpu.partition("-")[0] for gpu in found.members[1].gpus} == {"n2"}


def test_a_switched_partition_is_given_whole() -> None:
    topology = preset("hgx_h100")
    topology = replace(topology, partitions=(tuple(f"n1-gpu{i}" for i in (0, 1, 2, 3)), ("n1-gpu4", "n1-gpu5")))
    world = World(node("n1", topology))
    assert sorted(ring(place(world, 2))) == [4, 5]
    assert sorted(ring(place(world, 4))) == [0, 1, 2, 3]
    assert place(world, 3) is None


def test_a_node_whose_free_gpus_make_no_legal_set_is_passed_over() -> None:
    split = replace(preset("hgx_h100"), partitions=(("n1-gpu0", "n1-gpu1"),))
    world = World(node("n1", split, taken=(0,)), node("n2", preset("hgx_h100")))
    found = place(world, 2)
    assert found is not None
    assert found.members[0].node_id == "n2"


def test_a_pair_that_copies_wrongly_is_never_used() -> None:
    topology = preset("dgx1_v100")
    bad = Link(nvlinks=2, switched=False, copies=False)
    links = [list(row) for row in topology.links]
    links[0][3] = links[3][0] = bad
    world = World(node("n1", replace(topology, links=tuple(map(tuple, links)))))
    assert sorted(ring(place(world, 2))) != [0, 3]
    world = World(node("n1", replace(topology, links=tuple(map(tuple, links))), taken=(1, 2, 4, 5, 6, 7)))
    assert place(world, 2) is None


@pytest.mark.parametrize("text", ["", "not a topology", "{}"])
def test_without_a_topology_the_lowest_indices(text: str) -> None:
    world = World(replace(node_info("n1"), topology=text))
    assert ring(place(world, 3)) == [0, 1, 2]


def three_islands(wrong: tuple[int, int] | None = None) -> NodeTopology:
    """24 GPUs of which every third is joined by NVLinks; one pair may copy wrongly."""

    def link(i: int, j: int) -> Link:
        if i == j:
            return Link()
        right = None if {i, j} != set(wrong or ()) else False
        return Link(nvlinks=4 if i % 3 == j % 3 else 0, path=Path.SYS, copies=right)

    gpus = tuple(Gpu(uuid=f"g{i}", index=i, compute=80) for i in range(24))
    return NodeTopology(gpus=gpus, links=tuple(tuple(link(i, j) for j in range(24)) for i in range(24)))


def test_of_more_gpus_than_a_table_holds_a_gang_gets_one_island() -> None:
    world = World(node("n1", three_islands()))
    assert sorted(ring(place(world, 8))) == list(range(0, 24, 3))
    world = World(node("n1", three_islands(), taken=(0, 1, 3)))
    found = place(world, 7)
    assert sorted(ring(found)) == list(range(4, 24, 3))
    assert found is not None
    assert "within one island" in found.sentence


def test_a_pair_that_copies_wrongly_is_not_given_on_a_large_node_either() -> None:
    world = World(node("n1", three_islands(wrong=(0, 3)), taken=tuple(i for i in range(24) if i not in (0, 3))))
    assert place(world, 2) is None
    world = World(node("n1", three_islands(wrong=(0, 3)), taken=tuple(i for i in range(24) if i not in (0, 3, 9))))
    assert set(ring(place(world, 2))) != {0, 3}


def test_large_nodes_without_free_gpus_in_common_give_their_own() -> None:
    first = node("n1", three_islands(), taken=tuple(range(2, 24)))
    second = node("n2", three_islands(), taken=tuple(range(22)))
    found = place(World(first, second), 4, nodes=2)
    assert [sorted(ring(found, at)) for at in (0, 1)] == [[0, 1], [22, 23]]


def test_gpus_that_are_split_are_given_to_no_gang() -> None:
    topology = preset("hgx_a100")
    parts = tuple(
        replace(gpu, mig=tuple(MigDevice(uuid=f"M{gpu.index}-{i}", profile="1g.10gb") for i in range(7)))
        for gpu in topology.gpus
    )
    world = World(node("n1", replace(topology, gpus=parts)))
    assert place(world, 2) is None


# ---- what can never be, and what nobody knows ----


def refused(world: World, gpus: int, *, nodes: int = 0, model: str = "") -> str:
    with pytest.raises(UnschedulableError) as caught:
        ensure_possible(world.state, spec(gpus=gpus, nodes=nodes, gpu=model))
    return str(caught.value)


def partitioned(name: str) -> m.NodeInfo:
    topology = preset("hgx_h100")
    uuids = [f"{name}-gpu{gpu.index}" for gpu in topology.gpus]
    halves = (tuple(uuids[:4]), tuple(uuids[4:]))
    return node(name, replace(topology, partitions=(tuple(uuids), *halves, *((uuid,) for uuid in uuids))))


def split(name: str, *, whole: int = 0) -> m.NodeInfo:
    """A node whose GPUs are in MIG mode, but for the first ``whole``."""
    topology = preset("hgx_h100")
    gpus = tuple(gpu if at < whole else replace(gpu, mig_enabled=True) for at, gpu in enumerate(topology.gpus))
    return node(name, replace(topology, gpus=gpus))


def test_a_gang_that_no_partition_of_any_node_can_hold_is_refused_with_the_reason() -> None:
    world = World(partitioned("n1"), partitioned("n2"))
    why = refused(world, 6, nodes=1)
    assert "n1 cannot give 6 GPUs to one gang: its shared NVSwitch gives sets of 1, 4, 8 only, never 6" in why
    assert "(1 more nodes are like that)" in why
    ensure_possible(world.state, spec(gpus=4))
    ensure_possible(world.state, spec(gpus=2))  # one GPU on each of two nodes
    ensure_possible(World(partitioned("n1"), node("n2", preset("hgx_h100"))).state, spec(gpus=6, nodes=1))


@pytest.mark.parametrize(("whole", "gpus"), [(0, 1), (0, 8), (2, 4)])
def test_a_gang_for_which_only_split_gpus_are_there_is_refused_with_the_reason(whole: int, gpus: int) -> None:
    why = refused(World(split("n1", whole=whole)), gpus)
    assert f"{8 - whole} of its 8 GPUs are in MIG mode, and parts of GPUs are not leased" in why
    ensure_possible(World(split("n1", whole=2)).state, spec(gpus=2))


def test_what_is_only_so_for_now_refuses_nobody() -> None:
    topology = preset("hgx_h100")
    lost = replace(topology, gpus=tuple(replace(gpu, health=Health.LOST, reason="off") for gpu in topology.gpus))
    wrong = tuple(tuple(replace(link, copies=False) for link in row) for row in topology.links)
    for momentary in (lost, replace(topology, links=wrong)):
        world = World(node("n1", momentary, taken=(0, 1, 2)))
        ensure_possible(world.state, spec(gpus=8))
        assert place(world, 8) is None


def test_gpus_that_the_topology_does_not_name_are_given_after_those_that_it_does() -> None:
    info = node("n1", preset("dgx1_v100"))
    more = tuple(replace(info.gpus[0], uuid=f"n1-gpu{at}", index=at) for at in (8, 9))
    world = World(replace(info, gpus=(*info.gpus, *more)))
    assert sorted(ring(place(world, 10))) == list(range(10))
    assert sorted(ring(place(world, 8))) == list(range(8))
    found = place(world, 9)
    assert found is not None
    assert "1 of them without known links" in found.sentence
    taken = tuple(replace(gpu, state=GpuState.DOWN) for gpu in info.gpus)
    assert ring(place(World(replace(info, gpus=(*taken, *more))), 2)) == [8, 9]


def test_a_split_gpu_is_not_taken_for_one_that_nobody_knows() -> None:
    parts = (MigDevice(uuid="MIG-1", profile="1g.10gb"),)
    topology = preset("hgx_h100")
    gpus = tuple(replace(gpu, mig=parts, mig_enabled=True) if at < 6 else gpu for at, gpu in enumerate(topology.gpus))
    world = World(node("n1", replace(topology, gpus=gpus)))
    assert place(world, 3) is None
    assert sorted(ring(place(world, 2))) == [6, 7]
