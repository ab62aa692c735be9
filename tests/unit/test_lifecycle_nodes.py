"""Nodes come, fall silent, are written off, and come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core import messages as m
from phalanx.core.errors import AuthError
from phalanx.core.spec import Limits
from phalanx.core.states import CallState, GangState, GpuState, NodeState, Phase
from phalanx_control.lifecycle.decide import decide
from phalanx_control.lifecycle.nodes import MAX_TOPOLOGY_CHARS
from phalanx_control.state import commands as c
from phalanx_control.state import queries
from tests.support.builders import World, call_id, node_info, spec

GRACE = Limits(disconnect_grace_s=10, retries=1)


def silent(node_id: str, silent_ms: int, *, gone: bool = False) -> c.NodeSilent:
    return c.NodeSilent(node_id=node_id, silent_ms=silent_ms, proved_gone=gone)


def settled(*nodes: m.NodeInfo) -> World:
    """A world whose leader has led for long."""
    world = World(*nodes)
    world.wait(600_000)
    return world


def state_of(world: World, node_id: str) -> NodeState:
    return world.state.nodes[node_id].state


def test_a_node_joins_once_and_again_only_when_it_has_changed() -> None:
    world = settled(node_info())
    assert world.hello(node_info()) == ()
    assert world.kinds(world.hello(node_info(gpus=7))) == ["NodeJoined"]


def test_an_agent_cannot_say_hello_for_another_node() -> None:
    world = settled(node_info())
    with pytest.raises(AuthError):
        world.say("n1", m.Hello(node=node_info("n2")))


def test_gpus_are_marked_by_hello_and_report_and_cleared_again() -> None:
    world = settled(node_info())
    bad = replace(node_info().gpus[0], state=GpuState.EXTERNAL, reason="pid 7")
    assert world.kinds(world.say("n1", m.Report(gpus=(bad,)))) == ["GpuMarked"]
    assert world.say("n1", m.Report(gpus=(bad,))) == ()
    assert "n1-gpu0" not in queries.free_shares(world.state)["n1"]
    world.say("n1", m.Report(gpus=(replace(bad, state=GpuState.HELD),)))
    assert queries.free_shares(world.state)["n1"]["n1-gpu0"] == 1


def test_a_topology_that_is_too_long_is_not_written_down_and_the_node_is_used_without() -> None:
    long = "x" * (MAX_TOPOLOGY_CHARS + 1)
    world = settled(replace(node_info(), topology=long))
    assert world.state.nodes["n1"].info.topology == ""
    assert world.hello(replace(node_info(), topology=long)) == ()
    assert world.say("n1", m.Report(topology=long)) == ()
    assert world.kinds(world.say("n1", m.Report(topology=long[1:]))) == ["NodeJoined"]


def test_a_report_of_an_unknown_node_is_nothing() -> None:
    assert settled().say("n9", m.Report()) == ()


def test_six_seconds_of_silence_are_suspect_and_any_word_ends_it() -> None:
    world = settled(node_info())
    assert world.tick(silent("n1", 5_999)) == ()
    world.tick(silent("n1", 6_000))
    assert state_of(world, "n1") is NodeState.SUSPECT
    assert world.tick(silent("n1", 6_500)) == ()
    world.say("n1", m.Report())
    assert state_of(world, "n1") is NodeState.READY


def test_a_suspect_node_that_was_heard_in_the_meantime_is_ready() -> None:
    world = settled(node_info())
    world.tick(silent("n1", 6_000))
    world.tick(silent("n1", 200))
    assert state_of(world, "n1") is NodeState.READY


def test_a_new_leader_does_not_take_its_own_beginning_for_a_word_of_the_node() -> None:
    world = settled(node_info())
    world.tick(silent("n1", 6_000))
    world.do(c.TakeOver(epoch=2, leader_id="b"))
    world.wait(500)
    assert world.tick(silent("n1", 500)) == ()
    assert state_of(world, "n1") is NodeState.SUSPECT


def test_a_silent_gang_is_written_off_after_its_grace_and_its_call_runs_elsewhere() -> None:
    world = settled(node_info("n1"))
    f = world.register(spec(gpus=4, limits=GRACE))
    gang = world.ready_gang(f)
    world.start(call_id(1))
    world.tick(silent("n1", 17_999))
    assert world.call(call_id(1)).state is CallState.RUNNING
    world.tick(silent("n1", 18_000))
    assert state_of(world, "n1") is NodeState.LOST
    assert world.state.gangs[gang.id].state is GangState.LOST
    call = world.call(call_id(1))
    assert (call.state, call.gangs_killed) == (CallState.QUEUED, (gang.id,))
    assert world.state.ledger[f"{gang.id}/n1"].credited
    world.hello(node_info("n2"))
    world.wait(1_000)
    world.schedule()
    new = next(g for g in world.state.gangs.values() if g.id != gang.id)
    assert (new.lead, new.fence > gang.fence) == ("n2", True)


def test_an_assigned_call_is_held_against_a_lost_lead_that_may_have_begun_it() -> None:
    world = settled(node_info("n1"))
    world.ready_gang(world.register(spec(limits=GRACE)))
    world.tick(silent("n1", 18_000))
    assert world.call(call_id(1)).tries == {"infrastructure": 1}


def test_without_retries_a_call_of_a_lost_lead_is_not_run_again() -> None:
    world = settled(node_info("n1", gpus=1))
    function = world.register(spec(limits=Limits(disconnect_grace_s=10)))
    world.ready_gang(function)
    world.submit(2, function)
    world.schedule()
    world.start(call_id(1))
    world.tick(silent("n1", 18_000))
    for n in (1, 2):
        call = world.call(call_id(n))
        assert call.error is not None
        assert (call.state, call.error.type_name) == (CallState.FAILED, "OutcomeUnknownError")
        assert "may have run" in call.error.message


def test_proof_makes_the_loss_immediate() -> None:
    world = settled(node_info("n1"))
    world.ready_gang(world.register(spec(limits=Limits(disconnect_grace_s=300))))
    world.tick(silent("n1", 0, gone=True))
    assert state_of(world, "n1") is NodeState.LOST
    assert world.tick(silent("n1", 900_000)) == ()


def test_gangs_are_written_off_one_by_one_by_their_own_grace() -> None:
    world = settled(node_info("n1"))
    short = world.ready_gang(world.register(spec("short", limits=GRACE)), 1)
    patient = world.ready_gang(world.register(spec("long", limits=Limits(disconnect_grace_s=300))), 2)
    world.tick(silent("n1", 20_000))
    assert state_of(world, "n1") is NodeState.SUSPECT
    assert world.state.gangs[short.id].state is GangState.LOST
    assert world.state.gangs[patient.id].state is GangState.BUSY
    world.tick(silent("n1", 308_000))
    assert state_of(world, "n1") is NodeState.LOST


def test_a_new_leader_writes_nothing_off_before_one_full_grace() -> None:
    world = settled(node_info("n1"))
    world.ready_gang(world.register(spec(limits=GRACE)))
    world.do(c.TakeOver(epoch=2, leader_id="b"))
    world.wait(9_999)
    world.tick(silent("n1", 18_000))
    assert world.call(call_id(1)).state is CallState.ASSIGNED
    world.wait(1)
    world.tick(silent("n1", 18_001))
    assert world.call(call_id(1)).state is CallState.QUEUED


def test_the_reachable_half_of_a_gang_is_stopped_before_its_call_runs_again() -> None:
    world = settled(node_info("n1", gpus=4), node_info("n2", gpus=4))
    f = world.register(spec(gpus=8, limits=GRACE))
    gang = world.ready_gang(f)
    world.start(call_id(1))
    world.tick(silent("n2", 18_000))
    assert any(isinstance(x, m.Stop) for x in world.messages_to("n1"))
    assert world.call(call_id(1)).state is CallState.RUNNING
    world.end(gang, nodes=("n1",))
    assert world.call(call_id(1)).state is CallState.QUEUED
    assert world.state.gangs[gang.id].state is GangState.LOST


def lost_world() -> tuple[World, str]:
    world = settled(node_info("n1"))
    gang = world.ready_gang(world.register(spec(limits=GRACE)))
    world.tick(silent("n1", 18_000))
    world.wait(60_000)
    return world, gang.id


def test_a_lost_node_that_comes_back_adds_nothing_to_a_bill_that_was_closed() -> None:
    world, gang_id = lost_world()
    gang = world.state.gangs[gang_id]
    more = m.Counter(gpu="n1-gpu0", phase=Phase.BUSY, ms=9_000)
    world.say("n1", m.MemberEnded(gang_id=gang_id, fence=gang.fence, clean=True, counters=(more,)))
    assert world.state.ledger[f"{gang_id}/n1"].counters == {}


def test_a_lost_node_that_comes_back_empty_frees_its_gpus() -> None:
    world, _ = lost_world()
    assert queries.free_shares(world.state)["n1"]["n1-gpu0"] == 0
    world.hello(node_info("n1"))
    assert state_of(world, "n1") is NodeState.READY
    assert not world.state.gangs
    assert queries.free_shares(world.state)["n1"]["n1-gpu0"] == 1


def test_a_lost_node_that_still_holds_its_gang_is_told_to_end_it() -> None:
    world, gang_id = lost_world()
    gang = world.state.gangs[gang_id]
    world.hello(node_info("n1"), gang)
    assert isinstance(world.messages_to("n1")[-1], m.Stop)
    assert queries.free_shares(world.state)["n1"]["n1-gpu0"] == 0
    world.end(gang)
    assert not world.state.gangs


def test_a_lost_node_may_come_back_by_a_mere_report() -> None:
    world, gang_id = lost_world()
    gang = world.state.gangs[gang_id]
    world.say("n1", m.Report(gangs=(m.GangFacts(gang_id=gang.id, fence=gang.fence),)))
    assert state_of(world, "n1") is NodeState.READY
    assert gang_id in world.state.gangs
    world.tick(silent("n1", 18_000))
    world.say("n1", m.Report())
    assert gang_id not in world.state.gangs


def test_a_lost_node_that_is_heard_again_is_told_to_end_what_it_may_hold() -> None:
    world, _ = lost_world()
    world.tick(silent("n1", 100))
    assert state_of(world, "n1") is NodeState.READY
    assert isinstance(world.messages_to("n1")[-1], m.Stop)


def test_a_gang_that_the_agent_no_longer_holds_is_over() -> None:
    world = settled(node_info("n1"))
    gang = world.ready_gang(world.register(spec(limits=Limits(retries=1))))
    world.start(call_id(1))
    world.hello(node_info("n1"))
    assert gang.id not in world.state.gangs
    call = world.call(call_id(1))
    assert (call.state, call.gangs_killed) == (CallState.QUEUED, (gang.id,))
    assert "no longer holds the gang" in call.reason


def test_a_gang_that_the_agent_holds_lives_on_and_its_counters_are_kept() -> None:
    world = settled(node_info("n1"))
    gang = world.ready_gang(world.register(spec()))
    world.wait(5_000)
    counters = (m.Counter(gpu="n1-gpu0", phase=Phase.BUSY, ms=44),)
    facts = m.GangFacts(gang_id=gang.id, fence=gang.fence, counters=counters)
    world.say("n1", m.Hello(node=node_info("n1"), gangs=(facts,)))
    assert gang.id in world.state.gangs
    assert world.state.ledger[f"{gang.id}/n1"].counters == {"n1-gpu0/busy": 44}


def test_a_member_that_was_perhaps_never_asked_is_asked_again() -> None:
    world = settled(node_info("n1"))
    world.submit(1, world.register(spec()))
    world.schedule()
    world.hello(node_info("n1"))
    assert world.only_gang().state is GangState.RESERVED


def test_a_new_boot_id_proves_every_gang_gone() -> None:
    world = settled(node_info("n1"))
    world.submit(1, world.register(spec()))
    world.schedule()
    gang = world.only_gang()
    world.hello(node_info("n1", boot_id="boot-2"), gang)
    assert not world.state.gangs
    assert "n1 was restarted" in world.call(call_id(1)).reason


def test_commands_about_nodes_that_nobody_knows_do_nothing() -> None:
    assert settled().tick(silent("n9", 99_999)) == ()


def test_a_decision_does_not_change_the_state_that_it_was_given() -> None:
    world = settled(node_info("n1"))
    f = world.register(spec())
    world.submit(1, f)
    before = world.state
    assert decide(before, c.Schedule(raw_ids=world.raw_ids()), world.now)
    assert before.gangs == world.state.gangs
    assert not before.gangs


def test_a_node_that_leaves_is_forgotten_and_may_join_again() -> None:
    world = settled(node_info(), node_info("n2"))
    assert world.kinds(world.say("n1", m.Leave())) == ["NodeLeft"]
    assert set(world.state.nodes) == {"n2"}
    assert world.say("n1", m.Leave()) == ()
    assert world.say("n1", m.Report()) == ()
    assert world.tick(silent("n1", 60_000)) == ()
    assert world.kinds(world.hello(node_info())) == ["NodeJoined"]


def test_a_gang_that_was_reserved_while_a_node_left_ends_with_it() -> None:
    world = settled(node_info(), node_info("n2"))
    world.submit(1, world.register(spec(gpus=16, limits=GRACE)))
    world.schedule()
    gang = world.only_gang()
    assert world.kinds(world.say("n1", m.Leave()))[-1] == "NodeLeft"
    assert world.state.gangs[gang.id].state is GangState.DRAINING
    world.schedule()
    world.end(gang, nodes=("n2",))
    assert len(world.state.gangs) == 0
    assert world.call(call_id(1)).state is CallState.QUEUED


def test_a_node_is_not_forgotten_while_a_replica_could_not_read_that() -> None:
    world = settled(node_info())
    old = replace(world.now, schema=3)
    assert decide(world.state, c.AgentSaid(node_id="n1", message=m.Leave()), old) == ()
