"""Calls made from inside a call: who is whose, and what becomes of them when their caller is cancelled."""

from __future__ import annotations

import pytest

from phalanx.core.errors import CallCancelledError, InvalidSpecError
from phalanx.core.states import CallState
from phalanx_control.lifecycle.decide import decide
from phalanx_control.state import commands as c
from phalanx_control.state import queries, schemas
from phalanx_control.state.model import BodyRef, Owner, from_jsonable, to_jsonable
from tests.support.builders import ANA, EVE, World, call_id, node_info, spec


def submit(world: World, n: int, function_id: str, *, parent: str = "", owner: Owner = ANA) -> str:
    world.do(
        c.Submit(call_id=call_id(n), function_id=function_id, owner=owner, args=BodyRef(key="k", size=3), parent=parent)
    )
    return call_id(n)


def family(world: World) -> tuple[str, str, str, str]:
    """Submits a call, two that it makes, and one that the first of these makes."""
    function_id = world.register(spec())
    top = submit(world, 1, function_id)
    first = submit(world, 2, function_id, parent=top)
    world.wait(10)
    second = submit(world, 3, function_id, parent=top)
    return top, first, second, submit(world, 4, function_id, parent=first)


def test_a_call_knows_its_parent_and_the_parent_its_children_in_order() -> None:
    world = World()
    top, first, second, grandchild = family(world)
    assert world.state.calls[first].parent == top
    assert [call.id for call in queries.children_of(world.state, top)] == [first, second]
    assert [call.id for call in queries.with_descendants(world.state, world.state.calls[top])] == [
        top,
        first,
        second,
        grandchild,
    ]


def test_cancelling_a_call_cancels_all_that_was_made_from_inside_it() -> None:
    world = World()
    calls = family(world)
    world.cancel(calls[0])
    assert {world.state.calls[call].state for call in calls} == {CallState.CANCELLED}


def test_cancelling_a_child_leaves_its_parent_and_its_siblings() -> None:
    world = World()
    top, first, second, grandchild = family(world)
    world.cancel(first)
    states = [world.state.calls[call].state for call in (top, first, second, grandchild)]
    assert states == [CallState.QUEUED, CallState.CANCELLED, CallState.QUEUED, CallState.CANCELLED]


def test_a_cancelled_call_makes_no_new_ones() -> None:
    world = World()
    top, *_ = family(world)
    world.cancel(top)
    with pytest.raises(CallCancelledError, match=rf"call {top}, from inside which it was made, is cancelled"):
        submit(world, 5, world.state.calls[top].function_id, parent=top)


def test_cancelling_an_ended_call_leaves_what_it_started() -> None:
    world = World(node_info())
    function_id = world.register(spec())
    gang = world.ready_gang(function_id)
    top = world.start_direct(2, gang)
    child = submit(world, 3, function_id, parent=top)
    world.finish(top)
    assert world.cancel(top) == ()
    assert not world.state.calls[child].state.terminal


def test_a_parent_of_another_workspace_is_neither_asked_nor_has_it_power() -> None:
    world = World()
    function_id = world.register(spec("mine"))
    foreign_function = world.register(spec("theirs"), owner=EVE)
    foreign = submit(world, 9, foreign_function, owner=EVE)
    mine = submit(world, 1, function_id, parent=foreign)
    world.cancel(foreign, owner=EVE)
    assert world.state.calls[mine].state is CallState.QUEUED
    submit(world, 2, function_id, parent=foreign)


def test_a_parent_that_is_no_call_id_is_refused() -> None:
    world = World()
    function_id = world.register(spec())
    with pytest.raises(InvalidSpecError, match=r"call id 'me' is not one"):
        submit(world, 1, function_id, parent="me")


def test_beside_a_replica_that_cannot_read_parents_none_is_written() -> None:
    world = World()
    function_id = world.register(spec())
    command = c.Submit(call_id=call_id(2), function_id=function_id, owner=ANA, args=BodyRef(), parent=call_id(1))
    now = c.Now(log_ms=world.log_ms, wall_ms=world.wall_ms, schema=schemas.PARENT_SCHEMA - 1)
    (accepted,) = decide(world.state, command, now)
    assert schemas.since(accepted) == 1
    (accepted,) = decide(world.state, command, world.now)
    assert schemas.since(accepted) == schemas.PARENT_SCHEMA


def test_the_graph_is_made_again_from_a_snapshot_and_leaves_with_archived_calls() -> None:
    world = World()
    top, first, second, _ = family(world)
    assert from_jsonable(to_jsonable(world.state)) == world.state
    world.cancel(second)
    world.wait(3_600_000)
    world.do(c.ArchiveCalls(call_ids=(second,)))
    assert [call.id for call in queries.children_of(world.state, top)] == [first]
    assert from_jsonable(to_jsonable(world.state)) == world.state
