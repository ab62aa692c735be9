"""What the control plane makes of GPUs that report faults, and of nodes that look different than before."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core import messages as m
from phalanx.core.spec import Limits
from phalanx.core.states import CallState, Cause, GpuState
from phalanx_control.lifecycle.facts import LiveFacts
from phalanx_control.state import queries
from phalanx_control.views import node_view
from tests.support.builders import World, call_id, node_info, spec

WHY = "XID 48: double-bit ECC error; reset the GPU: nvidia-smi --gpu-reset -i 0"


def faulty(info: m.NodeInfo, at: int, *, cordon: bool = True, state: GpuState = GpuState.QUARANTINED) -> m.GpuInfo:
    return replace(info.gpus[at], state=state, reason=WHY, cordon=cordon)


def marked(world: World) -> set[str]:
    return {uuid for node in world.state.nodes.values() for uuid in node.marks}


def test_a_changed_topology_replaces_the_former_one_and_the_same_is_nothing() -> None:
    world = World(node_info())
    assert world.kinds(world.say("n1", m.Report(topology="{1}"))) == ["NodeJoined"]
    assert world.say("n1", m.Report(topology="{1}")) == ()
    assert world.say("n1", m.Report()) == ()
    assert world.state.nodes["n1"].info == replace(node_info(), topology="{1}")


def shown(world: World, at: int) -> m.GpuInfo:
    return node_view(world.state, world.state.nodes["n1"], LiveFacts()).gpus[at].info


def test_a_gpu_that_works_badly_says_so_and_is_free() -> None:
    info = node_info(gpus=2)
    world = World(info)
    hot = replace(info.gpus[1], reason="slowed down: it is too hot (driver)")
    world.say("n1", m.Report(gpus=(info.gpus[0], hot), topology="{1}"))
    assert (shown(world, 1).state, shown(world, 1).reason) == (GpuState.FREE, hot.reason)
    assert queries.free_shares(world.state)["n1"]["n1-gpu1"] == 1
    world.say("n1", m.Report(gpus=info.gpus, topology="{1}"))
    assert shown(world, 1).reason == ""


def test_a_gpu_that_is_not_cordoned_because_others_are_says_so() -> None:
    info = node_info(gpus=2)
    world = World(info)
    world.say("n1", m.Report(gpus=(faulty(info, 0), faulty(info, 1)), topology="{1}"))
    assert (shown(world, 0).state, shown(world, 0).reason) == (GpuState.QUARANTINED, WHY)
    assert shown(world, 1).state is GpuState.FREE
    assert "a fifth of its pool is quarantined: XID 48" in shown(world, 1).reason


def test_marks_of_gpus_that_a_node_no_longer_has_go_when_it_says_which_it_has() -> None:
    info = node_info(gpus=3)
    world = World(info)
    gone = faulty(info, 2, cordon=False, state=GpuState.DOWN)
    world.say("n1", m.Report(gpus=(faulty(info, 0), info.gpus[1], gone)))
    assert marked(world) == {"n1-gpu0", "n1-gpu2"}
    fewer = replace(info, gpus=info.gpus[:2])
    world.say("n1", m.Hello(node=replace(fewer, gpus=(faulty(info, 0), info.gpus[1]))))
    assert marked(world) == {"n1-gpu0"}
    world.say("n1", m.Report(gpus=info.gpus[1:2], topology="{1}"))
    assert marked(world) == set()
    world.say("n1", m.Hello(node=replace(info, gpus=(faulty(info, 0), *info.gpus[1:]))))
    assert marked(world) == {"n1-gpu0"}, "it is back, and says itself that it is ill"


def test_who_occupies_gpus_is_not_written_down_as_what_the_node_is() -> None:
    info = replace(node_info(gpus=2), topology="{1}")
    world = World(info)
    strange = faulty(info, 0, cordon=False, state=GpuState.EXTERNAL)
    assert world.kinds(world.say("n1", m.Report(gpus=(strange, info.gpus[1]), topology="{1}"))) == ["GpuMarked"]


def test_a_fifth_of_a_pool_is_cordoned_and_the_rest_stays_for_a_person_to_judge() -> None:
    first, second = node_info("n1"), node_info("n2")
    world = World(first, second)
    world.say("n1", m.Report(gpus=tuple(faulty(first, at) for at in range(8))))
    assert len(marked(world)) == 3, "a fifth of 16"
    world.say("n2", m.Report(gpus=(faulty(second, 0),)))
    assert len(marked(world)) == 3


def test_a_gpu_that_was_exchanged_does_not_keep_the_next_faulty_one_in_use() -> None:
    info = node_info()
    world = World(info)
    world.say("n1", m.Report(gpus=(faulty(info, 0),)))
    exchanged = replace(info, boot_id="boot-2", gpus=(replace(info.gpus[0], uuid="new"), *info.gpus[1:]))
    world.hello(exchanged)
    world.say("n1", m.Report(gpus=(faulty(exchanged, 1),)))
    assert "n1-gpu1" in marked(world)


def test_one_gpu_of_a_small_pool_may_always_be_cordoned() -> None:
    info = node_info(gpus=2)
    world = World(info)
    world.say("n1", m.Report(gpus=(faulty(info, 0), faulty(info, 1))))
    assert marked(world) == {"n1-gpu0"}


def test_other_pools_do_not_count() -> None:
    red, blue = replace(node_info("n1"), pool="red"), replace(node_info("n2"), pool="blue")
    world = World(red, blue)
    world.say("n1", m.Report(gpus=(faulty(red, 0),)))
    world.say("n2", m.Report(gpus=(faulty(blue, 0),)))
    assert marked(world) == {"n1-gpu0", "n2-gpu0"}


def test_dirty_and_lost_gpus_are_marked_however_many() -> None:
    info = node_info(gpus=4)
    world = World(info)
    dirty = [faulty(info, at, cordon=False) for at in range(2)]
    lost = [faulty(info, at, cordon=False, state=GpuState.DOWN) for at in range(2, 4)]
    world.say("n1", m.Report(gpus=(*dirty, *lost)))
    assert len(marked(world)) == 4


def test_the_next_one_is_cordoned_when_the_first_is_back() -> None:
    info = node_info(gpus=4)
    world = World(info)
    both = (faulty(info, 0), faulty(info, 1))
    world.say("n1", m.Report(gpus=both))
    world.say("n1", m.Report(gpus=(info.gpus[0], both[1])))
    assert marked(world) == {"n1-gpu1"}


def test_the_call_of_a_gang_whose_gpu_broke_runs_again_on_other_gpus_and_the_loss_is_credited() -> None:
    info = node_info(gpus=8)
    world = World(info)
    gang = world.ready_gang(world.register(spec(gpus=2, limits=Limits(retries=1))))
    world.start(call_id(1))
    broken = gang.members[0].member.gpus[1]
    at = next(gpu.index for gpu in info.gpus if gpu.uuid == broken)
    world.say("n1", m.Report(gpus=(faulty(info, at),)))
    culprit = m.RankFailure(rank=1, node_id="n1", culprit=True, message=WHY)
    world.end(gang, error=m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message=WHY, node_id="n1", ranks=(culprit,)))
    call = world.call(call_id(1))
    assert (call.state, call.tries) == (CallState.QUEUED, {"infrastructure": 1})
    assert world.state.ledger[f"{gang.id}/n1"].credited
    assert broken not in queries.free_shares(world.state)["n1"]
    world.wait(2_000)
    world.schedule()
    again = world.only_gang()
    assert again.id != gang.id
    assert broken not in again.members[0].member.gpus


def test_without_retries_the_caller_hears_which_gpu_failed() -> None:
    world = World(node_info())
    gang = world.ready_gang(world.register(spec(gpus=1)))
    world.start(call_id(1))
    culprit = m.RankFailure(rank=0, node_id="n1", culprit=True, message=WHY)
    world.end(gang, error=m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message=f"GPU x failed: {WHY}", ranks=(culprit,)))
    call = world.call(call_id(1))
    assert call.error is not None
    assert (call.state, call.error.cause, WHY in call.error.message) == (CallState.FAILED, Cause.INFRASTRUCTURE, True)
