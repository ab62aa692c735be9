"""What functions say of where their gangs may be: memory of GPUs, isolation, spread, NVLink domains and rails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from phalanx.core import messages as m
from phalanx.core.errors import InvalidSpecError, UnschedulableError, VersionError
from phalanx.core.spec import FunctionSpec, Limits, Resources
from phalanx.core.topology.presets import preset
from phalanx_control.lifecycle.decide import decide
from phalanx_control.scheduler.capacity import ensure_possible
from phalanx_control.scheduler.explain import why_it_waits
from phalanx_control.scheduler.fit import Place, find_place
from phalanx_control.scheduler.fleet import picture_of
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.reserve import reservation_for
from phalanx_control.state import commands as c
from phalanx_control.state import schemas
from tests.support.builders import ANA, BOB, World, call_id, node_info, spec
from tests.support.cells import Cell, looks_like, tree
from tests.support.pictures import check_picture


def asks(**resources: Any) -> Need:
    return Need(spec=spec(**resources), workspace="default")


def place(cell: Cell, **resources: Any) -> Place | None:
    return find_place(asks(**resources), cell.rooms)


def nodes(found: Place | None) -> list[str]:
    return [member.node_id for member in found.members] if found is not None else []


def why(cell: Cell, **resources: Any) -> str:
    return why_it_waits(asks(**resources), cell.rooms)


def refused(cell: Cell, **resources: Any) -> str:
    with pytest.raises(UnschedulableError) as error:
        ensure_possible(cell.world.state, spec(**resources))
    return str(error.value)


# ---- memory ----


def with_memory(name: str, gb: int) -> m.NodeInfo:
    info = node_info(name, gpus=4)
    return replace(info, gpus=tuple(replace(gpu, memory_bytes=gb * 10**9) for gpu in info.gpus))


def test_only_gpus_with_enough_memory_will_do() -> None:
    cell = Cell.of(None, [with_memory("a", 40), with_memory("b", 80), with_memory("unknown", 0)])
    for gpus in (4, 2, 0.5):
        assert nodes(place(cell, gpus=gpus, min_memory_gb=80)) == ["b"]
        assert nodes(place(cell, gpus=gpus, min_memory_gb=41)) == ["b"]
    assert nodes(place(cell, gpus=8, min_memory_gb=40)) == ["a", "b"]
    assert place(cell, gpus=8, min_memory_gb=80) is None


def test_memory_that_no_gpu_has_is_refused_with_what_there_is() -> None:
    cell = Cell.of(None, [with_memory("a", 40), with_memory("b", 80)])
    ensure_possible(cell.world.state, spec(gpus=4, min_memory_gb=80))
    told = refused(cell, gpus=2, min_memory_gb=141)
    assert "asks for 2 GPUs of 141 GB or more; this cell has no such GPU" in told
    assert "only NVIDIA H100 of 40 GB, NVIDIA H100 of 80 GB" in told
    assert "this cell has 4 GPUs of 80 GB or more on 2 nodes" in refused(cell, gpus=8, min_memory_gb=80)


def test_a_call_that_waits_for_memory_says_how_much() -> None:
    cell = Cell.of(None, [with_memory("a", 40), with_memory("b", 80)])
    cell.hold("b", 0, 1, 2)
    assert "needs 2 GPUs of 80 GB or more on 1 node; best node b has 1 free of 4" in why(cell, gpus=2, min_memory_gb=80)


# ---- isolation ----


def isolated(world: World, n: int = 1, *, gpus: float = 2) -> None:
    world.submit(n, world.register(spec(f"alone{n}", gpus=gpus, isolation="node", limits=Limits(retries=1))))
    world.schedule()


def test_an_isolated_gang_goes_only_where_nobody_is_and_keeps_others_off() -> None:
    world = World(node_info("n1"), node_info("n2"))
    world.ready_gang(world.register(spec(gpus=1)), 1)
    isolated(world, 2)
    gang = next(g for g in world.state.gangs.values() if g.for_call == call_id(2))
    assert gang.lead == "n2"
    for n, gpus in enumerate((6, 0.5, 0), start=3):
        world.submit(n, world.register(spec(f"other{n}", gpus=gpus)), owner=BOB)
    world.schedule()
    assert {g.lead for g in world.state.gangs.values() if g.id != gang.id} == {"n1"}
    world.submit(9, world.register(spec("late", gpus=4)))
    world.schedule()
    assert "n2 has 6 free of 8, but a gang keeps others off it" in world.call(call_id(9)).reason
    check_picture(world.state)


def test_a_node_that_an_isolated_gang_has_left_takes_others_again() -> None:
    world = World(node_info("n1"))
    isolated(world)
    gang = world.bring_up(world.only_gang())
    world.submit(2, world.register(spec(gpus=1)))
    world.schedule()
    assert len(world.state.gangs) == 1
    world.start(call_id(1))
    world.finish(call_id(1))
    world.end(gang)
    world.schedule()
    assert world.only_gang().for_call == call_id(2)
    check_picture(world.state)


@pytest.mark.parametrize("gpus", [2, 0.5, 0])
def test_an_isolated_function_waits_while_somebody_is_on_every_node_and_says_what_would_do(gpus: float) -> None:
    world = World(node_info("n1"))
    world.ready_gang(world.register(spec(gpus=1)), 1)
    isolated(world, 2, gpus=gpus)
    reason = world.call(call_id(2)).reason
    assert reason.endswith("; starts now with isolation=None")
    if gpus >= 1:
        assert "n1 has 7 free of 8, but 1 gang is on it, and isolation='node' wants it empty" in reason


# ---- spread ----


def test_spread_takes_as_many_nodes_as_can_be_had_evenly() -> None:
    cell = Cell.of(None, [node_info(name) for name in ("a", "b", "c")])
    assert nodes(place(cell, gpus=6)) == ["a"]
    found = place(cell, gpus=6, spread=True)
    assert found is not None
    assert [len(member.gpus) for member in found.members] == [2, 2, 2]
    assert "as many nodes as can share it evenly: 3 nodes" in found.sentence
    assert len(nodes(place(cell, gpus=8, spread=True))) == 2
    cell.hold("c", *range(8))
    assert nodes(place(cell, gpus=6, spread=True)) == ["a", "b"]


def test_a_spread_gang_still_starts_on_one_node() -> None:
    cell = Cell.of(None, [node_info("a"), node_info("b", gpus=1)])
    assert nodes(place(cell, gpus=6, spread=True)) == ["a"]
    ensure_possible(cell.world.state, spec(gpus=6, spread=True))


# ---- NVLink ----


def joined_nodes(*kinds: tuple[str, str]) -> list[m.NodeInfo]:
    return [looks_like(preset(kind), name) for name, kind in kinds]


def test_required_nvlink_goes_where_nvlinks_join_all_gpus_though_others_are_tighter() -> None:
    cell = Cell.of(None, joined_nodes(("h", "hgx_h100"), ("l", "pcie_l4")))
    cell.hold("l", 0, 1, 2)
    assert nodes(place(cell, gpus=4)) == ["l"]
    found = place(cell, gpus=4, fabric="nvlink")
    assert found is not None
    assert nodes(found) == ["h"]
    assert "joined by NVLink, as asked" in found.sentence


def test_gpus_that_are_linked_only_through_others_gpus_are_not_joined() -> None:
    cell = Cell.of(None, joined_nodes(("v", "dgx1_v100")))
    assert place(cell, gpus=2, fabric="nvlink") is not None
    cell.hold("v", *(at for at in range(8) if at not in (0, 5)))
    assert place(cell, gpus=2) is not None
    assert place(cell, gpus=2, fabric="nvlink") is None
    assert "v has 2 free of 8, but no 2 of them are joined by NVLink" in why(cell, gpus=2, fabric="nvlink")
    assert why(cell, gpus=2, fabric="nvlink").endswith("; starts now with fabric='any'")


def test_one_gpu_is_joined_to_itself_and_nodes_that_say_nothing_join_none() -> None:
    cell = Cell.of(None, [node_info("silent")])
    assert nodes(place(cell, gpus=1, fabric="nvlink")) == ["silent"]
    assert place(cell, gpus=2, fabric="nvlink") is None
    assert "no GPUs of one node are known to be joined by NVLinks" in refused(cell, gpus=2, fabric="nvlink")


def test_a_gang_over_several_nodes_of_one_nvlink_domain_is_joined() -> None:
    kinds = [looks_like(preset("hgx_h100"), name, nvl=name[0]) for name in ("x1", "x2", "y1", "y2", "z1")]
    cell = Cell.of(None, kinds)
    assert nodes(place(cell, gpus=16, fabric="nvlink")) == ["x1", "x2"]
    cell.hold("x1", 0)
    assert nodes(place(cell, gpus=16, fabric="nvlink")) == ["y1", "y2"]
    cell.hold("y2", 0)
    assert nodes(place(cell, gpus=16)) == ["x2", "y1"]
    assert place(cell, gpus=16, fabric="nvlink") is None
    assert "3 nodes have 8 free, but not within one domain: NVLink domain x has 1 of them" in why(
        cell, gpus=16, fabric="nvlink"
    )
    told = refused(cell, gpus=24, fabric="nvlink")
    assert "NVLinks join 8 GPUs at most on one node (x1), and NVLink domain x has 2 nodes" in told
    assert "it could run with fabric='any', or prefer_fabric='nvlink'" in told


# ---- rails ----

LEAVES = {"left": "a1 a2 a3", "right": "b1 b2"}


def test_required_rail_keeps_all_nodes_in_one_smallest_domain() -> None:
    cell = Cell.of(tree(LEAVES))
    assert nodes(place(cell, gpus=16, fabric="rail")) == ["b1", "b2"]
    cell.hold("b1", 0)
    cell.hold("a1", 0)
    assert nodes(place(cell, gpus=16, fabric="rail")) == ["a2", "a3"]
    cell.hold("a2", 0)
    assert len(nodes(place(cell, gpus=16))) == 2
    assert place(cell, gpus=16, fabric="rail") is None
    told = why(cell, gpus=16, fabric="rail")
    assert "2 nodes have 8 free, but not within one domain: leaf left has 1 of them" in told
    assert told.endswith("; starts now with fabric='any'")


def test_a_rail_that_is_never_large_enough_is_refused_with_the_largest() -> None:
    cell = Cell.of(tree(LEAVES))
    ensure_possible(cell.world.state, spec(gpus=24, fabric="rail"))
    assert "leaf left has 3 nodes, more than any other; it could run with fabric='any'" in refused(
        cell, gpus=32, fabric="rail"
    )


def test_rails_of_a_cell_that_knows_no_fabric_are_refused_unless_one_node_does() -> None:
    cell = Cell.of(None, [node_info("a"), node_info("b")])
    assert nodes(place(cell, gpus=8, fabric="rail")) == ["a"]
    assert "`gpuctl topo fabric set FILE` tells it" in refused(cell, gpus=16, fabric="rail")


# ---- wishes ----


def test_a_wish_is_had_where_it_can_be_and_is_no_reason_to_wait() -> None:
    cell = Cell.of(None, joined_nodes(("h", "hgx_h100"), ("l", "pcie_l4")))
    cell.hold("l", 0, 1, 2)
    assert nodes(place(cell, gpus=4, prefer_fabric="nvlink")) == ["h"]
    cell.hold("h", 0, 1, 2, 3, 4)
    found = place(cell, gpus=4, prefer_fabric="nvlink")
    assert found is not None
    assert nodes(found) == ["l"]
    assert "prefer_fabric='nvlink' could not be had" in found.sentence
    ensure_possible(cell.world.state, spec(gpus=16, prefer_fabric="rail"))


# ---- nodes kept for one that waits ----


def test_the_nodes_that_are_kept_for_a_gang_lie_in_one_domain_where_it_requires_that() -> None:
    cell = Cell.of(tree(LEAVES))
    for node in ("a1", "a2", "b1"):
        cell.hold(node, 0)
    kept = {
        fabric: reservation_for(cell.world.state, asks(gpus=16, fabric=fabric), cell.rooms, 0)
        for fabric in ("", "rail")
    }
    assert {fabric: found and found.nodes for fabric, found in kept.items()} == {
        "": {"a3", "b2"},
        "rail": {"a1", "a3"},
    }


def test_a_node_for_oneself_is_ready_when_the_last_has_left_it() -> None:
    world = World(node_info("n1"), node_info("n2"))
    for n, (node, timeout_s) in enumerate((("n1", 900), ("n2", 100), ("n2", 300)), start=1):
        limits = Limits(timeout_s=timeout_s, grace_s=0)
        world.ready_gang(world.register(spec(f"f{n}", node=node, limits=limits)), n)
        world.start(call_id(n))
    found = reservation_for(world.state, asks(gpus=1, isolation="node"), picture_of(world.state), world.log_ms)
    assert found is not None
    assert found.nodes == {"n2"}
    assert 300_000 <= found.at_ms - world.log_ms < 310_000
    assert found.last is not None
    assert found.last.for_call == call_id(3)


def test_nodes_whose_gpus_are_not_joined_are_kept_for_none_that_requires_it() -> None:
    cell = Cell.of(None, joined_nodes(("l", "pcie_l4")))
    cell.hold("l", *range(8))
    assert reservation_for(cell.world.state, asks(gpus=2), cell.rooms, 0) is not None
    assert reservation_for(cell.world.state, asks(gpus=2, fabric="nvlink"), cell.rooms, 0) is None


# ---- words ----


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"gpus": 0, "min_memory_gb": 80}, "for functions that ask for GPUs"),
        ({"gpus": 1, "min_memory_gb": -1}, "min_memory_gb=-1"),
        ({"gpus": 1, "isolation": "gpu"}, "isolation='gpu': use 'node'"),
        ({"gpus": 1, "spread": True}, "for two GPUs or more"),
        ({"gpus": 4, "spread": True, "nodes": 2}, "leave it or nodes out"),
        ({"gpus": 4, "fabric": "infiniband"}, "use one of 'nvlink', 'rail'"),
        ({"gpus": 0.5, "fabric": "nvlink"}, "for gangs of whole GPUs"),
        ({"gpus": 4, "fabric": "nvlink", "prefer_fabric": "rail"}, "leave one of the two out"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSpecError, match=told):
        Resources(**asked)


def test_one_process_is_not_spread() -> None:
    with pytest.raises(InvalidSpecError, match="one process is on one node"):
        FunctionSpec(name="f", resources=Resources(gpus=4, spread=True), launch="single")


def test_functions_that_say_nothing_of_it_keep_their_ids() -> None:
    assert FunctionSpec(name="f").function_id == "f-60d3becaae9c5b27888233d133"
    asked: tuple[dict[str, Any], ...] = ({}, {"spread": True}, {"fabric": "rail"}, {"isolation": "node"})
    assert len({FunctionSpec(name="f", resources=Resources(gpus=4, **more)).function_id for more in asked}) == 4


@pytest.mark.parametrize(
    "more",
    [{"min_memory_gb": 1}, {"isolation": "node"}, {"spread": True}, {"fabric": "rail"}, {"prefer_fabric": "rail"}],
)
def test_no_older_replica_is_made_to_read_it(more: dict[str, Any]) -> None:
    world = World(node_info())
    asked = spec(gpus=2, **more)
    assert schemas.since_of_spec(asked) == schemas.WHERE_SCHEMA
    with pytest.raises(VersionError, match=next(iter(more))):
        decide(
            world.state,
            c.RegisterFunction(owner=ANA, spec=asked),
            replace(world.now, schema=schemas.WHERE_SCHEMA - 1),
        )


def test_the_kept_picture_knows_who_is_alone() -> None:
    world = World(node_info("n1"), node_info("n2"))
    picture_of(world.state)
    isolated(world)
    check_picture(world.state)
