"""Gangs that are held after a failure: no other call gets them, and they end when they are released."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.messages import ErrorInfo
from phalanx.core.spec import FunctionSpec, Limits
from phalanx.core.states import CallState, Cause, GangState, Outcome
from phalanx_control.state import queries, schemas
from phalanx_control.state.events import CallAssigned, GangReserved
from tests.support.builders import World, call_id, events_of, node_info, spec

NO_DATA = ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="ValueError", message="no data")


def held(**limits: float) -> FunctionSpec:
    return replace(spec(), limits=Limits(hold_on_failure_s=600, **limits))  # pyright: ignore[reportArgumentType]


def test_the_next_call_gets_another_gang_while_one_is_held() -> None:
    world = World(node_info())
    f = world.register(held())
    gang = world.ready_gang(f)
    world.finish(call_id(1), Outcome.FAILED, error=NO_DATA)
    kept = world.state.gangs[gang.id]
    assert (kept.state, kept.drain) == (GangState.DRAINING, True)
    assert queries.held_gang(world.state, world.call(call_id(1))) == kept
    world.submit(2, f)
    done = world.schedule()
    assert not events_of(done, CallAssigned)
    assert len(events_of(done, GangReserved)) == 1


def test_cancelling_the_call_that_failed_releases_its_gang() -> None:
    world = World(node_info())
    gang = world.ready_gang(world.register(held()))
    world.finish(call_id(1), Outcome.FAILED, error=NO_DATA)
    world.cancel(call_id(1))
    assert world.call(call_id(1)).state is CallState.FAILED
    assert not world.state.gangs[gang.id].drain
    assert queries.held_gang(world.state, world.call(call_id(1))) is None


def test_nothing_is_held_of_a_call_that_is_tried_again_or_that_succeeded() -> None:
    world = World(node_info())
    gang = world.ready_gang(world.register(held(retries=1)))
    world.finish(call_id(1), Outcome.FAILED, error=NO_DATA)
    again = world.state.gangs[gang.id]
    assert world.call(call_id(1)).state is CallState.QUEUED
    assert (again.state, again.drain) == (GangState.DRAINING, False)
    other = World(node_info())
    warm = other.ready_gang(other.register(held()))
    other.finish(call_id(1))
    assert other.state.gangs[warm.id].state in (GangState.READY, GangState.BUSY)


def test_such_a_function_is_another_one_and_needs_readers_that_know_of_it() -> None:
    assert held().function_id != spec().function_id
    assert schemas.since_of_spec(held()) == schemas.HOLD_SCHEMA
