"""Gangs that take between so many and so many GPUs: the most that can be had when they are placed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx
from phalanx.core.errors import InvalidSpecError, UnschedulableError, VersionError
from phalanx.core.spec import FunctionSpec, Limits, Resources
from phalanx.core.states import CallState
from phalanx_control import views
from phalanx_control.lifecycle.decide import decide
from phalanx_control.scheduler.capacity import ensure_possible
from phalanx_control.scheduler.explain import why_it_waits
from phalanx_control.scheduler.fit import Place, find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.state import commands as c
from phalanx_control.state import schemas
from tests.support.builders import ANA, World, call_id, node_info, spec
from tests.support.cells import Cell, tree
from tests.unit.test_state_views import NO_FACTS

DECORATE: Any = phalanx.gpu_function


def asks(least: int, most: int, **more: Any) -> Need:
    return Need(spec=elastic(least, most, **more), workspace="default")


def elastic(least: int, most: int, *, launch: str = "per_gpu", **more: Any) -> FunctionSpec:
    return spec("elastic", gpus=least, max_gpus=most, launch=launch, **more)


def shape(place: Place | None) -> list[int]:
    """How many GPUs it has on each node."""
    return [len(member.gpus) for member in place.members] if place is not None else []


def cell(*gpus: int) -> Cell:
    return Cell.of(None, [node_info(f"n{at}", gpus=count) for at, count in enumerate(gpus)])


def test_it_gets_the_most_that_is_free_on_the_fewest_nodes() -> None:
    made = cell(8, 8)
    assert shape(find_place(asks(4, 16), made.rooms)) == [8, 8]
    assert shape(find_place(asks(4, 8), made.rooms)) == [8]
    made.hold("n0", 0, 1, 2)
    assert shape(find_place(asks(4, 16), made.rooms)) == [5, 5]
    made.hold("n1", *range(6))
    assert shape(find_place(asks(4, 16), made.rooms)) == [5]
    made.hold("n0", 3, 4)
    assert shape(find_place(asks(4, 16), made.rooms)) == [2, 2]
    made.hold("n1", 6)
    assert find_place(asks(4, 16), made.rooms) is None


def test_its_ranks_are_numbered_over_all_nodes_and_the_sentence_says_what_it_might_have_had() -> None:
    place = find_place(asks(4, 16), cell(6, 6).rooms)
    assert place is not None
    assert [(member.first_rank, member.ranks) for member in place.members] == [(0, 6), (6, 6)]
    assert place.sentence.startswith("12 GPUs: 6 on n0")
    assert "as many as could be had of 4 to 16" in place.sentence


def test_a_number_of_nodes_and_being_spread_are_kept_to() -> None:
    made = cell(8, 8, 8)
    assert shape(find_place(asks(4, 16, nodes=3), made.rooms)) == [5, 5, 5]
    assert shape(find_place(asks(4, 6, spread=True), made.rooms)) == [2, 2, 2]
    assert shape(find_place(asks(4, 16, launch="single"), made.rooms)) == [8]
    made.hold("n2", *range(8))
    assert find_place(asks(4, 16, nodes=3), made.rooms) is None


def test_a_required_domain_is_kept_to_with_fewer_gpus() -> None:
    made = Cell.of(tree({"left": "a1 a2 a3", "right": "b1 b2"}))
    assert shape(find_place(asks(8, 40), made.rooms)) == [8] * 5
    place = find_place(asks(8, 40, fabric="rail"), made.rooms)
    assert place is not None
    assert [member.node_id for member in place.members] == ["a1", "a2", "a3"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 10))
def test_no_even_split_would_have_had_more(free: list[int], least: int, more: int) -> None:
    made = cell(*[4] * len(free))
    for at, count in enumerate(free):
        if count < 4:
            made.hold(f"n{at}", *range(4 - count))
    got = sum(shape(find_place(asks(least, least + more), made.rooms)))
    even = (each * nodes for each in range(1, 5) for nodes in range(1, 1 + sum(count >= each for count in free)))
    assert got == max((total for total in even if least <= total <= least + more), default=0)


def test_a_waiting_one_tells_the_least_and_what_never_fits_is_refused() -> None:
    made = cell(4, 4)
    made.hold("n0", 0, 1)
    made.hold("n1", 0, 1)
    reason = why_it_waits(asks(5, 8), made.rooms)
    assert reason.startswith("needs at least 5 GPUs on ")
    ensure_possible(made.world.state, elastic(5, 8))
    with pytest.raises(UnschedulableError, match="asks for at least 9 GPUs; this cell has 8 GPUs on 2 nodes"):
        ensure_possible(made.world.state, elastic(9, 16))
    with pytest.raises(UnschedulableError):
        ensure_possible(made.world.state, elastic(5, 5 + 2, nodes=1, launch="per_gpu"))


def test_the_call_is_shown_with_the_gpus_that_its_gang_has_and_had() -> None:
    world = World(node_info("n1", gpus=6))
    gang = world.ready_gang(world.register(elastic(2, 16)))
    world.start(call_id(1))
    view = views.call_view(world.state, world.call(call_id(1)), NO_FACTS)
    assert (view.gpus, view.world_size) == (6, 6)
    world.finish(call_id(1))
    world.end(world.state.gangs[gang.id])
    world.tick()
    view = views.call_view(world.state, world.call(call_id(1)), NO_FACTS)
    assert (view.state, view.gpus, view.world_size) == (CallState.SUCCEEDED, 6, 6)


def test_it_stays_within_the_limits_of_its_accounts() -> None:
    world = World(node_info("n1"), node_info("n2"))
    world.do(c.SetPolicy(policy='{"workspaces": {"default": {"limit": 5}}}'))
    world.ready_gang(world.register(elastic(2, 16)), 1)
    assert world.only_gang().world_size == 5


def test_what_others_are_guaranteed_is_not_taken_by_growing() -> None:
    world = World(node_info("n1"), node_info("n2"))
    world.do(c.SetPolicy(policy='{"workspaces": {"other": {"gpus": 6}}}'))
    world.ready_gang(world.register(elastic(2, 16)), 1)
    assert world.only_gang().world_size == 10


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ((4, 2), r"gpus=\(4, 2\): give whole numbers, the first from 1 on and below the second"),
        ((0, 4), r"gpus=\(0, 4\)"),
        ((1.5, 4), r"gpus=\(1.5, 4\): give a number, or two whole ones"),
        ((1, 2, 3), r"the least and the most, as \(4, 16\)"),
        ((True, 4), "two whole ones"),
    ],
)
def test_wrong_bounds_are_refused_where_they_are_said(asked: Any, told: str) -> None:
    with pytest.raises(InvalidSpecError, match=told):
        DECORATE(gpus=asked)(lambda: None)


def test_nodes_that_divide_no_size_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match="nodes=3 divides no number of GPUs from 4 to 5"):
        Resources(gpus=4, max_gpus=5, nodes=3)


def test_bounds_are_those_that_so_many_nodes_can_share() -> None:
    asked = Resources(gpus=4, max_gpus=16, nodes=3)
    assert (asked.gpus, asked.max_gpus, asked.world_size) == (6, 15, 6)
    assert asked == Resources(gpus=6, max_gpus=15, nodes=3)
    assert Resources(gpus=4, max_gpus=7, nodes=3) == Resources(gpus=6, nodes=3)


def test_the_decorator_and_options_take_two_numbers() -> None:
    @phalanx.gpu_function(gpus=(4, 16))
    def f() -> None: ...

    assert f.spec is not None
    assert (f.spec.resources.gpus, f.spec.resources.max_gpus) == (4, 16)
    for asked, told in (((2, 2), (2, 0)), (3, (3, 0)), ((1, 9), (1, 9))):
        other = f.options(gpus=asked).spec
        assert other is not None
        assert (other.resources.gpus, other.resources.max_gpus) == told


def test_no_older_replica_is_made_to_read_it() -> None:
    world = World(node_info())
    command = c.RegisterFunction(owner=ANA, spec=elastic(2, 4, limits=Limits()))
    with pytest.raises(VersionError, match="takes up to 4 GPUs"):
        decide(world.state, command, replace(world.now, schema=schemas.WHERE_SCHEMA - 1))
