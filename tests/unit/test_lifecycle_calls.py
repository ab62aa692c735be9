"""Submit, cancel, run, fail, retry: what becomes of one call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core import messages as m
from phalanx.core.errors import TIME_PASSED, InvalidSpecError, NotFoundError, UnschedulableError
from phalanx.core.spec import Limits
from phalanx.core.states import CallState, Cause, GangState, Outcome
from phalanx_control.lifecycle.decide import decide
from phalanx_control.state import commands as c
from phalanx_control.state.model import BodyRef
from phalanx_control.state.schemas import schema_of
from tests.support.builders import ANA, BOB, EVE, World, call_id, node_info, spec

USER_ERROR = m.ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="ValueError", message="boom", pickled=b"secret")
INFRA = m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="cable pulled")


def world_with(function_limits: Limits | None = None, *, gpus: float = 1) -> tuple[World, str]:
    world = World(node_info())
    return world, world.register(spec(gpus=gpus, limits=function_limits))


def running(world: World, function_id: str, n: int = 1) -> str:
    world.ready_gang(function_id, n)
    world.start(call_id(n))
    return call_id(n)


def test_the_same_id_submitted_again_is_the_same_call() -> None:
    world, f = world_with()
    world.submit(1, f)
    before = world.state
    world.submit(1, f)
    assert world.state is before


def test_an_id_of_another_workspace_or_function_is_refused() -> None:
    world, f = world_with()
    other = spec("other")
    world.do(c.RegisterFunction(owner=EVE, spec=other))
    mine = world.register(spec("mine"))
    world.submit(1, f)
    with pytest.raises(InvalidSpecError, match="belongs to another call"):
        world.submit(1, other.function_id, EVE)
    with pytest.raises(InvalidSpecError, match="belongs to another call"):
        world.submit(1, mine)


def test_a_function_of_another_workspace_is_not_found() -> None:
    world, f = world_with()
    with pytest.raises(NotFoundError):
        world.submit(1, f, EVE)


def test_text_that_is_no_call_id_is_refused() -> None:
    world, f = world_with()
    with pytest.raises(InvalidSpecError, match="is not one"):
        world.do(c.Submit(call_id="../etc", function_id=f, owner=ANA, args=BodyRef()))


def test_a_call_takes_its_timeout_from_the_function_unless_it_brings_one() -> None:
    world, f = world_with(Limits(timeout_s=2.5))
    assert world.call(world.submit(1, f)).timeout_ms == 2500
    assert world.call(world.submit(2, f, timeout_ms=70)).timeout_ms == 70


def test_without_any_node_everything_is_accepted_and_says_what_it_waits_for() -> None:
    world = World()
    f = world.register(spec(gpus=512))
    assert world.call(world.submit(1, f)).reason == "waits for a first node to join"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (spec(gpus=9, nodes=1), "asks for 9 GPUs, 1 node; this cell has 16 GPUs on 2 nodes, at most 8 on one"),
        (spec(gpus=32), "asks for 32 GPUs"),
        (spec(gpus=2, gpu="A100"), "no such GPU, only NVIDIA H100"),
        (spec(gpus=0, cpus=1000), "asks for no GPU, 1000 cpus per rank"),
        (spec(gpus=1, memory_gb=9999), "9999 GB of memory per rank"),
        (spec(gpus=0.5, gpu="MI300"), "0.5 MI300 GPUs"),
        (spec(gpus=16, launch="single"), "asks for 16 GPUs, one node"),
    ],
)
def test_what_no_set_of_nodes_could_ever_run_is_refused_with_what_could(asked: object, words: str) -> None:
    world = World(node_info("n1"), node_info("n2"))
    f = world.register(asked)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnschedulableError) as caught:
        world.submit(1, f)
    assert words in str(caught.value)


def test_a_call_runs_from_submit_to_result() -> None:
    world, f = world_with()
    call = running(world, f)
    world.wait(50)
    world.finish(call)
    done = world.call(call)
    assert (done.state, done.attempt, done.fence, done.result.key) == (CallState.SUCCEEDED, 1, 1, "result")
    assert (done.started_ms, done.ended_ms, done.busy_ms) == (1000, 1050, 50)
    assert world.only_gang().state is GangState.READY


def test_a_call_that_ended_before_its_start_was_reported_has_a_start_all_the_same() -> None:
    world, f = world_with()
    world.ready_gang(f)
    world.wait(80)
    world.finish(call_id(1), busy_ms=50)
    assert world.call(call_id(1)).started_ms == 1030


def test_a_result_is_stored_once() -> None:
    world, f = world_with()
    call = running(world, f)
    world.finish(call)
    before = world.call(call)
    world.finish(call, Outcome.FAILED, error=USER_ERROR)
    assert world.call(call) == before


def test_a_stale_result_changes_nothing_and_is_kept_as_evidence() -> None:
    world, f = world_with()
    call = running(world, f)
    stale = m.CallFinished(call_id=call, attempt=1, fence=99, gang_id=world.only_gang().id)
    before = world.call(call)
    assert world.kinds(world.say("n1", stale)) == ["StaleRefused"]
    assert world.call(call) == before


def test_a_node_cannot_speak_for_calls_of_another_nodes_gang() -> None:
    world, f = world_with()
    world.hello(node_info("n2"))
    call = running(world, f)
    message = m.CallFinished(call_id=call, attempt=1, fence=1, gang_id=world.only_gang().id)
    assert world.kinds(world.say("n2", message)) == ["StaleRefused"]


def test_a_user_error_ends_the_call_without_its_pickle_in_the_log() -> None:
    world, f = world_with()
    call = running(world, f)
    known = world.call(call)
    message = m.CallFinished(
        call_id=call, attempt=1, fence=1, gang_id=known.gang_id, outcome=Outcome.FAILED, error=USER_ERROR
    )
    world.say("n1", message, error_body=BodyRef(key="err", size=6))
    done = world.call(call)
    assert done.state is CallState.FAILED
    assert done.error is not None
    assert (done.error.type_name, done.error.pickled, done.error_body.key) == ("ValueError", b"", "err")
    assert done.reason == "boom"


def test_retries_wait_twice_as_long_each_time_and_then_the_call_fails() -> None:
    world, f = world_with(Limits(retries=2))
    call = running(world, f)
    for waits in (1_000, 2_000):
        world.finish(call, Outcome.FAILED, error=USER_ERROR)
        assert world.call(call).not_before_ms == world.log_ms + waits
        assert world.kinds(world.schedule()) == []
        world.wait(waits)
        world.schedule()
        world.start(call)
    world.finish(call, Outcome.FAILED, error=USER_ERROR)
    done = world.call(call)
    assert (done.state, done.attempt, done.fence) == (CallState.FAILED, 3, 3)
    assert done.tries == {"user_exception": 2}


def test_infrastructure_does_not_eat_the_users_retries_but_has_its_own_end() -> None:
    world, f = world_with(Limits(retries=1))
    call = running(world, f)
    for _ in range(3):
        world.finish(call, Outcome.FAILED, error=INFRA)
        assert world.call(call).state is CallState.QUEUED
        world.wait(60_000)
        world.schedule()
        world.start(call)
    world.finish(call, Outcome.FAILED, error=INFRA)
    assert world.call(call).state is CallState.FAILED


@pytest.mark.parametrize(
    ("error", "type_name"),
    [
        (INFRA, "OutcomeUnknownError"),
        (m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="rank 1 was killed", signal=9, rank=1), ""),
    ],
)
def test_without_retries_a_call_that_may_have_run_is_not_run_again(error: m.ErrorInfo, type_name: str) -> None:
    world, f = world_with(Limits(retries=0))
    call = running(world, f)
    world.finish(call, Outcome.FAILED, error=error)
    done = world.call(call)
    assert done.error is not None
    assert (done.state, done.error.cause, done.error.type_name) == (CallState.FAILED, Cause.INFRASTRUCTURE, type_name)


def test_preemption_is_free_and_immediate() -> None:
    world, f = world_with()
    call = running(world, f)
    for _ in range(9):
        world.finish(call, Outcome.FAILED, error=m.ErrorInfo(cause=Cause.PREEMPTED, message="for a bigger one"))
        world.schedule()
        world.start(call)
    assert world.call(call).state is CallState.RUNNING


def test_a_call_that_kills_three_gangs_is_poison() -> None:
    world, f = world_with(Limits(retries=9))
    died = m.ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="RankDiedError", message="exited 7", exit_code=7)
    world.submit(1, f)
    for _ in range(3):
        world.wait(60_000)
        world.schedule()
        gang = world.bring_up(world.only_gang())
        world.start(call_id(1))
        world.finish(call_id(1), Outcome.FAILED, error=died)
        world.end(gang, error=died)
    done = world.call(call_id(1))
    assert done.state is CallState.FAILED
    assert done.error is not None
    assert (done.error.cause, done.error.type_name) == (Cause.POISON, "PoisonError")
    assert "three gangs" in done.error.message


def test_a_timeout_is_a_state_of_its_own() -> None:
    world, f = world_with(Limits(timeout_s=3))
    call = running(world, f)
    world.finish(call, Outcome.TIMED_OUT)
    done = world.call(call)
    assert done.state is CallState.TIMED_OUT
    assert done.error is not None
    assert (done.error.type_name, done.error.message) == ("CallTimeoutError", "ran longer than its timeout of 3 s")


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("rank 1 waits at a breakpoint, and nobody attached", "rank 1 waits at a breakpoint, and nobody attached"),
        (f"{TIME_PASSED} while it ran", "ran longer than its timeout of 3 s"),
        ("", "ran longer than its timeout of 3 s"),
    ],
)
def test_a_timeout_is_told_as_its_limit_unless_another_one_was_reported(told: str, shown: str) -> None:
    world, f = world_with(Limits(timeout_s=3))
    call = running(world, f)
    world.finish(call, Outcome.TIMED_OUT, error=m.ErrorInfo(cause=Cause.TIMEOUT, message=told))
    error = world.call(call).error
    assert error is not None
    assert (error.type_name, error.message) == ("CallTimeoutError", shown)


def test_a_failure_that_calls_itself_cancelled_is_still_a_failure() -> None:
    world, f = world_with()
    call = running(world, f)
    world.finish(call, Outcome.FAILED, error=m.ErrorInfo(cause=Cause.CANCELLED, message="?"))
    assert world.call(call).state is CallState.FAILED


def test_a_refused_offer_waits_again_and_its_attempt_does_not_count() -> None:
    world, f = world_with()
    world.ready_gang(f)
    call = world.call(call_id(1))
    refusal = m.CallRefused(call_id=call.id, attempt=1, fence=1, gang_id=call.gang_id, reason="full")
    world.say("n1", refusal)
    assert world.call(call.id).reason == "its gang did not take it: full"
    world.wait(250)
    world.schedule()
    assert (world.call(call.id).attempt, world.call(call.id).fence) == (1, 2)
    assert world.kinds(world.say("n1", refusal)) == ["StaleRefused"]


# ---- cancel ----


def test_a_queued_call_is_cancelled_at_once_and_the_gpus_kept_for_it_return() -> None:
    world, f = world_with()
    world.submit(1, f)
    world.schedule()
    events = world.cancel(call_id(1), BOB)
    assert world.kinds(events) == ["CallCancelling", "CallCancelled", "GangDraining"]
    assert world.call(call_id(1)).cancelled_by == "bob"


def test_a_gang_stays_when_another_call_waits_for_it() -> None:
    world, f = world_with(gpus=8)
    world.submit(1, f)
    world.submit(2, f)
    world.schedule()
    assert world.kinds(world.cancel(call_id(1))) == ["CallCancelling", "CallCancelled"]


def test_a_running_call_is_cancelled_when_its_agent_says_so() -> None:
    world, f = world_with()
    call = running(world, f)
    world.cancel(call)
    assert world.call(call).state is CallState.CANCELLING
    assert any(isinstance(message, m.CancelCall) for message in world.messages_to("n1"))
    world.finish(call, Outcome.CANCELLED)
    assert world.call(call).state is CallState.CANCELLED


def test_a_result_that_comes_after_the_cancellation_does_not_undo_it() -> None:
    world, f = world_with()
    call = running(world, f)
    world.cancel(call)
    world.finish(call)
    assert world.call(call).state is CallState.CANCELLED
    assert world.cancel(call) == ()


def test_a_cancelled_call_ends_with_its_gang_or_its_refusal() -> None:
    world, f = world_with()
    call = running(world, f)
    world.cancel(call)
    world.end(world.only_gang())
    assert world.call(call).state is CallState.CANCELLED
    world.ready_gang(f, 2)
    second = world.call(call_id(2))
    world.cancel(second.id)
    world.say("n1", m.CallRefused(call_id=second.id, attempt=1, fence=1, gang_id=second.gang_id))
    assert world.call(second.id).state is CallState.CANCELLED


def test_a_cancelled_call_whose_attempt_fails_is_not_retried() -> None:
    world, f = world_with(Limits(retries=5))
    call = running(world, f)
    world.cancel(call)
    world.finish(call, Outcome.FAILED, error=USER_ERROR)
    assert world.call(call).state is CallState.CANCELLED


def test_a_call_of_another_workspace_cannot_be_cancelled() -> None:
    world, f = world_with()
    world.submit(1, f)
    with pytest.raises(NotFoundError):
        world.cancel(call_id(1), EVE)
    with pytest.raises(NotFoundError):
        world.cancel(call_id(2))


# ---- direct calls ----


def idle_gang(world: World, function_id: str) -> None:
    world.ready_gang(function_id)
    world.finish(call_id(1))


def test_a_direct_call_becomes_a_logged_one_when_its_start_is_reported() -> None:
    world, f = world_with()
    idle_gang(world, f)
    call = world.start_direct(2, world.only_gang(), timeout_ms=7)
    known = world.call(call)
    assert (known.state, known.direct, known.attempt, known.fence) == (CallState.RUNNING, True, 1, 0)
    assert (known.owner.user, known.args.size, known.timeout_ms) == ("ana", 9, 7)
    assert world.start_direct(2, world.only_gang()) == call
    world.finish(call)
    assert world.call(call).state is CallState.SUCCEEDED
    assert world.only_gang().state is GangState.READY


def test_a_direct_start_adopts_the_same_call_that_was_submitted_in_impatience() -> None:
    world, f = world_with()
    idle_gang(world, f)
    world.submit(2, f)
    world.start_direct(2, world.only_gang())
    assert world.call(call_id(2)).state is CallState.RUNNING
    assert call_id(2) not in world.state.queue


def test_a_direct_start_of_an_unknown_gang_or_another_function_is_stale() -> None:
    world, f = world_with()
    idle_gang(world, f)
    other = world.register(spec("other"))
    gang = world.only_gang()
    world.submit(2, other)
    events = world.say("n1", m.CallStarted(call_id=call_id(2), gang_id=gang.id, direct=True))
    assert world.kinds(events) == ["StaleRefused"]
    events = world.say("n1", m.CallStarted(call_id=call_id(3), gang_id="g-none", direct=True))
    assert world.kinds(events) == ["StaleRefused"]


def test_a_direct_call_that_its_caller_cancelled_is_cancelled() -> None:
    world, f = world_with()
    idle_gang(world, f)
    call = world.start_direct(2, world.only_gang())
    world.finish(call, Outcome.CANCELLED)
    assert world.call(call).state is CallState.CANCELLED


def test_a_direct_call_fails_at_once_because_only_its_caller_has_the_arguments() -> None:
    world, f = world_with(Limits(retries=5))
    idle_gang(world, f)
    call = world.start_direct(2, world.only_gang())
    world.finish(call, Outcome.FAILED, error=USER_ERROR)
    assert world.call(call).state is CallState.FAILED


def test_a_direct_call_lost_with_its_node_has_an_unknown_outcome() -> None:
    world, f = world_with(Limits(disconnect_grace_s=10))
    idle_gang(world, f)
    call = world.start_direct(2, world.only_gang())
    world.wait(60_000)
    world.tick(c.NodeSilent(node_id="n1", silent_ms=18_000))
    done = world.call(call)
    assert done.error is not None
    assert (done.error.type_name, done.error.cause) == ("OutcomeUnknownError", Cause.INFRASTRUCTURE)
    assert "may have run" in done.error.message


def test_a_direct_call_whose_rank_died_says_so() -> None:
    world, f = world_with()
    idle_gang(world, f)
    call = world.start_direct(2, world.only_gang())
    world.end(world.only_gang(), error=m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="killed", signal=9))
    done = world.call(call)
    assert done.error is not None
    assert (done.error.message, done.error.signal) == ("killed", 9)


def test_short_direct_calls_are_counted_together() -> None:
    world, f = world_with()
    idle_gang(world, f)
    gang = world.only_gang()
    counted = m.DirectCalls(gang_id=gang.id, fence=gang.fence, function_id=f, succeeded=3, failed=1, busy_ms=40)
    stale = m.DirectCalls(gang_id=gang.id, fence=99, succeeded=3)
    nothing = m.DirectCalls(gang_id=gang.id, fence=gang.fence)
    events = world.say("n1", m.DirectReport(calls=(counted, stale, nothing)))
    assert world.kinds(events) == ["DirectCallsCounted", "StaleRefused"]
    stats = world.state.stats[f]
    assert (stats.direct_succeeded, stats.direct_failed, stats.direct_busy_ms, stats.logged) == (3, 1, 40, 1)


def said_again(world: World, report: m.DirectReport, *, epoch: int, seq: int) -> list[str]:
    said = c.AgentSaid(node_id="n1", message=report, agent_epoch=epoch, seq=seq)
    return world.kinds(world.do(said))


def test_a_report_of_direct_calls_that_comes_again_counts_once() -> None:
    world, f = world_with()
    idle_gang(world, f)
    gang = world.only_gang()
    report = m.DirectReport(calls=(m.DirectCalls(gang_id=gang.id, fence=gang.fence, succeeded=3),))
    assert said_again(world, report, epoch=0, seq=5) == ["DirectCallsCounted", "DirectReportTaken"]
    assert said_again(world, report, epoch=0, seq=5) == []
    assert said_again(world, report, epoch=0, seq=4) == []
    assert said_again(world, report, epoch=0, seq=6) == ["DirectCallsCounted", "DirectReportTaken"]
    assert world.state.stats[f].direct_succeeded == 6


def test_a_new_agent_process_counts_from_one_again_and_the_former_one_is_over() -> None:
    world, f = world_with()
    idle_gang(world, f)
    gang = world.only_gang()
    report = m.DirectReport(calls=(m.DirectCalls(gang_id=gang.id, fence=gang.fence, succeeded=3),))
    said_again(world, report, epoch=0, seq=5)
    world.hello(replace(world.state.nodes["n1"].info, agent_epoch=7), gang)
    assert said_again(world, report, epoch=7, seq=1) == ["DirectCallsCounted", "DirectReportTaken"]
    assert said_again(world, report, epoch=0, seq=6) == []


def test_a_report_is_counted_though_an_old_replica_could_not_read_that_it_was_taken() -> None:
    world, f = world_with()
    idle_gang(world, f)
    gang = world.only_gang()
    report = m.DirectReport(calls=(m.DirectCalls(gang_id=gang.id, fence=gang.fence, succeeded=3),))
    said = c.AgentSaid(node_id="n1", message=report, seq=1)
    events = decide(world.state, said, replace(world.now, schema=1))
    assert world.kinds(events) == ["DirectCallsCounted"]
    assert schema_of(events) == 1


def test_a_durable_call_dropped_because_its_gang_ends_is_tried_again() -> None:
    world = World(node_info("n1", gpus=1), node_info("n2", gpus=1))
    call = running(world, world.register(spec(gpus=2, limits=Limits(retries=1))))
    world.end(world.only_gang(), error=INFRA, nodes=("n2",))
    world.finish(call, Outcome.CANCELLED)
    known = world.call(call)
    assert (known.state, known.tries) == (CallState.QUEUED, {"infrastructure": 1})
    assert world.only_gang().calls == ()


def test_a_call_that_its_agent_dropped_without_a_reason_is_cancelled() -> None:
    world, f = world_with()
    call = running(world, f)
    world.finish(call, Outcome.CANCELLED)
    assert world.call(call).state is CallState.CANCELLED
