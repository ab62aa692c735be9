"""Who gets what, in which order, and what the others are told."""

from __future__ import annotations

from phalanx.core import messages as m
from phalanx.core.states import CallState, GangState, GpuState
from phalanx_control.state import commands as c
from phalanx_control.state.events import CallAssigned, GangReserved
from phalanx_control.state.model import Owner
from tests.support.builders import ANA, BOB, World, call_id, events_of, node_info, spec


def gpus_of(world: World, n: int) -> list[str]:
    gang = next(g for g in world.state.gangs.values() if g.for_call == call_id(n))
    return [gpu for k in gang.members for gpu in k.member.gpus]


def test_nothing_waits_so_nothing_happens() -> None:
    assert World(node_info()).schedule() == ()


def test_an_idle_gang_of_the_same_function_is_used_before_a_new_one_starts() -> None:
    world = World(node_info())
    f = world.register(spec())
    gang = world.ready_gang(f)
    world.finish(call_id(1))
    world.submit(2, f)
    assert world.kinds(world.schedule()) == ["CallAssigned"]
    assert world.call(call_id(2)).gang_id == gang.id


def test_the_gang_known_to_be_idle_is_preferred() -> None:
    world = World(node_info())
    f = world.register(spec())
    world.ready_gang(f, 1)
    second = world.ready_gang(f, 2)
    world.finish(call_id(1))
    world.finish(call_id(2))
    world.idle_ms = {second.id: 5}
    world.submit(3, f)
    world.schedule()
    assert world.call(call_id(3)).gang_id == second.id


def test_tenants_do_not_share_gangs_of_the_same_function() -> None:
    world = World(node_info())
    f = world.register(spec())
    world.ready_gang(f)
    world.finish(call_id(1))
    world.do(c.RegisterFunction(owner=Owner(workspace="other", user="eve"), spec=spec()))
    hers = next(k for k in world.state.functions if k != f)
    world.submit(2, hers, Owner(workspace="other", user="eve"))
    assert "GangReserved" in world.kinds(world.schedule())


def test_one_call_does_not_start_two_gangs() -> None:
    world = World(node_info())
    world.submit(1, world.register(spec()))
    assert len(events_of(world.schedule(), GangReserved)) == 1
    assert world.schedule() == ()
    assert world.call(call_id(1)).reason == "its gang is starting"


def test_every_waiting_call_gets_a_gang_while_there_is_room_and_then_one_is_queued_behind() -> None:
    world = World(node_info(gpus=2))
    f = world.register(spec())
    for n in range(1, 6):
        world.submit(n, f)
    assert len(events_of(world.schedule(), GangReserved)) == 2
    for gang in list(world.state.gangs.values()):
        world.bring_up(gang)
    assert len(events_of(world.schedule(), CallAssigned)) == 2
    assert sorted(len(g.calls) for g in world.state.gangs.values()) == [2, 2]
    assert world.call(call_id(5)).state is CallState.QUEUED


def test_a_call_made_from_inside_another_never_waits_behind_what_might_wait_for_it() -> None:
    world = World(node_info(gpus=1))
    f = world.register(spec())
    gang = world.ready_gang(f)
    world.submit(2, f, parent=call_id(1))
    assert "CallAssigned" not in world.kinds(world.schedule())
    world.submit(3, f)
    world.schedule()
    assert world.state.gangs[gang.id].calls == (call_id(1), call_id(3))
    world.finish(call_id(1))
    world.finish(call_id(3))
    world.schedule()
    assert world.call(call_id(2)).gang_id == gang.id


def test_no_more_gangs_start_than_there_are_ids_for() -> None:
    world = World(node_info())
    f = world.register(spec())
    world.submit(1, f)
    world.submit(2, f)
    events = world.do(c.Schedule(raw_ids=world.raw_ids(1)))
    assert len(events_of(events, GangReserved)) == 1
    assert world.call(call_id(2)).reason == "waits its turn"


def test_the_reason_names_the_best_node_and_who_holds_it_and_is_logged_once() -> None:
    world = World(node_info("n1"), node_info("n2", gpus=2))
    train = world.register(spec("train", gpus=3))
    world.ready_gang(train)
    world.submit(2, world.register(spec("big", gpus=8, nodes=1)), BOB)
    assert world.kinds(world.schedule()) == ["CallWaits"]
    assert world.call(call_id(2)).reason == (
        "needs 8 GPUs on 1 node; best node n1 has 5 free of 8 (3 held by train of ana)"
    )
    assert world.schedule() == ()


def test_later_calls_of_a_function_wait_behind_its_first() -> None:
    world = World(node_info())
    world.ready_gang(world.register(spec("train", gpus=8)))
    big = world.register(spec("big", gpus=4))
    world.submit(2, big)
    world.submit(3, big)
    world.schedule()
    assert world.call(call_id(3)).reason == "waits behind earlier calls of big"


def test_smaller_calls_pass_one_that_cannot_start_until_it_has_waited_long() -> None:
    world = World(node_info())
    world.ready_gang(world.register(spec("train", gpus=4)))
    world.start(call_id(1))
    world.submit(2, world.register(spec("big", gpus=8)))
    small = world.register(spec("small"))
    world.submit(3, small)
    world.schedule()
    assert gpus_of(world, 3) == ["n1-gpu4"]
    world.wait(30_001)
    world.submit(4, small)
    assert events_of(world.schedule(), GangReserved) == []
    assert world.call(call_id(4)).reason == "needs 1 GPU, free only where nodes are kept for an older call"
    world.hello(node_info("n2", gpus=1))
    world.schedule()
    assert gpus_of(world, 4) == ["n2-gpu0"]


