"""Retries that say which and when, deadlines in every state, and idempotency keys, decided in the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core import messages as m
from phalanx.core.errors import InvalidSpecError, SerializationError, VersionError
from phalanx.core.kinds import kind_of
from phalanx.core.spec import Limits, Retrying
from phalanx.core.states import CallState, Cause, GangState, Outcome
from phalanx_control.lifecycle.decide import decide
from phalanx_control.lifecycle.facts import LiveFacts
from phalanx_control.lifecycle.keys import KEPT_MS
from phalanx_control.state import commands as c
from phalanx_control.state.events import CallFailed
from phalanx_control.state.model import BodyRef, Call, from_jsonable, to_jsonable
from phalanx_control.state.schemas import schema_of
from phalanx_control.views import call_view
from tests.support.builders import ANA, EVE, World, call_id, events_of, node_info, spec
from tests.support.invariants import check_history, check_state

VALUE = m.ErrorInfo(
    type_name="ValueError", message="boom\nmore", kinds=("m.Own>builtins.ValueError>builtins.Exception",)
)
KEY = m.ErrorInfo(type_name="KeyError", message="'x'", kinds=("builtins.KeyError>builtins.LookupError",))
STAYS = m.ErrorInfo(type_name="SerializationError", message="result", kinds=(kind_of(SerializationError),))
DIED = m.ErrorInfo(message="rank 0 was ended by signal 11", signal=11)


def world_with(limits: Limits | None = None, *, gpus: float = 1) -> tuple[World, str]:
    world = World(node_info())
    return world, world.register(spec(gpus=gpus, limits=limits))


def running(world: World, function_id: str, terms: m.CallTerms | None = None, n: int = 1) -> str:
    world.submit(n, function_id, terms=terms)
    world.schedule()
    for gang in world.state.gangs.values():
        if gang.state is GangState.RESERVED:
            world.bring_up(gang)
    world.start(call_id(n))
    return call_id(n)


def fail(world: World, call: str, error: m.ErrorInfo = VALUE) -> Call:
    world.finish(call, Outcome.FAILED, error=error)
    return world.call(call)


def again(world: World, call: str) -> None:
    """Lets the next attempt begin as soon as it may."""
    world.wait(max(0, world.call(call).not_before_ms - world.log_ms))
    world.schedule()
    for gang in world.state.gangs.values():
        if gang.state is GangState.RESERVED:
            world.bring_up(gang)
    world.start(call)


def check(world: World) -> None:
    check_state(world.state)
    check_history(world.history, world.state)


# ---- retries ----


def test_delays_grow_by_the_policy_on_log_time_up_to_their_most() -> None:
    policy = Retrying(backoff=3, initial_delay_s=0.5, max_delay_s=4)
    world, f = world_with(Limits(retries=4, retrying=policy))
    call = running(world, f)
    waits: list[tuple[int, str]] = []
    for _ in range(4):
        left = fail(world, call)
        waits.append((left.not_before_ms - world.log_ms, left.reason))
        again(world, call)
    assert [ms for ms, _ in waits] == [500, 1500, 4000, 4000]
    assert waits[1][1] == "retry 2 of 4 in 1.5 s after ValueError: boom"
    assert fail(world, call).state is CallState.FAILED
    check(world)


@pytest.mark.parametrize(
    ("retry_on", "error", "state"),
    [
        pytest.param(("builtins.ValueError",), VALUE, CallState.QUEUED, id="a-base"),
        pytest.param(("m.Own",), VALUE, CallState.QUEUED, id="the-class"),
        pytest.param(("builtins.KeyError",), VALUE, CallState.FAILED, id="another"),
        pytest.param(("builtins.OSError", "builtins.LookupError"), KEY, CallState.QUEUED, id="one-of-two"),
        pytest.param((), KEY, CallState.QUEUED, id="everything"),
        pytest.param((), STAYS, CallState.FAILED, id="all-but-a-value-that-cannot-travel"),
        pytest.param(("builtins.TypeError",), STAYS, CallState.QUEUED, id="that-too-where-it-is-named"),
        pytest.param(("phalanx.core.errors.RankDiedError",), DIED, CallState.QUEUED, id="a-rank-that-died"),
        pytest.param(("builtins.ValueError",), DIED, CallState.FAILED, id="a-death-is-no-value-error"),
    ],
)
def test_only_what_retry_on_names_is_tried_again(
    retry_on: tuple[str, ...], error: m.ErrorInfo, state: CallState
) -> None:
    world, f = world_with(Limits(retries=1, retrying=Retrying(retry_on=retry_on)))
    assert fail(world, running(world, f), error).state is state


def test_retries_of_the_call_stand_for_the_functions_and_are_shown() -> None:
    world, f = world_with(Limits(retries=5))
    call = running(world, f, m.CallTerms(own_retries=True, retries=1, retrying=Retrying(initial_delay_s=7)))
    assert fail(world, call).reason.startswith("retry 1 of 1 in 7.0 s after")
    view = call_view(world.state, world.call(call), LiveFacts())
    assert (view.retries, view.retries_used, view.attempt) == (1, 1, 1)
    again(world, call)
    assert fail(world, call).state is CallState.FAILED


def test_a_call_without_retries_of_its_own_runs_at_most_once_whatever_its_function_has() -> None:
    world, f = world_with(Limits(retries=5))
    call = running(world, f, m.CallTerms(own_retries=True))
    world.end(world.only_gang(), error=m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="cable pulled"))
    error = world.call(call).error
    assert error is not None
    assert error.type_name == "OutcomeUnknownError"


def test_infrastructure_waits_in_its_own_way_and_costs_no_retry() -> None:
    world, f = world_with(Limits(retries=1, retrying=Retrying(initial_delay_s=30, retry_on=("builtins.KeyError",))))
    call = running(world, f)
    left = fail(world, call, m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="cable pulled"))
    assert left.reason == "another attempt, which is no retry, in 1.0 s after cable pulled"
    again(world, call)
    assert fail(world, call, KEY).reason.startswith("retry 1 of 1 in 30.0 s after KeyError")


def test_the_call_that_kills_three_gangs_is_poison_however_many_retries_it_has() -> None:
    world, f = world_with(Limits(retries=50))
    call = running(world, f)
    for _ in range(2):
        gang = world.only_gang()
        fail(world, call, DIED)
        world.end(gang, error=DIED)
        again(world, call)
    last = fail(world, call, DIED)
    assert last.state is CallState.FAILED
    assert last.error is not None
    assert last.error.cause is Cause.POISON


# ---- deadlines ----


def test_a_queued_call_times_out_at_its_deadline_with_what_it_waited_for() -> None:
    world, f = world_with(gpus=8)
    running(world, world.register(spec("other", gpus=8)))
    call = world.submit(2, f, terms=m.CallTerms(deadline_in_ms=30_000))
    world.schedule()
    world.wait(29_999)
    assert world.kinds(world.tick()) == []
    waited_for = world.call(call).reason
    world.wait(1)
    assert world.kinds(world.tick()) == ["CallFailed"]
    done = world.call(call)
    assert done.state is CallState.TIMED_OUT
    assert (
        done.reason
        == f"did not end by its deadline, 30 s after it was submitted: that came while it waited: {waited_for}"
    )
    check(world)


def test_a_call_whose_gang_starts_gives_it_back_at_its_deadline() -> None:
    world, f = world_with()
    call = world.submit(1, f, terms=m.CallTerms(deadline_in_ms=1_000))
    world.schedule()
    world.wait(1_000)
    assert world.kinds(world.tick()) == ["CallFailed", "GangDraining"]
    assert world.only_gang().stop_reason == f"call {call} timed out"
    check(world)


@pytest.mark.parametrize(
    "outcome", [Outcome.CANCELLED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT], ids=lambda o: o.value
)
def test_a_running_call_is_asked_to_end_and_then_timed_out_whatever_it_came_to(outcome: Outcome) -> None:
    world, f = world_with(Limits(retries=3))
    call = running(world, f, m.CallTerms(deadline_in_ms=5_000))
    world.wait(5_000)
    assert world.kinds(world.tick()) == ["CallOverdue"]
    assert [x for x in world.messages_to("n1") if isinstance(x, m.CancelCall)][-1].call_id == call
    assert world.call(call).state is CallState.CANCELLING
    assert world.cancel(call) == ()
    world.finish(call, outcome, error=VALUE if outcome is Outcome.FAILED else None)
    done = world.call(call)
    assert (done.state, done.busy_ms) == (CallState.TIMED_OUT, 50)
    assert done.reason.endswith("that came when it was running")
    check(world)


def test_a_gang_that_is_lost_with_an_overdue_call_ends_it_timed_out() -> None:
    world, f = world_with()
    call = running(world, f, m.CallTerms(deadline_in_ms=5_000))
    world.wait(5_000)
    world.tick()
    world.end(world.only_gang(), error=DIED)
    assert world.call(call).state is CallState.TIMED_OUT


def test_a_call_that_was_cancelled_before_its_deadline_stays_cancelled() -> None:
    world, f = world_with()
    call = running(world, f, m.CallTerms(deadline_in_ms=5_000))
    world.cancel(call)
    world.wait(5_000)
    assert world.kinds(world.tick()) == []
    world.finish(call, Outcome.CANCELLED)
    assert world.call(call).state is CallState.CANCELLED
    check(world)


def test_a_call_that_waits_for_a_retry_times_out_too() -> None:
    world, f = world_with(Limits(retries=3, retrying=Retrying(initial_delay_s=60)))
    call = running(world, f, m.CallTerms(deadline_in_ms=5_000))
    fail(world, call)
    world.wait(5_000)
    world.tick()
    assert world.call(call).reason.endswith("waited: retry 1 of 3 in 60.0 s after ValueError: boom")


def test_a_wall_time_becomes_a_moment_of_the_log_and_one_that_is_over_ends_the_call_at_once() -> None:
    world, f = world_with()
    call = world.submit(1, f, terms=m.CallTerms(deadline_wall_ms=world.wall_ms + 700))
    assert world.call(call).deadline_ms == world.log_ms + 700
    assert call_view(world.state, world.call(call), LiveFacts()).deadline_ms == world.wall_ms + 700
    over = world.submit(2, f, terms=m.CallTerms(deadline_wall_ms=world.wall_ms - 1))
    assert world.call(over).state is CallState.TIMED_OUT
    check(world)


# ---- keys ----


def keyed(world: World, n: int, function_id: str, *, args: str = "a", key: str = "order-17") -> str:
    return world.submit(n, function_id, terms=m.CallTerms(idempotency_key=key), args_sha256=args)


def test_a_key_that_is_in_use_makes_no_second_call() -> None:
    world, f = world_with()
    keyed(world, 1, f)
    before = world.state
    keyed(world, 2, f)
    assert world.state is before
    keyed(world, 3, f, key="order-18")
    assert set(world.state.calls) == {call_id(1), call_id(3)}
    check(world)


def test_other_arguments_are_refused_with_the_first_calls_id() -> None:
    world, f = world_with()
    keyed(world, 1, f)
    with pytest.raises(InvalidSpecError, match=rf"'order-17' of train stands for call {call_id(1)}, which has other"):
        keyed(world, 2, f, args="b")


def test_a_key_outlives_its_call_and_ends_after_a_day() -> None:
    world, f = world_with()
    keyed(world, 1, f)
    world.cancel(call_id(1))
    world.do(c.ArchiveCalls(call_ids=(call_id(1),)))
    world.wait(KEPT_MS - 1)
    world.tick()
    keyed(world, 2, f)
    assert call_id(2) not in world.state.calls
    world.wait(1)
    keyed(world, 3, f, args="b")
    assert set(world.state.calls) == {call_id(3)}, "its time is over, whether a tick has come or not"
    world.wait(KEPT_MS)
    assert world.kinds(world.tick()) == ["KeysForgotten"]
    assert not world.state.keys
    check(world)


def test_a_key_belongs_to_a_function_by_name_and_to_a_workspace() -> None:
    world, f = world_with()
    keyed(world, 1, f)
    variant = world.register(spec(gpus=2))
    keyed(world, 2, variant)
    assert call_id(2) not in world.state.calls, "the same function with other resources"
    keyed(world, 3, world.register(spec("other")))
    world.do(c.RegisterFunction(owner=EVE, spec=spec("evil")))
    theirs = next(i for i, function in world.state.functions.items() if function.owner == EVE)
    terms = m.CallTerms(idempotency_key="order-17")
    world.do(c.Submit(call_id=call_id(4), function_id=theirs, owner=EVE, args=BodyRef(), terms=terms, args_sha256="z"))
    assert set(world.state.calls) == {call_id(1), call_id(3), call_id(4)}


def test_the_next_leader_knows_the_keys_and_the_deadlines_from_a_snapshot() -> None:
    world, f = world_with()
    keyed(world, 1, f)
    world.submit(2, f, terms=m.CallTerms(deadline_in_ms=10))
    world.state = from_jsonable(to_jsonable(world.state))
    keyed(world, 3, f)
    world.wait(10)
    world.tick()
    assert world.call(call_id(2)).state is CallState.TIMED_OUT
    assert call_id(3) not in world.state.calls


@pytest.mark.parametrize(
    "terms",
    [
        m.CallTerms(idempotency_key="k"),
        m.CallTerms(deadline_in_ms=5),
        m.CallTerms(own_retries=True, retries=1),
    ],
    ids=["key", "deadline", "retries"],
)
def test_terms_are_refused_while_an_older_replica_would_not_keep_to_them(terms: m.CallTerms) -> None:
    world, f = world_with()
    command = c.Submit(call_id=call_id(1), function_id=f, owner=ANA, args=BodyRef(), terms=terms)
    with pytest.raises(VersionError, match="an older replica"):
        decide(world.state, command, replace(world.now, schema=4))
    assert schema_of(decide(world.state, command, world.now)) == 5
    plain = replace(command, terms=m.CallTerms())
    assert schema_of(decide(world.state, plain, replace(world.now, schema=4))) == 1


def test_a_function_that_says_how_it_is_tried_again_waits_for_all_replicas_to_know() -> None:
    world = World()
    command = c.RegisterFunction(owner=ANA, spec=spec(limits=Limits(retries=1, retrying=Retrying(backoff=3))))
    with pytest.raises(VersionError, match="says how it is tried again, which an older replica"):
        decide(world.state, command, replace(world.now, schema=4))
    assert schema_of(decide(world.state, command, world.now)) == 5


def test_a_call_behind_another_one_says_that_it_waited_there() -> None:
    world, f = world_with(gpus=8)
    running(world, f)
    call = world.submit(2, f, terms=m.CallTerms(deadline_in_ms=1_000))
    world.schedule()
    world.wait(1_000)
    world.tick()
    world.say(
        "n1", m.CallFinished(call_id=call, attempt=1, fence=1, gang_id=world.only_gang().id, outcome=Outcome.CANCELLED)
    )
    assert world.call(call).reason.endswith("that came while it waited at its gang")


def test_what_rank_raised_is_judged_and_not_kept() -> None:
    world, f = world_with()
    events = world.finish(running(world, f), Outcome.FAILED, error=VALUE)
    (failed,) = events_of(events, CallFailed)
    assert isinstance(failed, CallFailed)
    assert failed.error.kinds == ()
