"""Nodes on which gangs die for causes that are not their users': avoided by the call, chosen last, then cordoned."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core import messages as m
from phalanx.core.spec import Limits
from phalanx.core.states import CallState, Cause, NodeState, Outcome
from phalanx_control.lifecycle.decide import decide
from phalanx_control.state import blames
from phalanx_control.state import commands as c
from phalanx_control.state import events as ev
from phalanx_control.state.model import Gang, from_jsonable, to_jsonable
from phalanx_control.views import node_view
from tests.support.builders import World, call_id, events_of, node_info, spec
from tests.support.invariants import check_history
from tests.unit.test_state_views import NO_FACTS

LIMITS = Limits(retries=9)
BROKEN = m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="GPU 3 fell off the bus")
MINUTE_MS = 60_000


def cell(nodes: int) -> World:
    return World(*(node_info(f"n{at}", gpus=8) for at in range(1, nodes + 1)))


def begin(world: World, n: int, name: str = "", *, node: str = "") -> Gang:
    """A call of a function of its own runs on a new gang."""
    function = spec(name or f"f{n}", gpus=8, limits=LIMITS, node=node)
    gang = world.ready_gang(world.register(function), n)
    world.start(call_id(n))
    return world.state.gangs[gang.id]


def die(world: World, gang: Gang, error: m.ErrorInfo = BROKEN) -> ev.Events:
    """The call fails, and the gang's agents say why it ended."""
    for call in gang.calls:
        world.finish(call, Outcome.FAILED, error=error)
    before = len(world.history)
    world.end(gang, error=replace(error, node_id=gang.lead))
    return tuple(event for _, _, batch in world.history[before:] for event in batch)


def die_often(world: World, times: int, *, node: str = "n1", apart_ms: int = MINUTE_MS) -> list[Gang]:
    """Gangs of different calls die on a node, and their calls are cancelled."""
    died: list[Gang] = []
    for at in range(times):
        n = 100 + len(world.history) + at
        gang = begin(world, n, node=node)
        die(world, gang)
        world.cancel(call_id(n))
        died.append(gang)
        world.wait(apart_ms)
    return died


def suspects(world: World) -> frozenset[str]:
    return blames.verdicts(world.state, world.log_ms).suspects


def test_a_call_whose_gang_died_on_a_node_goes_elsewhere_where_it_can() -> None:
    world = cell(2)
    gang = begin(world, 1)
    assert gang.lead == "n1"
    assert [e.node_id for e in events_of(die(world, gang), ev.NodeBlamed)] == ["n1"]  # pyright: ignore
    world.wait(MINUTE_MS)
    world.schedule()
    assert world.only_gang().lead == "n2"
    assert world.only_gang().placement.endswith("; not where gangs died before: n1")


def test_it_goes_to_the_same_node_where_no_other_fits() -> None:
    world = cell(2)
    begin(world, 9, node="n2")
    die(world, begin(world, 1))
    world.wait(MINUTE_MS)
    world.schedule()
    assert [g.lead for g in world.state.gangs.values() if g.for_call == call_id(1)] == ["n1"]


def test_other_calls_do_not_avoid_it_for_one_death() -> None:
    world = cell(2)
    die(world, begin(world, 1))
    world.cancel(call_id(1))
    assert begin(world, 2).lead == "n1"


def test_of_a_warm_gang_the_call_that_it_ran_avoids_the_node() -> None:
    world = cell(2)
    gang = begin(world, 1)
    world.finish(call_id(1))
    world.submit(2, gang.function_id)
    world.schedule()
    world.start(call_id(2))
    die(world, world.state.gangs[gang.id])
    world.wait(MINUTE_MS)
    world.schedule()
    assert world.only_gang().lead == "n2"


def test_it_does_not_go_to_a_warm_gang_there_either_while_another_node_fits() -> None:
    world = World(node_info("n1"), node_info("n2"))
    f = world.register(spec(gpus=2, limits=LIMITS))
    gangs = [world.ready_gang(f, n) for n in (1, 2)]
    for n in (1, 2):
        world.start(call_id(n))
    world.finish(call_id(2))
    die(world, world.state.gangs[gangs[0].id])
    world.wait(MINUTE_MS)
    world.schedule()
    assert next(g.lead for g in world.state.gangs.values() if g.for_call == call_id(1)) == "n2"
    assert world.state.gangs[gangs[1].id].lead == "n1"


def test_users_errors_cancels_and_drains_blame_no_node() -> None:
    for error in (
        m.ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="ValueError", message="boom"),
        m.ErrorInfo(cause=Cause.OUT_OF_MEMORY, message="oom"),
        m.ErrorInfo(cause=Cause.TIMEOUT, message="late"),
    ):
        world = cell(2)
        die(world, begin(world, 1), error)
        assert not world.state.blames
    world = cell(2)
    gang = begin(world, 1)
    world.do(c.SetNodeState(node_id="n1", state=NodeState.DRAINING, by="ana", deadline_in_ms=0))
    die(world, world.state.gangs[gang.id], m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="was ended"))
    assert not world.state.blames


