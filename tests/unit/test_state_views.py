"""Records as users see them."""

from __future__ import annotations

import pytest

from phalanx.core import messages as m
from phalanx.core.spec import Limits
from phalanx.core.states import Cause, GpuState, Outcome
from phalanx_control import views
from phalanx_control.lifecycle.facts import LiveFacts
from phalanx_control.metering.book import PriceBook, load_book
from phalanx_control.state import commands as c
from tests.support.builders import ANA, WALL_MS, World, call_id, node_info, spec

NO_FACTS = LiveFacts()
BOOK: PriceBook = load_book(
    {
        "price": [{"sku": "h", "gpu": "", "effective_from": "2020-01-01T00:00:00Z", "per_gpu_second": "0.001"}],
        "charged": {"busy": True},
    }
)


def world_with_call(gpus: int = 4) -> World:
    world = World(node_info("n1", gpus=2), node_info("n2", gpus=2))
    world.submit(1, world.register(spec(gpus=gpus)))
    return world


def test_a_waiting_call_shows_its_place_and_then_its_gangs_phase() -> None:
    world = world_with_call()
    view = views.call_view(world.state, world.call(call_id(1)), NO_FACTS)
    assert (view.state, view.phase, view.queue_position, view.reason) == ("queued", "queued", 1, "waits its turn")
    world.schedule()
    view = views.call_view(world.state, world.call(call_id(1)), NO_FACTS)
    assert (view.phase, view.ready_ranks, view.world_size) == ("reserved", 0, 4)
    assert view.placement.startswith("4 GPUs: 2 on n1")


def test_ranks_become_ready_one_node_after_the_other() -> None:
    world = world_with_call()
    world.schedule()
    gang = world.only_gang()
    world.prepare(gang)
    world.say("n2", m.MemberReady(gang_id=gang.id, fence=gang.fence, pids=(7, 8)))
    view = views.call_view(world.state, world.call(call_id(1)), NO_FACTS)
    assert view.ready_ranks == 2
    assert [(r.rank, r.node_id, r.gpu_index, r.pid, r.state) for r in view.ranks] == [
        (0, "n1", 0, 0, "starting"),
        (1, "n1", 1, 0, "starting"),
        (2, "n2", 0, 7, "ready"),
        (3, "n2", 1, 8, "ready"),
    ]


def test_a_call_that_runs_again_tells_of_the_attempts_before() -> None:
    world = World(node_info("n1", gpus=1))
    gang = world.ready_gang(world.register(spec(gpus=1, limits=Limits(retries=1)))).id
    world.start(call_id(1))
    error = m.ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="m.Broken", message="no luck\nmore", rank=0)
    world.finish(call_id(1), Outcome.FAILED, error=error, busy_ms=1_500)
    view = views.call_view(world.state, world.call(call_id(1)), NO_FACTS)
    (earlier,) = view.earlier
    assert (view.state, view.busy_ms) == ("queued", 1_500)
    assert (earlier.attempt, earlier.gang_id, earlier.credited) == (1, gang, False)
    assert str(earlier) == f"m.Broken: no luck (ran 1.5 s on {gang})"


def test_a_running_call_shows_its_step_and_its_cost_so_far() -> None:
    world = world_with_call()
    world.schedule()
    gang = world.bring_up(world.only_gang())
    world.start(call_id(1))
    world.wait(10_000)
    world.register(spec("another"))
    facts = LiveFacts(gangs={(gang.id, "n1"): m.GangFacts(gang_id=gang.id, step=42, depth=3, in_flight=1, idle_ms=0)})
    view = views.call_view(world.state, world.call(call_id(1)), facts, BOOK)
    assert (view.phase, view.step, view.busy_ms, view.started_ms) == ("running", 42, 10_000, WALL_MS)
    assert (view.cost.money, view.cost.gpu_ms) == ("0.04", 40_000)
    shown = views.gang_view(world.state, world.only_gang(), facts)
    assert (shown.state, shown.depth, shown.in_flight, shown.nodes, shown.world_size) == ("busy", 3, 1, ("n1", "n2"), 4)
    assert views.gang_view(world.state, world.only_gang(), NO_FACTS).depth == 0


def test_what_a_running_call_waited_for_people_is_a_phase_of_its_own() -> None:
    world = world_with_call()
    world.schedule()
    gang = world.bring_up(world.only_gang())
    world.start(call_id(1))
    world.wait(10_000)
    world.register(spec("another"))
    waited = m.GangFacts(gang_id=gang.id, in_flight=1, debug=True, paused_ms=7_000)
    view = views.call_view(world.state, world.call(call_id(1)), LiveFacts(gangs={(gang.id, "n1"): waited}), BOOK)
    assert (view.phase, view.busy_ms, view.cost.money) == ("debug", 3_000, "0.012")
    assert [(p.phase, p.gpu_ms) for p in view.cost.phases] == [("busy", 12_000), ("debug", 28_000)]


def test_an_ended_call_keeps_its_result_and_its_cost() -> None:
    world = world_with_call()
    world.schedule()
    world.bring_up(world.only_gang())
    world.start(call_id(1))
    world.finish(call_id(1), busy_ms=1_000)
    world.end(world.only_gang())
    view = views.call_view(world.state, world.call(call_id(1)), NO_FACTS, BOOK)
    assert (view.state, view.result.size, view.ranks, view.busy_ms) == ("succeeded", 5, (), 1_000)


def test_a_member_that_ended_says_so() -> None:
    world = world_with_call()
    world.schedule()
    gang = world.bring_up(world.only_gang())
    world.start(call_id(1))
    world.end(gang, nodes=("n2",))
    view = views.call_view(world.state, world.call(call_id(1)), NO_FACTS)
    assert [r.state for r in view.ranks] == ["draining", "draining", "ended", "ended"]


def test_a_node_shows_who_holds_its_gpus() -> None:
    world = World(node_info("n1", gpus=3))
    world.ready_gang(world.register(spec("train", gpus=2)))
    world.say("n1", m.Report(gpus=(m.GpuInfo(uuid="n1-gpu2", state=GpuState.EXTERNAL, reason="pid 9"),)))
    view = views.node_view(world.state, world.state.nodes["n1"], LiveFacts(last_seen_ms={"n1": 5}))
    assert (view.state, view.last_seen_ms, view.cpus) == ("ready", 5, 64)
    assert [(g.info.state.value, g.function, g.user, g.info.reason) for g in view.gpus] == [
        ("held", "m.train", "ana", ""),
        ("held", "m.train", "ana", ""),
        ("external", "", "", "pid 9"),
    ]


def test_a_cpu_rank_has_no_gpu() -> None:
    world = World(node_info(gpus=0))
    world.ready_gang(world.register(spec(gpus=0)))
    (rank,) = views.call_view(world.state, world.call(call_id(1)), NO_FACTS).ranks
    assert (rank.gpu, rank.gpu_index, rank.pid) == ("", 0, 100)


def test_a_deployed_function_counts_all_its_calls() -> None:
    world = World(node_info())
    world.do(c.DeployApp(owner=ANA, app="shop", specs=(spec("a"),)))
    app = world.state.apps["default/shop"]
    assert views.function_view(world.state, app, "a").calls == 0
    world.ready_gang(app.functions["a"])
    view = views.function_view(world.state, app, "a")
    assert (view.app, view.name, view.version, view.calls) == ("shop", "a", 1, 1)
    with pytest.raises(KeyError):
        views.function_view(world.state, app, "b")
