"""What becomes of a gang when its GPU breaks, or when its own program makes the GPU complain."""

from __future__ import annotations

from phalanx.core.messages import ErrorInfo, Member, MemberEnded, Prepare, Start
from phalanx.core.spec import FunctionSpec, Limits
from phalanx.core.states import Cause
from phalanx_agent import gang_events as ev
from phalanx_agent.dataplane.facts import KeeperEnded, RankSaid
from phalanx_agent.supervisor import Supervisor

WHY = "XID 48: double-bit ECC error"


def running(*, gpus: tuple[str, ...] = ("a", "b"), share: float = 1) -> Supervisor:
    supervisor = Supervisor()
    member = Member(node_id="n1", first_rank=4, ranks=len(gpus), gpus=gpus, share=share)
    prepare = Prepare(
        gang_id="g",
        fence=1,
        function=FunctionSpec(name="f", limits=Limits(grace_s=2)),
        members=(member,),
        workspace="red",
    )
    for event in (
        prepare,
        ev.Prepared(gang_id="g", rendezvous="r:1"),
        Start(gang_id="g", fence=1),
        ev.Launched(gang_id="g"),
        RankSaid(gang_id="g", rank=-1, event="ready", pids=(10, 11), backend="gloo"),
    ):
        supervisor.handle(event, 0)
    return supervisor


def end_of(supervisor: Supervisor, keeper: KeeperEnded) -> MemberEnded:
    supervisor.handle(keeper, 0)
    (said,) = [e for e in supervisor.handle(ev.Cleaned(gang_id="g"), 0) if isinstance(e, ev.Say)]
    assert isinstance(said.message, MemberEnded)
    return said.message


def test_a_gang_on_a_broken_gpu_is_stopped_and_its_end_names_the_gpu_and_its_rank() -> None:
    supervisor = running()
    effects = supervisor.handle(ev.GpuFailed(gpu="b", reason=WHY), 0)
    (stop,) = [e for e in effects if isinstance(e, ev.StopGang)]
    assert isinstance(effects[0], ev.BlameGpu), "before the stop turns its failures into ends"
    assert (stop.grace_ms, stop.drain) == (2000, False)
    told = ErrorInfo(cause=Cause.USER_EXCEPTION, message="peer closed")
    ended = end_of(supervisor, KeeperEnded(gang_id="g", clean=True, error=told))
    assert ended.error.cause is Cause.INFRASTRUCTURE
    assert "GPU b on n1 failed: XID 48" in ended.error.message
    assert [(rank.rank, rank.culprit) for rank in ended.error.ranks] == [(5, True)]


def test_a_gang_on_other_gpus_is_left_alone() -> None:
    assert running().handle(ev.GpuFailed(gpu="c", reason=WHY), 0) == ()


def test_a_gang_is_stopped_once() -> None:
    supervisor = running()
    supervisor.handle(ev.GpuFailed(gpu="a", reason=WHY), 0)
    again = supervisor.handle(ev.GpuFailed(gpu="b", reason=WHY), 0)
    assert [type(e) for e in again] == [ev.BlameGpu], "what its ranks still say is that GPU's fault"


def test_a_gang_that_only_prepares_is_given_back() -> None:
    supervisor = Supervisor()
    prepare = Prepare(gang_id="g", fence=1, members=(Member(node_id="n1", gpus=("a",)),))
    supervisor.handle(prepare, 0)
    effects = supervisor.handle(ev.GpuFailed(gpu="a", reason=WHY), 0)
    assert [type(e) for e in effects] == [ev.BlameGpu, ev.AbandonPreparation, ev.ProveClean]


def test_what_a_program_did_is_said_with_an_unclean_end_and_stops_nothing() -> None:
    supervisor = running()
    assert supervisor.handle(ev.GpuNoted(gpu="a", note="XID 31: page fault"), 0) == ()
    supervisor.handle(ev.GpuNoted(gpu="a", note="XID 31: page fault"), 0)
    error = ErrorInfo(cause=Cause.USER_EXCEPTION, message="rank 4 died")
    ended = end_of(supervisor, KeeperEnded(gang_id="g", clean=False, error=error))
    assert ended.error.message == "rank 4 died (XID 31: page fault)"
    assert ended.error.cause is Cause.USER_EXCEPTION


def test_a_clean_end_says_nothing_of_it() -> None:
    supervisor = running()
    supervisor.handle(ev.GpuNoted(gpu="a", note="XID 31: page fault"), 0)
    ended = end_of(supervisor, KeeperEnded(gang_id="g", clean=True, error=ErrorInfo()))
    assert ended.error == ErrorInfo()