def test_a_node_on_which_two_calls_died_is_chosen_last_and_says_so_until_an_hour_has_passed() -> None:
    world = cell(2)
    died = die_often(world, 2)
    assert suspects(world) == {"n1"}
    assert begin(world, 1).lead == "n2"
    view = node_view(world.state, world.state.nodes["n1"], NO_FACTS)
    assert view.reason.startswith(f"chosen last: 2 gangs died here within an hour ({died[0].id}, {died[1].id})")
    assert view.state == "ready"
    assert begin(world, 2).lead == "n1", "where nothing else is left it is used"
    world.wait(blames.WINDOW_MS)
    assert suspects(world) == frozenset()


def test_at_the_third_it_is_cordoned_with_the_reason_and_the_gangs_and_given_back_with_a_clean_record() -> None:
    world = cell(5)
    died = die_often(world, 3)
    node = world.state.nodes["n1"]
    assert node.cordon is not None
    assert (node.cordon.state, node.cordon.by) == (NodeState.CORDONED, "phalanx")
    assert all(gang.id in node.cordon.reason for gang in died)
    assert "the last: GPU 3 fell off the bus" in node.cordon.reason
    world.do(c.SetNodeState(node_id="n1", state=NodeState.READY, by="ana"))
    assert (world.state.nodes["n1"].cordon, suspects(world)) == (None, frozenset())
    check_history(world.history, world.state)
    assert from_jsonable(to_jsonable(world.state)) == world.state


def test_a_suspect_is_given_a_clean_record_without_a_cordon_too() -> None:
    world = cell(2)
    die_often(world, 2)
    told = world.do(c.SetNodeState(node_id="n1", state=NodeState.READY, by="ana"))
    assert world.kinds(told) == ["NodeUncordoned"]
    assert not world.state.blames


def test_no_more_than_a_fifth_of_a_pool_is_cordoned() -> None:
    world = cell(5)
    die_often(world, 3, node="n1")
    die_often(world, 4, node="n2")
    assert world.state.nodes["n2"].cordon is None
    assert suspects(world) == {"n1", "n2"}
    small = cell(4)
    die_often(small, 4)
    assert small.state.nodes["n1"].cordon is None


def test_what_happens_within_a_minute_counts_once() -> None:
    world = cell(5)
    die_often(world, 4, apart_ms=5_000)
    assert suspects(world) == frozenset()


def test_one_call_that_dies_again_and_again_counts_once() -> None:
    world = cell(5)
    function = world.register(spec("f", gpus=8, limits=LIMITS, node="n1"))
    world.submit(1, function)
    for _ in range(2):
        world.wait(MINUTE_MS)
        world.schedule()
        gang = world.bring_up(world.only_gang())
        world.start(call_id(1))
        die(world, world.state.gangs[gang.id])
    assert len(world.state.blames["n1"]) == 2
    assert suspects(world) == frozenset()


def test_a_function_that_dies_on_three_nodes_speaks_against_none_of_them() -> None:
    world = cell(5)
    function = world.register(spec("bad", gpus=8, limits=LIMITS))
    on: list[str] = []
    for n in (1, 2):
        world.submit(n, function)
        for _ in range(3):
            world.wait(MINUTE_MS)
            world.schedule()
            gang = world.bring_up(world.only_gang())
            on.append(gang.lead)
            world.start(call_id(n))
            die(world, world.state.gangs[gang.id])
        world.cancel(call_id(n))
    assert on == ["n1", "n2", "n3"] * 2
    assert suspects(world) == frozenset()


def test_a_node_that_is_lost_under_a_gang_is_blamed_for_it() -> None:
    world = cell(2)
    world.wait(600_000)
    begin(world, 1)
    world.tick(c.NodeSilent(node_id="n1", silent_ms=0, proved_gone=True))
    assert [blame.call_id for blame in world.state.blames["n1"]] == [call_id(1)]
    world.wait(MINUTE_MS)
    world.schedule()
    assert [g.lead for g in world.state.gangs.values() if not g.state.terminal] == ["n2"]


def test_no_older_replica_is_made_to_read_it() -> None:
    world = cell(1)
    gang = begin(world, 1)
    said = m.MemberEnded(gang_id=gang.id, fence=gang.fence, clean=False, error=BROKEN)
    told = decide(world.state, c.AgentSaid(node_id="n1", message=said), replace(world.now, schema=7))
    assert "GangReleased" in world.kinds(told)
    assert "NodeBlamed" not in world.kinds(told)
    assert world.call(call_id(1)).state is CallState.RUNNING