def test_a_warm_gang_on_kept_nodes_takes_no_more_calls() -> None:
    world = World(node_info())
    small = world.register(spec("small"))
    world.ready_gang(small)
    world.start(call_id(1))
    world.submit(2, world.register(spec("big", gpus=8)))
    world.wait(30_001)
    world.submit(3, small)
    assert events_of(world.schedule(), CallAssigned) == []


def test_idle_gangs_of_others_make_room_the_longest_idle_first_and_no_more_than_needed() -> None:
    world = World(node_info())
    gangs = [world.ready_gang(world.register(spec(f"f{n}", gpus=2)), n) for n in range(1, 5)]
    for n in range(1, 5):
        world.finish(call_id(n))
    world.idle_ms = {gangs[0].id: 10, gangs[1].id: 40, gangs[2].id: 30}
    world.submit(9, world.register(spec("big", gpus=4)))
    world.schedule()
    states = [world.state.gangs[g.id].state for g in gangs]
    assert states == [GangState.READY, GangState.DRAINING, GangState.DRAINING, GangState.READY]
    assert world.state.gangs[gangs[1].id].stop_reason == "idle, and its GPUs are needed by big"
    assert world.schedule() == ()
    for gang in gangs[1:3]:
        world.end(gang)
    world.schedule()
    assert gpus_of(world, 9) == ["n1-gpu2", "n1-gpu3", "n1-gpu4", "n1-gpu5"]


def test_idle_gangs_stay_when_letting_them_go_would_not_help() -> None:
    world = World(node_info())
    warm = world.ready_gang(world.register(spec("warm", gpus=2)), 1)
    world.finish(call_id(1))
    world.ready_gang(world.register(spec("train", gpus=4)), 2)
    world.idle_ms = {warm.id: 99}
    world.submit(3, world.register(spec("big", gpus=8)))
    assert world.kinds(world.schedule()) == ["CallWaits"]


def test_an_idle_gang_that_turns_out_not_to_be_in_the_way_stays() -> None:
    world = World(node_info("n1", gpus=2), node_info("n2", gpus=4))
    elsewhere = world.ready_gang(world.register(spec("elsewhere", gpus=2)), 1)
    in_the_way = world.ready_gang(world.register(spec("way", gpus=3)), 2)
    assert (elsewhere.lead, in_the_way.lead) == ("n1", "n2")
    world.finish(call_id(1))
    world.finish(call_id(2))
    world.idle_ms = {elsewhere.id: 99, in_the_way.id: 1}
    world.submit(3, world.register(spec("big", gpus=4, nodes=1)))
    world.schedule()
    assert world.state.gangs[elsewhere.id].state is GangState.READY
    assert world.state.gangs[in_the_way.id].state is GangState.DRAINING


def test_no_nodes_are_kept_for_what_none_could_hold_any_more() -> None:
    world = World(node_info("n1", gpus=2))
    small = world.register(spec("small"))
    world.submit(1, world.register(spec("big", gpus=2)))
    world.say("n1", m.Report(gpus=(m.GpuInfo(uuid="n1-gpu1", state=GpuState.DOWN, reason="xid 79"),)))
    world.wait(30_001)
    world.submit(2, small)
    world.schedule()
    assert gpus_of(world, 2) == ["n1-gpu0"]


def test_a_gang_is_not_started_on_nodes_that_are_not_ready() -> None:
    world = World(node_info("n1"), node_info("n2"))
    world.wait(600_000)
    world.tick(c.NodeSilent(node_id="n1", silent_ms=7_000))
    world.submit(1, world.register(spec(gpus=8)))
    world.schedule()
    assert world.only_gang().lead == "n2"
    world.tick(c.NodeSilent(node_id="n2", silent_ms=7_000))
    world.submit(2, world.register(spec("b")))
    world.schedule()
    assert world.call(call_id(2)).reason == "no node takes work: n1 is suspect, n2 is suspect"


def test_a_call_that_waits_for_a_node_is_told_so() -> None:
    world = World()
    world.submit(1, world.register(spec()))
    assert world.schedule() == ()
    assert world.call(call_id(1)).reason == "waits for a first node to join"


def test_reasons_of_fractions_cpu_functions_and_memory() -> None:
    world = World(node_info(gpus=1, cpus=2))
    world.ready_gang(world.register(spec("train", gpus=1, memory_gb=500)), 1)
    for n, asked in (
        (2, spec("half", gpus=0.5)),
        (3, spec("cpu", gpus=0, memory_gb=400)),
    ):
        world.submit(n, world.register(asked))
    world.schedule()
    assert world.call(call_id(2)).reason == "needs 0.5 GPUs; none of 1 nodes has that free"
    assert world.call(call_id(3)).reason.startswith("needs a place for a CPU function")


def test_a_node_with_the_gpus_but_not_the_memory_is_named() -> None:
    world = World(node_info(gpus=2))
    world.ready_gang(world.register(spec("train", memory_gb=500)), 1)
    world.submit(2, world.register(spec("more", memory_gb=100)))
    world.schedule()
    assert world.call(call_id(2)).reason == "needs 1 GPU on 1 node; n1 has the GPUs, but not the cpus or memory"


def test_marked_gpus_and_many_holders_are_counted_in_the_reason() -> None:
    world = World(node_info(gpus=8))
    world.say("n1", m.Report(gpus=(m.GpuInfo(uuid="n1-gpu7", state=GpuState.QUARANTINED, reason="xid 79"),)))
    for n in range(1, 5):
        world.ready_gang(world.register(spec(f"f{n}")), n)
    world.submit(9, world.register(spec("big", gpus=8)), ANA)
    world.schedule()
    assert world.call(call_id(9)).reason == (
        "needs 8 GPUs on 1 node; best node n1 has 3 free of 8 "
        "(1 held by f1 of ana, 1 held by f2 of ana, 1 held by f3 of ana and 2 more)"
    )
