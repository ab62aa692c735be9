"""The state as the fold of its history: indexes, archive, snapshots, speed."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from phalanx.core.states import CallState
from phalanx_control.lifecycle.decide import decide
from phalanx_control.state import commands as c
from phalanx_control.state import events as ev
from phalanx_control.state import queries
from phalanx_control.state.apply import apply_batch
from phalanx_control.state.model import BodyRef, State, from_jsonable, to_jsonable
from tests.support.builders import ANA, World, call_id, node_info, spec
from tests.support.invariants import check_history, check_state


def busy_world() -> World:
    world = World(node_info("n1"), node_info("n2"))
    f = world.register(spec(gpus=4))
    for n in range(1, 8):
        world.submit(n, f)
        world.wait(n)
    world.schedule()
    for gang in list(world.state.gangs.values()):
        world.bring_up(gang)
    world.schedule()
    world.start(call_id(1))
    world.finish(call_id(1))
    return world


def test_a_batch_sets_sequence_and_clock() -> None:
    state = apply_batch(State(), seq=7, log_ms=99, events=(ev.LeaderTookOver(epoch=3, leader_id="a"),))
    assert (state.seq, state.log_ms, state.epoch, state.took_over_ms) == (7, 99, 3, 99)


def test_equal_logs_fold_to_equal_states_through_every_encoding() -> None:
    world = busy_world()
    check_history(world.history, world.state)
    check_state(world.state)


def test_an_unknown_kind_of_event_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        ev.decode(b'[{"kind":"FromTheFuture"}]')


def test_a_snapshot_without_a_later_field_can_be_read() -> None:
    data = json.loads(json.dumps(to_jsonable(busy_world().state)))
    del data["stats"]
    assert not from_jsonable(data).stats


def test_the_queue_is_first_in_first_out_and_a_requeued_call_keeps_its_place() -> None:
    world = busy_world()
    queued = [k for k in world.state.calls.values() if k.state is CallState.QUEUED]
    positions = {k.id: queries.queue_position(world.state, k) for k in queued}
    assert sorted(positions.values()) == list(range(1, len(queued) + 1))
    gang = world.state.gangs[world.call(call_id(2)).gang_id]
    world.end(gang)
    assert queries.queue_position(world.state, world.call(call_id(2))) == 1
    assert queries.queue_position(world.state, world.call(call_id(1))) == 0
    assert queries.waiting_of(world.state, gang.function_id) == len(world.state.queue)


def crowded(count: int) -> World:
    world = World(node_info())
    f = world.register(spec(gpus=8))
    world.ready_gang(f, 10**9)
    batch: list[ev.AnyEvent] = []
    for n in range(count):
        submit = c.Submit(call_id=call_id(n), function_id=f, owner=ANA, args=BodyRef())
        batch += decide(world.state, submit, c.Now(log_ms=n, wall_ms=n))
    world.state = apply_batch(world.state, seq=world.state.seq + 1, log_ms=count, events=tuple(batch))
    world.log_ms = count + 1
    return world


def ms_of(world: World, n: int) -> float:
    begin = time.process_time()
    for i in range(100):
        world.submit(n + i, next(iter(world.state.functions)))
    return (time.process_time() - begin) * 1000 / 100


def test_a_submit_among_many_calls_costs_about_the_same_as_among_few() -> None:
    few, many = crowded(500), crowded(4_000)
    world_ms = min(ms_of(few, 10**6), ms_of(few, 2 * 10**6))
    many_ms = min(ms_of(many, 10**6), ms_of(many, 2 * 10**6))
    assert many_ms < max(1.0, 5 * world_ms)


def test_a_pass_over_a_long_queue_looks_at_a_bounded_part_of_it() -> None:
    world = crowded(4_000)
    waits = [e for e in world.schedule() if isinstance(e, ev.CallWaits)]
    assert len(waits) <= 200
    begin = time.process_time()
    world.schedule()
    assert time.process_time() - begin < 0.25


def test_a_snapshot_makes_the_derived_indexes_again() -> None:
    state = busy_world().state
    again = from_jsonable(json.loads(json.dumps(to_jsonable(state))))
    assert again.lines == state.lines
    assert again.lease_nodes == state.lease_nodes
    assert again.ended_line == state.ended_line
