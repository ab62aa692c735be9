"""The supervisor's rules: what each event makes it ask for, and what it refuses. Pure: no process, no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest

from phalanx.core.messages import (
    CallRefused,
    CancelCall,
    Counter,
    ErrorInfo,
    GpuInfo,
    Member,
    MemberEnded,
    MemberPrepared,
    MemberReady,
    Offer,
    Prepare,
    Start,
    Stop,
)
from phalanx.core.spec import FunctionSpec, Limits, Resources
from phalanx.core.states import Cause, GpuState, Phase
from phalanx.core.topology.equipment import Equipment, Variable, to_text
from phalanx_agent import gang_events as ev
from phalanx_agent.dataplane.facts import KeeperAttached, KeeperEnded, KeeperStuck, RankSaid
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.supervisor import LeaseState, Supervisor
from tests.support.gang_configs import gang_config

T = TypeVar("T")

FUNCTION = FunctionSpec(
    name="f",
    resources=Resources(gpus=2),
    limits=Limits(startup_timeout_s=60, disconnect_grace_s=10, grace_s=3),
)


def prepare(gang: str = "g-1", *, fence: int = 1, gpus: tuple[str, ...] = ("a", "b"), share: float = 1) -> Prepare:
    member = Member(node_id="n0", ranks=len(gpus), gpus=gpus, share=share)
    return Prepare(gang_id=gang, fence=fence, function_id="f-1", function=FUNCTION, members=(member,))


class World:
    """A supervisor and everything that it asked for."""

    def __init__(self) -> None:
        self.supervisor = Supervisor()
        self.now_ms = 0
        self.effects: list[ev.Effect] = []

    def tell(self, *events: ev.Event) -> list[ev.Effect]:
        """Returns the effects of the last of these events."""
        last: list[ev.Effect] = []
        for event in events:
            last = list(self.supervisor.handle(event, self.now_ms))
            self.effects += last
        return last

    def said(self, kind: type[T]) -> list[T]:
        return [e.message for e in self.effects if isinstance(e, ev.Say) and isinstance(e.message, kind)]

    def asked(self, kind: type[T]) -> list[T]:
        return [e for e in self.effects if isinstance(e, kind)]

    def state(self, gang: str = "g-1") -> LeaseState:
        return self.supervisor.leases[gang].state

    def prepared(self, gang: str = "g-1", **changes: Any) -> World:
        self.tell(prepare(gang, **changes), ev.Prepared(gang_id=gang, rendezvous="127.0.0.1:5"))
        return self

    def started(self, gang: str = "g-1") -> World:
        self.prepared(gang)
        self.tell(Start(gang_id=gang, fence=1, rendezvous="127.0.0.1:5"), ev.Launched(gang_id=gang))
        return self

    def ready(self, gang: str = "g-1") -> World:
        self.started(gang)
        self.tell(RankSaid(gang_id=gang, rank=-1, event="ready", pids=(7, 8), backend="gloo"))
        return self

    def ended(self, gang: str = "g-1", **changes: Any) -> World:
        values: dict[str, Any] = {"clean": True, "error": ErrorInfo(), **changes}
        self.tell(KeeperEnded(gang_id=gang, **values))
        return self


def test_a_gang_is_prepared_started_ready_ended_and_forgotten() -> None:
    world = World()
    assert [type(e) for e in world.tell(prepare())] == [ev.OpenMeter, ev.PrepareMember]
    world.tell(ev.Prepared(gang_id="g-1", rendezvous="127.0.0.1:5"))
    assert world.said(MemberPrepared) == [MemberPrepared(gang_id="g-1", fence=1, rendezvous="127.0.0.1:5")]
    launch = world.tell(Start(gang_id="g-1", fence=1, rendezvous="127.0.0.1:5", peer_tickets=("t",)))
    assert [type(e) for e in launch] == [ev.EnterPhase, ev.LaunchGang]
    world.tell(ev.Launched(gang_id="g-1"))
    world.tell(RankSaid(gang_id="g-1", rank=-1, event="ready", pids=(7, 8), backend="gloo"))
    assert world.said(MemberReady) == [MemberReady(gang_id="g-1", fence=1, pids=(7, 8), backend="gloo")]
    world.ended()
    counters = (Counter(gpu="a", phase=Phase.BUSY, ms=5),)
    world.tell(ev.Cleaned(gang_id="g-1", counters=counters))
    assert world.said(MemberEnded) == [MemberEnded(gang_id="g-1", fence=1, counters=counters)]
    assert world.tell(ev.EndStored(gang_id="g-1")) == [ev.ForgetGang(gang_id="g-1")]
    assert not world.supervisor.leases


def test_messages_that_come_twice_change_nothing() -> None:
    world = World()
    world.tell(prepare())
    assert world.tell(prepare()) == []
    world.tell(ev.Prepared(gang_id="g-1"), Start(gang_id="g-1", fence=1))
    assert world.tell(Start(gang_id="g-1", fence=1)) == []
    assert len(world.asked(ev.LaunchGang)) == 1


def test_what_was_said_is_said_again_when_it_is_asked_for_again() -> None:
    world = World().prepared()
    world.tell(prepare())
    assert len(world.said(MemberPrepared)) == 2
    world = World().ready()
    world.tell(Start(gang_id="g-1", fence=1))
    assert len(world.said(MemberReady)) == 2


@pytest.mark.parametrize(
    "message",
    [prepare(fence=2), Start(gang_id="g-1", fence=2), Stop(gang_id="g-1", fence=2), Stop(gang_id="g-1", fence=0)],
)
def test_a_message_under_another_fence_is_refused(message: ev.Event) -> None:
    world = World().ready()
    (effect,) = world.tell(message)
    assert isinstance(effect, ev.Refused)
    assert world.state() is LeaseState.READY


def test_a_failed_preparation_is_told_and_returned() -> None:
    world = World()
    world.tell(prepare(), ev.Prepared(gang_id="g-1", error="no such blob"))
    assert world.said(MemberPrepared)[0].error == "no such blob"
    assert world.state() is LeaseState.CLEANING
    world.tell(ev.Cleaned(gang_id="g-1"))
    assert len(world.said(MemberEnded)) == 1


def test_stopping_a_preparation_abandons_it_and_starts_nothing() -> None:
    world = World()
    world.tell(prepare())
    effects = world.tell(Stop(gang_id="g-1", fence=1))
    assert [type(e) for e in effects] == [ev.AbandonPreparation, ev.ProveClean]
    assert world.tell(ev.Prepared(gang_id="g-1", rendezvous="late")) == []
    assert world.tell(Start(gang_id="g-1", fence=1)) == []
    assert not world.asked(ev.LaunchGang)


def test_a_stop_that_comes_while_the_ranks_are_forked_is_kept_until_they_are() -> None:
    world = World().prepared()
    world.tell(Start(gang_id="g-1", fence=1))
    assert world.tell(Stop(gang_id="g-1", fence=1, reason="cancelled", grace_ms=5)) == []
    effects = world.tell(ev.Launched(gang_id="g-1"))
    assert ev.StopGang(gang_id="g-1", reason="cancelled", grace_ms=5) in effects


def test_a_failed_launch_ends_the_gang_with_its_reason() -> None:
    world = World().prepared()
    world.tell(Start(gang_id="g-1", fence=1), ev.Launched(gang_id="g-1", error="no memory"))
    world.tell(ev.Cleaned(gang_id="g-1"))
    (ended,) = world.said(MemberEnded)
    assert not ended.clean
    assert ended.error.message == "no memory"


def test_stopping_a_warm_gang_asks_its_keeper_and_counts_teardown() -> None:
    world = World().ready()
    effects = world.tell(Stop(gang_id="g-1", fence=1, reason="idle", grace_ms=100))
    assert effects == [
        ev.EnterPhase(gang_id="g-1", phase=Phase.TEARDOWN),
        ev.StopGang(gang_id="g-1", reason="idle", grace_ms=100),
    ]


def test_a_drain_can_be_cut_short_but_a_stop_is_not_softened() -> None:
    world = World().ready()
    world.tell(Stop(gang_id="g-1", fence=1, drain=True))
    assert world.asked(ev.StopGang)[-1].drain
    assert world.tell(Stop(gang_id="g-1", fence=1, drain=True)) == []
    world.tell(Stop(gang_id="g-1", fence=1, drain=False))
    assert not world.asked(ev.StopGang)[-1].drain
    assert world.tell(Stop(gang_id="g-1", fence=1, drain=True)) == []


def test_stopping_an_unknown_gang_is_answered_as_ended() -> None:
    world = World()
    world.tell(Stop(gang_id="g-9", fence=4))
    assert world.said(MemberEnded) == [MemberEnded(gang_id="g-9", fence=4)]


def test_starting_an_unknown_gang_is_answered_with_infrastructure() -> None:
    world = World()
    world.tell(Start(gang_id="g-9", fence=4))
    (ended,) = world.said(MemberEnded)
    assert ended.error.cause is Cause.INFRASTRUCTURE
    assert not ended.clean


def test_an_ended_gang_is_never_prepared_again() -> None:
    world = World().ready().ended()
    world.tell(ev.Cleaned(gang_id="g-1"), ev.EndStored(gang_id="g-1"))
    (effect,) = world.tell(prepare())
    assert effect == ev.Say(message=world.said(MemberEnded)[0])


def test_a_newer_lease_ends_the_older_one_on_its_gpus_first_and_then_prepares() -> None:
    world = World().ready("g-1")
    effects = world.tell(prepare("g-2", fence=2, gpus=("b", "c")))
    assert [type(e) for e in effects] == [ev.EnterPhase, ev.StopGang]
    assert world.state("g-2") is LeaseState.WAITING
    world.ended("g-1")
    effects = world.tell(ev.Cleaned(gang_id="g-1"))
    assert [type(e) for e in effects] == [ev.Say, ev.OpenMeter, ev.PrepareMember]
    assert world.state("g-2") is LeaseState.PREPARING


def test_an_older_lease_does_not_get_a_gpu_of_a_newer_one() -> None:
    world = World()
    world.tell(prepare("g-2", fence=2), prepare("g-1", fence=1))
    assert "g-2" in world.said(MemberPrepared)[0].error
    assert "g-1" not in world.supervisor.leases


def test_a_gang_that_waits_for_its_gpus_can_be_stopped() -> None:
    world = World().ready("g-1")
    world.tell(prepare("g-2", fence=2))
    effects = world.tell(Stop(gang_id="g-2", fence=2))
    assert effects == [ev.ProveClean(gang_id="g-2", gpus=())]


def test_two_halves_share_a_gpu_and_a_third_does_not_fit() -> None:
    world = World()
    for number in (1, 2):
        world.tell(prepare(f"g-{number}", fence=number, gpus=("a",), share=0.5))
        assert world.state(f"g-{number}") is LeaseState.PREPARING
    world.tell(prepare("g-3", fence=3, gpus=("a",), share=0.5))
    assert world.state("g-3") is LeaseState.WAITING


def test_the_context_is_a_phase_of_its_own() -> None:
    world = World().started()
    effects = world.tell(RankSaid(gang_id="g-1", rank=0, event="context"))
    assert effects == [ev.EnterPhase(gang_id="g-1", phase=Phase.CONTEXT)]


def test_a_rank_failure_is_told_with_its_error_and_the_dirty_gpu() -> None:
    error = ErrorInfo(cause=Cause.USER_EXCEPTION, message="boom", rank=1)
    world = World().ready().ended(error=error)
    dirty = GpuInfo(uuid="b", state=GpuState.QUARANTINED, reason="memory")
    world.tell(ev.Cleaned(gang_id="g-1", quarantined=(dirty,)))
    (ended,) = world.said(MemberEnded)
    assert (ended.error, ended.quarantined) == (error, (dirty,))


def test_a_keeper_that_does_not_stop_is_killed() -> None:
    world = World().ready()
    world.tell(Stop(gang_id="g-1", fence=1))
    (effect,) = world.tell(KeeperStuck(gang_id="g-1", keeper_pid=99))
    assert effect == ev.KillKeeper(gang_id="g-1", pid=99)
    world.ended(clean=False)
    assert world.tell(KeeperStuck(gang_id="g-1", keeper_pid=99)) == []


def test_an_offer_is_queued_by_a_running_gang_and_refused_by_any_other() -> None:
    offer = Offer(call_id="c-1", gang_id="g-1", attempt=2, fence=3)
    world = World()
    world.tell(offer)
    assert world.said(CallRefused)[0].fence == 3
    world.started()
    assert world.tell(offer) == [ev.QueueCall(offer=offer)]
    world.tell(Stop(gang_id="g-1", fence=1))
    world.tell(offer)
    assert "stopping" in world.said(CallRefused)[-1].reason


def test_a_cancel_is_passed_on_whatever_is_known() -> None:
    cancel = CancelCall(call_id="c-1", gang_id="g-1")
    assert World().tell(cancel) == [ev.TakeBack(cancel=cancel)]


def test_a_gang_that_does_not_come_up_in_time_is_ended_with_a_timeout() -> None:
    world = World().started()
    world.now_ms = 60_000
    assert world.tell(ev.Tick()) == []
    world.now_ms = 60_001
    assert [type(e) for e in world.tell(ev.Tick())] == [ev.EnterPhase, ev.StopGang]
    world.ended()
    world.tell(ev.Cleaned(gang_id="g-1"))
    assert world.said(MemberEnded)[0].error.cause is Cause.TIMEOUT


def test_without_a_control_plane_gangs_live_for_their_grace_and_no_longer() -> None:
    world = World().ready()
    assert world.tell(ev.Tick(silent_ms=10_000)) == []
    assert isinstance(world.tell(ev.Tick(silent_ms=10_001))[-1], ev.StopGang)
    assert world.tell(ev.Tick(silent_ms=20_000)) == []


def test_a_grace_of_zero_means_that_silence_ends_nothing() -> None:
    world = World()
    patient = replace(FUNCTION, limits=replace(FUNCTION.limits, disconnect_grace_s=0))
    world.tell(replace(prepare(), function=patient))
    assert world.tell(ev.Tick(silent_ms=10_000_000)) == []


def test_an_adopted_gang_is_ready_again_when_its_keeper_says_so() -> None:
    world = World()
    world.tell(ev.Adopted(config=config(), alive=True))
    world.tell(KeeperAttached(gang_id="g-1", phase="busy", pids=(7,), keeper_pid=3, backend="gloo"))
    assert world.said(MemberReady) == [MemberReady(gang_id="g-1", fence=1, pids=(7,), backend="gloo")]
    assert world.tell(Start(gang_id="g-1", fence=1))


def test_what_the_ranks_got_is_told_when_they_are_ready_and_again_by_the_next_agent() -> None:
    got = Equipment(variables=(Variable("NCCL_CROSS_NIC", "0", "rails"),), topology="/run/topology/1.json")
    shown = to_text(got.shown())
    world = World().prepared()
    world.tell(Start(gang_id="g-1", fence=1), ev.Equipped(gang_id="g-1", equipment=to_text(got)))
    world.tell(ev.Launched(gang_id="g-1"), RankSaid(gang_id="g-1", rank=-1, event="ready"))
    assert [said.equipment for said in world.said(MemberReady)] == [shown]
    after = World()
    after.tell(ev.Adopted(config=replace(config(), equipment=to_text(got)), alive=True))
    after.tell(KeeperAttached(gang_id="g-1", phase="ready", pids=(7,), keeper_pid=3))
    assert [said.equipment for said in after.said(MemberReady)] == [shown]


def test_a_gang_that_ended_without_an_agent_is_told_as_it_ended() -> None:
    world = World()
    error = ErrorInfo(cause=Cause.INFRASTRUCTURE, message="lost")
    effects = world.tell(ev.Adopted(config=config(), alive=False, error=error))
    assert [type(e) for e in effects] == [ev.EnterPhase, ev.ProveClean]
    world.tell(ev.Cleaned(gang_id="g-1"))
    assert world.said(MemberEnded)[0].error == error


def test_ending_all_stops_what_runs_and_gives_up_what_does_not() -> None:
    world = World().ready("g-1")
    world.tell(prepare("g-2", fence=2, gpus=("c",)))
    kinds = {type(e) for e in world.supervisor.end_all("stop", 0)}
    assert {ev.StopGang, ev.AbandonPreparation} <= kinds


def test_late_words_about_forgotten_gangs_are_harmless() -> None:
    world = World()
    late: tuple[ev.Event, ...] = (
        ev.Prepared(gang_id="g-9"),
        ev.Launched(gang_id="g-9"),
        ev.Cleaned(gang_id="g-9"),
        ev.EndStored(gang_id="g-9"),
        KeeperAttached(gang_id="g-9", phase="ready", pids=(), keeper_pid=1),
        RankSaid(gang_id="g-9", rank=-1, event="ready"),
        KeeperEnded(gang_id="g-9", clean=True, error=ErrorInfo()),
        KeeperStuck(gang_id="g-9", keeper_pid=1),
    )
    for event in late:
        assert world.tell(event) == []


def config() -> GangConfig:
    return gang_config(FUNCTION, Member(node_id="n0", ranks=2, gpus=("a", "b")), rendezvous="127.0.0.1:5")
