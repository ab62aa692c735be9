"""A gang's life: two-phase start, end, and what it means for calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core import messages as m
from phalanx.core.spec import Limits
from phalanx.core.states import CallState, Cause, GangState, GpuState, Outcome, Phase
from phalanx_control.lifecycle.decide import decide
from phalanx_control.state import commands as c
from phalanx_control.state import queries
from phalanx_control.state.model import SCHEMA_VERSION, Gang
from tests.support.builders import World, call_id, node_info, spec

USER_ERROR = m.ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="ImportError", message="no module named x")


def two_nodes(limits: Limits | None = None) -> tuple[World, str]:
    world = World(node_info("n1", gpus=4), node_info("n2", gpus=4))
    return world, world.register(spec(gpus=8, limits=limits))


def reserved(world: World, function_id: str, n: int = 1) -> Gang:
    world.submit(n, function_id)
    world.schedule()
    return world.only_gang()


def prepared(gang: Gang, error: str = "") -> m.MemberPrepared:
    return m.MemberPrepared(gang_id=gang.id, fence=gang.fence, rendezvous="n1:5", error=error)


def test_nobody_starts_before_everybody_is_prepared() -> None:
    world, f = two_nodes()
    gang = reserved(world, f)
    assert world.kinds(world.say("n1", prepared(gang))) == ["MemberWasPrepared"]
    assert world.only_gang().state is GangState.PREPARING
    assert world.kinds(world.say("n2", prepared(gang))) == ["MemberWasPrepared", "GangStarting"]


def test_nobody_is_used_before_everybody_is_ready() -> None:
    world, f = two_nodes()
    gang = reserved(world, f)
    world.prepare(gang)
    ready = m.MemberReady(gang_id=gang.id, fence=gang.fence, pids=(1, 2, 3, 4), backend="gloo")
    assert world.kinds(world.say("n2", ready)) == ["MemberWasReady"]
    assert world.kinds(world.say("n1", ready)) == ["MemberWasReady", "GangReady", "CallAssigned"]
    assert (world.only_gang().state, world.only_gang().backend) == (GangState.BUSY, "gloo")


def test_what_the_ranks_got_is_kept_with_their_node() -> None:
    world, f = two_nodes()
    gang = reserved(world, f)
    world.prepare(gang)
    said = m.MemberReady(gang_id=gang.id, fence=gang.fence, equipment="what they got")
    assert world.kinds(world.say("n2", said)) == ["MemberWasReady", "RanksEquipped"]
    assert [each.equipment for each in world.only_gang().members] == ["", "what they got"]


@pytest.mark.parametrize(("text", "schema"), [("", SCHEMA_VERSION), ("x" * 70_000, SCHEMA_VERSION), ("short", 2)])
def test_what_is_empty_too_long_or_beyond_an_older_replica_is_not_kept(text: str, schema: int) -> None:
    world, f = two_nodes()
    gang = reserved(world, f)
    world.prepare(gang)
    said = c.AgentSaid(node_id="n2", message=m.MemberReady(gang_id=gang.id, fence=gang.fence, equipment=text))
    events = decide(world.state, said, replace(world.now, schema=schema))
    assert world.kinds(events) == ["MemberWasReady"]


def test_what_is_said_twice_or_too_late_changes_nothing() -> None:
    world, f = two_nodes()
    gang = reserved(world, f)
    world.say("n1", prepared(gang))
    assert world.say("n1", prepared(gang)) == ()
    assert world.say("n2", m.MemberReady(gang_id=gang.id, fence=gang.fence)) == ()
    world.bring_up(gang)
    assert world.say("n1", prepared(gang)) == ()
    assert world.say("n1", m.MemberReady(gang_id=gang.id, fence=gang.fence)) == ()


@pytest.mark.parametrize("kind", [m.MemberPrepared, m.MemberReady, m.MemberEnded])
def test_a_word_under_another_fence_or_of_a_stranger_is_stale(kind: type[m.MemberPrepared]) -> None:
    world, f = two_nodes()
    gang = reserved(world, f)
    world.hello(node_info("n3"))
    for node_id, gang_id, fence in (("n1", gang.id, 9), ("n3", gang.id, gang.fence), ("n1", "g-x", gang.fence)):
        before = world.state.gangs
        assert world.kinds(world.say(node_id, kind(gang_id=gang_id, fence=fence))) == ["StaleRefused"]
        assert world.state.gangs == before


def test_a_member_that_cannot_prepare_returns_the_whole_gang_and_the_call_waits_again() -> None:
    world, f = two_nodes()
    gang = reserved(world, f)
    world.say("n2", prepared(gang, error="disk full"))
    assert world.only_gang().state is GangState.DRAINING
    world.end(gang)
    assert not world.state.gangs
    call = world.call(call_id(1))
    assert (call.state, call.tries) == (CallState.QUEUED, {"infrastructure": 1})
    assert "after GangStartError: n2 could not prepare: disk full" in call.reason
    assert all(line.credited for line in world.state.ledger.values())


def test_a_gang_that_can_never_be_prepared_fails_its_call_in_the_end() -> None:
    world, f = two_nodes()
    world.submit(1, f)
    for _ in range(4):
        world.wait(60_000)
        world.schedule()
        gang = world.only_gang()
        world.say("n1", prepared(gang, error="no such package"))
        world.end(gang)
    done = world.call(call_id(1))
    assert done.state is CallState.FAILED
    assert done.error is not None
    assert "no such package" in done.error.message


def test_a_user_error_during_the_start_fails_the_waiting_call_at_once() -> None:
    world, f = two_nodes()
    gang = reserved(world, f)
    world.prepare(gang)
    world.end(gang, error=USER_ERROR, nodes=("n2",))
    done = world.call(call_id(1))
    assert done.state is CallState.FAILED
    assert done.error is not None
    assert (done.error.type_name, done.error.node_id) == ("ImportError", "n2")
    world.end(gang, nodes=("n1",))
    assert not any(line.credited for line in world.state.ledger.values())


def test_ranks_that_end_silently_during_the_start_count_as_infrastructure() -> None:
    world, f = two_nodes()
    gang = reserved(world, f)
    world.prepare(gang)
    world.end(gang)
    assert world.call(call_id(1)).tries == {"infrastructure": 1}


def test_the_first_dead_member_ends_the_gang_and_the_last_one_releases_it() -> None:
    world, f = two_nodes(Limits(retries=1))
    gang = world.ready_gang(f)
    world.start(call_id(1))
    died = m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="rank 5 was killed", signal=9, rank=5)
    world.end(gang, error=died, nodes=("n2",))
    assert world.call(call_id(1)).state is CallState.RUNNING
    world.end(gang, nodes=("n1",))
    call = world.call(call_id(1))
    assert (call.state, call.gangs_killed) == (CallState.QUEUED, (gang.id,))
    assert world.messages_to("n1")[-1] == m.Stop(
        gang_id=gang.id, fence=gang.fence, reason="rank 5 was killed", grace_ms=3000
    )


def test_the_member_that_names_the_culprit_is_believed_over_one_that_does_not() -> None:
    world, f = two_nodes()
    gang = world.ready_gang(f)
    world.end(gang, error=m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="peer closed"), nodes=("n1",))
    culprit = m.ErrorInfo(cause=Cause.USER_EXCEPTION, message="exit 7", exit_code=7)
    world.end(gang, error=culprit, nodes=("n2",))
    assert not any(line.credited for line in world.state.ledger.values())


def test_a_call_that_had_not_begun_goes_back_without_a_mark() -> None:
    world, f = two_nodes()
    gang = world.ready_gang(f)
    world.submit(2, f)
    world.schedule()
    world.start(call_id(1))
    world.finish(call_id(1), Outcome.FAILED, error=USER_ERROR)
    world.end(gang, error=USER_ERROR)
    call = world.call(call_id(2))
    assert (call.state, call.attempt, call.fence, call.tries) == (CallState.QUEUED, 0, 1, {})


def test_a_clean_end_without_a_word_about_the_running_call_is_infrastructure() -> None:
    world, f = two_nodes(Limits(retries=1))
    gang = world.ready_gang(f)
    world.start(call_id(1))
    world.end(gang)
    assert world.call(call_id(1)).tries == {"infrastructure": 1}


def test_a_call_beside_one_that_was_cancelled_is_not_told_that_it_was() -> None:
    world, f = two_nodes(Limits(retries=1))
    gang = world.ready_gang(f)
    world.submit(2, f)
    world.schedule()
    world.start(call_id(1))
    world.start(call_id(2))
    world.finish(call_id(1), Outcome.CANCELLED)
    world.end(gang, error=m.ErrorInfo(cause=Cause.CANCELLED, message="the call was cancelled while it ran"))
    assert world.call(call_id(1)).state is CallState.CANCELLED
    other = world.call(call_id(2))
    assert (other.state, other.tries) == (CallState.QUEUED, {"infrastructure": 1})


def test_an_end_without_a_reason_is_reported_as_such() -> None:
    world, f = two_nodes()
    gang = world.ready_gang(f)
    world.say("n1", m.MemberEnded(gang_id=gang.id, fence=gang.fence, clean=False))
    assert world.only_gang().stop_reason == "ranks on n1 ended without a reason"
    assert world.say("n1", m.MemberEnded(gang_id=gang.id, fence=gang.fence)) == ()


def test_gpus_that_were_not_clean_are_marked_and_not_given_away() -> None:
    world, f = two_nodes()
    gang = world.ready_gang(f)
    dirty = (
        m.GpuInfo(uuid="n1-gpu0", state=GpuState.HELD, reason="memory not returned"),
        m.GpuInfo(uuid="n1-gpu1", state=GpuState.EXTERNAL, reason="pid 7"),
    )
    world.say("n1", m.MemberEnded(gang_id=gang.id, fence=gang.fence, quarantined=dirty))
    marks = world.state.nodes["n1"].marks
    assert marks["n1-gpu0"].state is GpuState.QUARANTINED
    assert marks["n1-gpu1"].state is GpuState.EXTERNAL
    assert set(queries.free_shares(world.state)["n1"]) == {"n1-gpu2", "n1-gpu3"}


def test_an_idle_gang_is_let_go_after_its_window_and_its_calls_may_finish() -> None:
    world, f = two_nodes(Limits(scaledown_window_s=60))
    gang = world.ready_gang(f)
    world.idle_ms = {gang.id: 60_000, "g-gone": 1}
    assert world.tick() == ()
    world.finish(call_id(1))
    world.wait(59_000)
    assert world.tick() == ()
    world.wait(1_000)
    assert world.kinds(world.tick()) == ["GangDraining"]
    assert world.messages_to("n1")[-1] == m.Stop(
        gang_id=gang.id, fence=gang.fence, reason="idle for scaledown_window=60 s", drain=True, grace_ms=3000
    )
    world.end(gang)
    assert not any(line.credited for line in world.state.ledger.values())


def test_a_gang_with_work_waiting_is_not_let_go() -> None:
    world, f = two_nodes(Limits(scaledown_window_s=1))
    gang = world.ready_gang(f)
    world.finish(call_id(1))
    world.submit(2, f)
    world.wait(5_000)
    world.idle_ms = {gang.id: 5_000}
    assert world.tick() == ()


@pytest.mark.parametrize(("forked", "cause"), [(False, "infrastructure"), (True, "timeout")])
def test_a_gang_that_is_not_ready_in_time_is_given_up(forked: bool, cause: str) -> None:
    world, f = two_nodes(Limits(startup_timeout_s=10, retries=1))
    gang = reserved(world, f)
    if forked:
        world.prepare(gang)
    world.wait(10_000)
    assert world.tick() == ()
    world.wait(1)
    world.tick()
    assert "startup_timeout=10 s" in world.only_gang().stop_reason
    world.end(gang)
    assert world.call(call_id(1)).tries == {cause: 1}


def test_a_ready_gang_takes_the_oldest_call_that_may_run() -> None:
    world, f = two_nodes()
    world.submit(5, f)
    world.wait(1)
    world.submit(2, f)
    world.schedule()
    world.cancel(call_id(5))
    world.bring_up(world.only_gang())
    assert world.call(call_id(2)).state is CallState.ASSIGNED


def test_a_gang_that_comes_up_with_nothing_left_to_do_is_idle() -> None:
    world, f = two_nodes(Limits(retries=1))
    gang = reserved(world, f)
    world.prepare(gang)
    world.submit(2, f)
    world.cancel(call_id(1))
    world.cancel(call_id(2))
    assert world.bring_up(gang).state is GangState.READY


def test_overdue_calls_are_ended_when_the_agent_says_nothing() -> None:
    world, f = two_nodes()
    gang = world.ready_gang(f)
    world.finish(call_id(1))
    world.submit(2, f, timeout_ms=1_000)
    world.schedule()
    world.start(call_id(2))
    world.wait(1_000 + 3_000 + 10_000)
    assert world.tick() == ()
    world.wait(1)
    assert world.kinds(world.tick()) == ["GangDraining", "CallFailed"]
    assert world.call(call_id(2)).state is CallState.TIMED_OUT
    assert world.state.gangs[gang.id].stop_reason.endswith("at its timeout")


def test_a_cancellation_that_the_agent_ignores_ends_the_gang() -> None:
    world, f = two_nodes()
    world.ready_gang(f)
    world.cancel(call_id(1))
    world.wait(13_001)
    assert world.kinds(world.tick()) == ["GangDraining"]
    assert world.tick() == ()


def test_counters_keep_their_maximum_and_only_growth_is_logged() -> None:
    world, f = two_nodes()
    gang = world.ready_gang(f)
    world.wait(100_000)

    def seen(ms: int) -> list[str]:
        counters = (m.Counter(gpu="n1-gpu0", phase=Phase.BUSY, ms=ms),)
        return world.kinds(world.do(c.Tick(meters=(c.CountersSeen(gang_id=gang.id, node_id="n1", counters=counters),))))

    assert seen(500) == ["MeterCounted"]
    assert seen(500) == []
    assert seen(400) == []
    assert seen(900) == ["MeterCounted"]
    assert world.state.ledger[f"{gang.id}/n1"].counters == {"n1-gpu0/busy": 900}


def test_no_gpu_is_counted_for_longer_than_its_lease() -> None:
    world, f = two_nodes()
    gang = world.ready_gang(f)
    world.wait(10_000)
    counters = (
        m.Counter(gpu="n1-gpu0", phase=Phase.BUSY, ms=9_000),
        m.Counter(gpu="n1-gpu0", phase=Phase.IDLE_WARM, ms=9_000),
    )
    world.say("n1", m.MemberEnded(gang_id=gang.id, fence=gang.fence, counters=counters))
    counted = world.state.ledger[f"{gang.id}/n1"].counters
    assert sum(counted.values()) == 10_000 + 50 + 1_000


def test_counters_of_an_unknown_lease_count_nothing() -> None:
    world, _ = two_nodes()
    seen = c.CountersSeen(gang_id="g-x", node_id="n1", counters=(m.Counter(gpu="g", ms=5),))
    assert world.do(c.Tick(meters=(seen,))) == ()
