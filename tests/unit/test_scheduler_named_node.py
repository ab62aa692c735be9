"""A function that names its node is given that one or waits for it, and no older replica is made to read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.errors import InvalidSpecError, UnschedulableError, VersionError
from phalanx.core.spec import FunctionSpec, Resources
from phalanx_control.lifecycle.decide import decide
from phalanx_control.scheduler.capacity import ensure_possible
from phalanx_control.scheduler.explain import why_it_waits
from phalanx_control.scheduler.fit import find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.reserve import reservation_for
from phalanx_control.state import commands as c
from phalanx_control.state import events, schemas
from tests.support.builders import ANA, World, node_info, spec
from tests.support.cells import Cell


def named(node: str, gpus: float = 2) -> FunctionSpec:
    return replace(spec(), resources=Resources(gpus=gpus, node=node))


def need(node: str, gpus: float = 2) -> Need:
    return Need(spec=named(node, gpus), workspace="default")


def cell() -> Cell:
    return Cell.of(None, [node_info(name, gpus=4) for name in ("a", "b", "c")])


@pytest.mark.parametrize("gpus", [4, 0.5, 0])
@pytest.mark.parametrize("node", ["a", "b", "c"])
def test_the_gang_goes_to_the_node_that_it_names(node: str, gpus: float) -> None:
    place = find_place(need(node, gpus), cell().rooms)
    assert place is not None
    assert [member.node_id for member in place.members] == [node]


def test_functions_that_name_different_nodes_are_not_taken_for_one_another() -> None:
    made = cell()
    places = [find_place(need(node), made.rooms) for node in ("a", "b", "a")]
    assert [place and place.members[0].node_id for place in places] == ["a", "b", "a"]


def test_it_waits_for_that_node_though_others_are_free() -> None:
    made = cell()
    made.hold("b", 0, 1, 2)
    assert find_place(need("b"), made.rooms) is None
    assert "needs 2 GPUs on b; best node b has 1 free of 4" in why_it_waits(need("b"), made.rooms)
    found = reservation_for(made.world.state, need("b"), made.rooms, 0)
    assert found is not None
    assert found.nodes == {"b"}


def test_a_gang_larger_than_its_node_is_refused_and_so_is_a_node_that_is_not_there() -> None:
    state = cell().world.state
    ensure_possible(state, named("b", 4))
    with pytest.raises(UnschedulableError, match="node b; this cell has"):
        ensure_possible(state, named("b", 8))
    with pytest.raises(UnschedulableError, match="node z; this cell has no such node"):
        ensure_possible(state, named("z"))


def test_several_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match="leave one of the two out"):
        Resources(gpus=4, nodes=2, node="a")


def test_functions_that_name_none_keep_their_ids() -> None:
    assert spec().function_id == replace(spec(), resources=Resources(gpus=spec().resources.gpus)).function_id
    assert named("a").function_id != named("b").function_id


def test_a_cell_with_an_older_replica_refuses_it_and_the_log_says_who_can_read_it() -> None:
    world = World(node_info("a"))
    command = c.RegisterFunction(owner=ANA, spec=named("a"))
    (event,) = world.do(command)
    assert isinstance(event, events.FunctionRegistered)
    assert schemas.schema_of((event,)) == world.state.schema == schemas.NAMED_NODE_SCHEMA
    older = replace(world.now, schema=schemas.NAMED_NODE_SCHEMA - 1)
    with pytest.raises(VersionError, match="older replica"):
        decide(World(node_info("a")).state, command, older)
