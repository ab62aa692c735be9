"""Functions whose calls do not share gangs: one call, one gang."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.spec import FunctionSpec
from phalanx.core.states import CallState, GangState
from phalanx_control.state import schemas
from phalanx_control.state.events import CallAssigned, GangReserved
from tests.support.builders import World, call_id, events_of, node_info, spec


def fresh() -> FunctionSpec:
    return replace(spec(), fresh=True)


def test_a_gang_that_ran_its_call_is_ended_with_the_reason() -> None:
    world = World(node_info())
    gang = world.ready_gang(world.register(fresh()))
    world.finish(call_id(1))
    assert world.call(call_id(1)).state is CallState.SUCCEEDED
    ended = world.state.gangs[gang.id]
    assert (ended.state, ended.stop_reason) == (GangState.DRAINING, "reuse=False: each call gets a gang of its own")


def test_the_next_call_gets_another_gang_and_none_is_sent_ahead() -> None:
    world = World(node_info())
    f = world.register(fresh())
    gang = world.ready_gang(f)
    world.submit(2, f)
    done = world.schedule()
    assert not events_of(done, CallAssigned)
    assert len(events_of(done, GangReserved)) == 1
    assert gang.id in world.state.gangs


def test_calls_share_a_gang_where_nothing_was_said() -> None:
    world = World(node_info())
    gang = world.ready_gang(world.register(spec()))
    world.finish(call_id(1))
    assert world.state.gangs[gang.id].state in (GangState.READY, GangState.BUSY)


def test_such_a_function_is_another_one_and_needs_readers_that_know_of_it() -> None:
    assert fresh().function_id != spec().function_id
    assert schemas.since_of_spec(fresh()) == schemas.FRESH_SCHEMA
    assert schemas.since_of_spec(spec()) == 1
