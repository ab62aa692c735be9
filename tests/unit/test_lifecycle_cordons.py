"""Admins take nodes out of use and give them back; what runs there goes on, or ends, as they say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core import messages as m
from phalanx.core.errors import InvalidSpecError, NotFoundError, VersionError
from phalanx.core.spec import Limits
from phalanx.core.states import CallState, Cause, GangState, NodeState, Outcome
from phalanx_control.lifecycle.cordons import DEADLINE_MS
from phalanx_control.lifecycle.decide import decide
from phalanx_control.scheduler.capacity import ensure_possible
from phalanx_control.state import commands as c
from phalanx_control.state import events as ev
from phalanx_control.state import schemas
from phalanx_control.state.model import Call, Gang, State, from_jsonable, to_jsonable
from phalanx_control.views import node_view
from tests.support.builders import World, call_id, events_of, node_info, spec
from tests.unit.test_state_views import NO_FACTS

RETRIED = Limits(retries=1)
ENDED = m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="the gang was ended while the call ran")


def say(
    world: World, state: NodeState, *, node: str = "n1", reason: str = "", deadline_ms: int | None = None
) -> ev.Events:
    return world.do(c.SetNodeState(node_id=node, state=state, by="ana", reason=reason, deadline_in_ms=deadline_ms))


def cordon(world: World, node: str = "n1", reason: str = "") -> ev.Events:
    return say(world, NodeState.CORDONED, node=node, reason=reason)


def drain(world: World, *, reason: str = "", deadline_ms: int | None = None) -> ev.Events:
    return say(world, NodeState.DRAINING, reason=reason, deadline_ms=deadline_ms)


def shown(world: World, node: str = "n1") -> NodeState:
    return world.state.nodes[node].shown_state


def running(world: World, limits: Limits = RETRIED, n: int = 1, *, preemptible: bool = False) -> Gang:
    """A call of a function runs on a gang of its own."""
    function = replace(spec(f"f{n}", gpus=2, limits=limits), preemptible=preemptible)
    gang = world.ready_gang(world.register(function), n)
    world.start(call_id(n))
    return world.state.gangs[gang.id]


def killed(world: World, gang: Gang) -> Call:
    """The agents end a gang that runs the first call, as they were told."""
    world.finish(call_id(1), Outcome.FAILED, error=ENDED)
    world.end(gang)
    return world.call(call_id(1))


def test_nothing_new_is_placed_on_a_cordoned_node_and_the_reason_names_it() -> None:
    world = World(node_info("n1"), node_info("n2", gpus=1))
    cordon(world, reason="a fan is loud")
    world.submit(1, world.register(spec(gpus=2)))
    world.schedule()
    assert not world.state.gangs
    assert world.call(call_id(1)).reason.endswith("; n1 is cordoned by ana: a fan is loud")
    say(world, NodeState.READY)
    world.schedule()
    assert world.only_gang().lead == "n1"


@pytest.mark.parametrize("gpus", [2, 0.5, 0])
def test_a_call_that_only_cordoned_nodes_could_take_waits_and_is_not_refused(gpus: float) -> None:
    world = World(node_info("n1"))
    cordon(world, reason="new driver")
    world.submit(1, world.register(spec(gpus=gpus)))
    world.schedule()
    assert world.call(call_id(1)).reason == "no node takes work: n1 is cordoned by ana: new driver"
    ensure_possible(world.state, spec(gpus=gpus))


def test_what_runs_on_a_cordoned_node_goes_on_and_its_warm_gang_takes_calls_and_ends_by_itself() -> None:
    world = World(node_info())
    gang = running(world)
    cordon(world)
    world.tick()
    world.finish(call_id(1))
    world.submit(2, gang.function_id)
    world.schedule()
    assert world.call(call_id(2)).gang_id == gang.id
    world.start(call_id(2))
    world.finish(call_id(2))
    world.wait(61_000)
    world.idle_ms = {gang.id: 61_000}
    world.tick()
    assert world.state.gangs[gang.id].stop_reason.startswith("idle for scaledown_window")


def test_idle_gangs_of_a_drained_node_go_at_once_and_calls_finish_first() -> None:
    world = World(node_info())
    busy = running(world, n=1)
    idle = running(world, n=2)
    world.finish(call_id(2))
    told = drain(world, reason="new driver")
    assert {(e.gang_id, e.drain, e.reason) for e in events_of(told, ev.GangDraining)} == {  # pyright: ignore
        (gang.id, True, "node n1 is drained by ana: new driver") for gang in (busy, idle)
    }
    assert world.tick() == ()
    world.finish(call_id(1))
    world.end(busy)
    world.end(idle)
    assert world.call(call_id(1)).state is CallState.SUCCEEDED
    assert not world.state.gangs


def test_at_the_deadline_calls_are_ended_run_again_elsewhere_and_eat_no_retries() -> None:
    world = World(node_info(), node_info("n2"))
    gang = running(world)
    assert gang.lead == "n1"
    drain(world, reason="new driver", deadline_ms=60_000)
    world.wait(59_999)
    assert world.tick() == ()
    world.wait(1)
    assert world.kinds(world.tick()) == ["GangDraining"]
    assert world.tick() == ()
    assert world.messages_to("n1")[-1] == m.Stop(
        gang_id=gang.id, fence=gang.fence, reason=world.state.gangs[gang.id].stop_reason, grace_ms=3000
    )
    call = killed(world, gang)
    assert (call.state, call.tries, call.gangs_killed) == (CallState.QUEUED, {"preempted": 1}, ())
    world.schedule()
    assert world.only_gang().lead == "n2"
    assert all(line.credited for line in world.state.ledger.values() if line.closed_wall_ms)


def test_draining_three_nodes_under_a_call_does_not_make_it_poison() -> None:
    world = World(node_info())
    gang = running(world)
    for _ in range(4):
        drain(world, deadline_ms=0)
        assert killed(world, gang).state is CallState.QUEUED
        say(world, NodeState.READY)
        world.schedule()
        gang = world.bring_up(world.only_gang())
        world.start(call_id(1))


def test_a_call_that_may_not_run_twice_is_not_run_again_by_a_drain() -> None:
    world = World(node_info(), node_info("n2"))
    gang = running(world, Limits(retries=0))
    drain(world, deadline_ms=0)
    call = killed(world, gang)
    assert call.error is not None
    assert (call.state, call.error.type_name) == (CallState.FAILED, "OutcomeUnknownError")
    assert "node n1 is drained by ana" in call.error.message


def test_a_call_that_may_give_way_may_run_again_after_a_drain_too() -> None:
    world = World(node_info(), node_info("n2"))
    gang = running(world, Limits(retries=0), preemptible=True)
    drain(world, deadline_ms=0)
    assert killed(world, gang).tries == {"preempted": 1}


def test_gangs_that_start_on_a_drained_node_give_their_gpus_back_and_start_elsewhere() -> None:
    world = World(node_info(), node_info("n2"))
    world.submit(1, world.register(spec()))
    world.schedule()
    gang = world.only_gang()
    drain(world)
    world.end(gang)
    world.schedule()
    assert world.only_gang().lead == "n2"
    assert world.call(call_id(1)).tries == {}


def test_a_gang_over_several_nodes_ends_when_one_of_them_is_drained() -> None:
    world = World(node_info("n1", gpus=2), node_info("n2", gpus=2))
    gang = world.ready_gang(world.register(spec(gpus=4)))
    world.start(call_id(1))
    drain(world, deadline_ms=0)
    assert world.state.gangs[gang.id].state is GangState.DRAINING
    assert all(isinstance(world.messages_to(node)[-1], m.Stop) for node in ("n1", "n2"))


def test_a_cordon_outlives_silence_loss_restarts_of_the_agent_and_snapshots() -> None:
    world = World(node_info())
    world.wait(600_000)
    cordon(world, reason="x")
    world.tick(c.NodeSilent(node_id="n1", silent_ms=7_000))
    assert shown(world) is NodeState.SUSPECT
    world.hello(replace(node_info(), boot_id="boot-2", agent_epoch=7))
    assert shown(world) is NodeState.CORDONED
    world.tick(c.NodeSilent(node_id="n1", silent_ms=0, proved_gone=True))
    assert shown(world) is NodeState.LOST
    world.hello(replace(node_info(), boot_id="boot-3"))
    assert shown(world) is NodeState.CORDONED
    again: State = from_jsonable(to_jsonable(world.state))
    assert again.nodes["n1"].cordon == world.state.nodes["n1"].cordon
    assert world.state.schema == schemas.SINCE[ev.NodeCordoned]


def test_saying_the_same_again_changes_nothing() -> None:
    world = World(node_info())
    assert world.kinds(cordon(world, reason="x")) == ["NodeCordoned"]
    assert cordon(world, reason="x") == ()
    assert cordon(world) == ()
    assert world.kinds(drain(world)) == ["NodeCordoned"]
    world.wait(1_000)
    assert drain(world) == ()
    assert world.kinds(say(world, NodeState.READY)) == ["NodeUncordoned"]
    assert say(world, NodeState.READY) == ()


def test_a_drain_without_a_deadline_keeps_the_one_that_was_given_and_another_one_replaces_it() -> None:
    world = World(node_info())
    began_ms = world.log_ms
    drain(world)
    cordon_of = lambda: world.state.nodes["n1"].cordon  # noqa: E731
    assert (now := cordon_of()) is not None
    assert now.deadline_ms == began_ms + DEADLINE_MS
    world.wait(5_000)
    drain(world, deadline_ms=1_000)
    assert (now := cordon_of()) is not None
    assert now.deadline_ms == world.log_ms + 1_000
    cordon(world)
    assert (now := cordon_of()) is not None
    assert (now.state, now.deadline_ms) == (NodeState.CORDONED, 0)


def test_a_node_that_is_given_back_while_it_drains_keeps_what_still_runs() -> None:
    world = World(node_info())
    running(world)
    drain(world, deadline_ms=1_000)
    say(world, NodeState.READY)
    world.wait(5_000)
    assert world.tick() == ()
    world.finish(call_id(1))
    assert world.call(call_id(1)).state is CallState.SUCCEEDED


@pytest.mark.parametrize(
    ("asked", "told"),
    [("gpu-11", "no node 'gpu-11'; did you mean gpu-1 or gpu-12"), ("zzz", "this cell has gpu-1, gpu-2, gpu-12")],
)
def test_an_unknown_node_is_refused_with_the_names_that_are_near(asked: str, told: str) -> None:
    world = World(*(node_info(name) for name in ("gpu-12", "gpu-2", "gpu-1")))
    with pytest.raises(NotFoundError) as refused:
        cordon(world, asked)
    assert told in str(refused.value)


def test_bad_words_are_refused() -> None:
    world = World(node_info())
    for state, reason, deadline_ms in (
        (NodeState.LOST, "", None),
        (NodeState.CORDONED, "x" * 201, None),
        (NodeState.CORDONED, "a\nb", None),
        (NodeState.DRAINING, "", -1),
    ):
        with pytest.raises(InvalidSpecError):
            say(world, state, reason=reason, deadline_ms=deadline_ms)


def test_no_older_replica_is_made_to_read_a_cordon() -> None:
    world = World(node_info())
    command = c.SetNodeState(node_id="n1", state=NodeState.CORDONED, by="ana")
    with pytest.raises(VersionError, match="upgrade all replicas first"):
        decide(world.state, command, replace(world.now, schema=schemas.SINCE[ev.NodeCordoned] - 1))


def test_people_see_who_drains_a_node_until_when_and_how_many_gangs_are_left() -> None:
    world = World(node_info())
    running(world)
    drain(world, reason="new driver", deadline_ms=60_000)
    view = node_view(world.state, world.state.nodes["n1"], NO_FACTS)
    assert (view.state, view.reason, view.gangs) == ("draining", "drained by ana: new driver", 1)
    assert view.drain_until_ms == world.wall_ms + 60_000
