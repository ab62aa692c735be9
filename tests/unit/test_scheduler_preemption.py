"""Who gives way to whom: whole gangs, where the least is lost, never in vain; and what is kept for whom."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.core import messages as m
from phalanx.core.spec import Limits, Resources, Retrying
from phalanx.core.states import CallState, Cause, GangState, Outcome
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.reserve import reservation_for
from phalanx_control.scheduler.room import rooms_of
from phalanx_control.state import commands as c
from phalanx_control.state.model import Gang, Owner
from tests.support.builders import ANA, spec
from tests.support.invariants import check_history, check_state
from tests.support.pictures import check_picture
from tests.unit.test_scheduler_accounts import Cell

MINUTE_MS = 60_000
SPOT: dict[str, Any] = {"preemptible": True}


def old_spot(cell: Cell, *asked: tuple[str, float], run_ms: int = 10 * MINUTE_MS) -> list[str]:
    """Preemptible gangs that have run for a while."""
    calls = [cell.ask(who, gpus, f"spot{at}", **SPOT) for at, (who, gpus) in enumerate(asked)]
    cell.run()
    for call in calls:
        cell.world.start(call)
    cell.world.wait(run_ms)
    return calls


def ending(cell: Cell) -> list[str]:
    """The calls whose gangs give way."""
    return sorted(g.for_call for g in cell.world.state.gangs.values() if g.state is GangState.DRAINING)


def stop(cell: Cell, gang: Gang) -> None:
    """The agents end the gang as told: the call that it ran failed of that."""
    for call in gang.calls:
        error = m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="the gang ended while the call ran")
        cell.world.finish(call, Outcome.FAILED, error=error)
    cell.world.end(cell.world.state.gangs[gang.id])


def test_a_preemptible_gang_gives_way_and_its_call_runs_again_without_eating_a_retry() -> None:
    cell = Cell(8)
    (spot,) = old_spot(cell, ("lab/ana", 8))
    gang = cell.gang_of(spot)
    firm = cell.ask("lab/bob", 8)
    cell.run()
    assert cell.world.state.gangs[gang.id].stop_reason == "gave way to f-bob-lab of lab/bob"
    stop(cell, cell.world.state.gangs[gang.id])
    known = cell.world.call(spot)
    assert (known.state, known.tries, known.error) == (CallState.QUEUED, {"preempted": 1}, None)
    assert cell.run() == ["lab/bob"]
    cell.end(firm)
    assert cell.run() == ["lab/ana"]
    check_state(cell.world.state)
    check_history(cell.world.history, cell.world.state)
    check_picture(cell.world.state)


def test_an_account_at_its_limit_ends_its_own_preemptible_gangs_first() -> None:
    cell = Cell(8, 8, policy={"workspaces": {"lab": {"limit": 8}}})
    old_spot(cell, ("lab/ana", 4), ("lab/ana", 2))
    cell.ask("lab/bob", 4, "firm")
    cell.run()
    gave = [g for g in cell.world.state.gangs.values() if g.state is GangState.DRAINING]
    assert [len(g.members[0].member.gpus) for g in gave] == [2]
    stop(cell, gave[0])
    assert cell.run() == ["lab/bob"]


def test_nobody_gives_way_who_did_not_agree_to_or_in_vain_or_before_its_time() -> None:
    cell = Cell(8, 8)
    cell.ask("lab/ana", 8)
    cell.run()
    old_spot(cell, ("lab/ana", 8))
    cell.ask("lab/bob", 16, "wide")
    cell.run()
    assert ending(cell) == [], "one of the two nodes does not come free, so the other would be of no use"
    cell = Cell(8)
    old_spot(cell, ("lab/ana", 8), run_ms=59_000)
    cell.ask("lab/bob", 8)
    cell.run()
    assert ending(cell) == []
    cell.world.wait(1_001)
    cell.run()
    assert len(ending(cell)) == 1


def test_the_node_is_chosen_where_the_least_work_is_lost_and_no_gang_too_many() -> None:
    cell = Cell(8, 8, 8)
    dear = old_spot(cell, ("lab/ana", 8), run_ms=60 * MINUTE_MS)
    cheap = old_spot(cell, ("lab/bob", 4), ("lab/bob", 4), run_ms=10 * MINUTE_MS)
    cell.ask("lab/eve", 8, "firm")
    cell.run()
    cell.ask("lab/zoe", 4, "new")
    cell.run()
    (gave,) = ending(cell)
    assert gave in cheap
    cell.ask("lab/max", 8, "newer")
    cell.run()
    assert dear[0] in ending(cell), "what the first waits for is not taken for the second"


def test_who_has_a_guarantee_keeps_it_and_takes_it_back() -> None:
    policy = {"workspaces": {"prod": {"gpus": 4}, "lab": {"gpus": 2}}}
    cell = Cell(8, policy=policy)
    spot = old_spot(cell, *[("lab/ana", 1)] * 8)
    cell.ask("prod/eve", 4, "serve", preemptible=True)
    cell.run()
    assert len(ending(cell)) == 4
    cell.ask("zoo/zoe", 4, "more", preemptible=True)
    cell.run()
    assert len(ending(cell)) == 4, "preemptible itself, and beyond its own guarantee: it waits"
    assert len(spot) == 8


def test_a_guarantee_is_not_undercut_for_somebody_else() -> None:
    cell = Cell(8, policy={"workspaces": {"lab": {"gpus": 4}}})
    old_spot(cell, ("lab/ana", 4), ("lab/ana", 4))
    cell.ask("zoo/zoe", 4, "firm")
    cell.ask("zoo/zoe", 4, "firmer")
    cell.run()
    assert len(ending(cell)) == 1


@pytest.mark.parametrize(("priority", "gives_way"), [(0, False), (5, True)])
def test_within_a_workspace_a_preemptible_call_takes_from_lower_priority_only(priority: int, gives_way: bool) -> None:
    cell = Cell(8)
    old_spot(cell, ("lab/ana", 8))
    cell.ask("lab/bob", 8, "next", preemptible=True, priority=priority)
    cell.run()
    assert bool(ending(cell)) is gives_way


def test_a_gang_that_wants_a_node_for_itself_takes_one_where_all_give_way() -> None:
    cell = Cell(8, 8)
    old_spot(cell, ("lab/ana", 4), ("lab/ana", 4))
    cell.ask("lab/eve", 4, "firm")
    assert cell.run() == ["lab/eve"]
    on = {g.for_call: g.lead for g in cell.world.state.gangs.values()}
    cell.ask("zoo/zoe", 1, "alone", resources=Resources(gpus=1, isolation="node"))
    cell.run()
    assert {on[call] for call in ending(cell)} == {"n1"}
    assert len(ending(cell)) == 2


def test_what_is_left_by_those_that_give_way_is_kept_for_whom_they_gave_way() -> None:
    cell = Cell(8)
    (spot,) = old_spot(cell, ("lab/ana", 8))
    gang = cell.gang_of(spot)
    cell.ask("lab/bob", 8, "big")
    cell.run()
    cell.ask("zoo/zoe", 1, "small")
    stop(cell, cell.world.state.gangs[gang.id])
    assert cell.run() == ["lab/bob"]


# ---- backfill ----

LIMITED = Limits(timeout_s=600, grace_s=0)


def hold(cell: Cell, who: str, gpus: float, *, timeout_s: float) -> str:
    call = cell.ask(who, gpus, f"t{timeout_s:g}", limits=Limits(timeout_s=timeout_s, grace_s=0))
    known = cell.world.call(call)
    assert known.timeout_ms == timeout_s * 1000
    cell.run()
    cell.world.start(call)
    return call


def test_calls_that_end_in_time_pass_one_that_waits_and_others_do_not() -> None:
    cell = Cell(8)
    hold(cell, "lab/ana", 6, timeout_s=600)
    big = cell.ask("lab/bob", 8, "big")
    assert cell.run() == []
    cell.ask("lab/eve", 1, "endless")
    cell.ask("lab/zoe", 1, "long", limits=Limits(timeout_s=700, grace_s=0))
    cell.ask("lab/max", 1, "short", limits=Limits(timeout_s=500, grace_s=0, startup_timeout_s=20))
    cell.ask("lab/kim", 1, "slow", limits=Limits(timeout_s=500, grace_s=0))
    assert cell.run() == ["lab/max"]
    assert cell.world.call(big).state is CallState.QUEUED


def test_where_nobody_knows_when_it_can_start_others_may_pass_for_half_a_minute() -> None:
    cell = Cell(8)
    cell.ask("lab/ana", 6)
    cell.run()
    cell.ask("lab/bob", 8, "big")
    cell.ask("lab/eve", 1, "early")
    assert cell.run() == ["lab/eve"]
    cell.world.wait(30_001)
    cell.ask("lab/eve", 1, "late")
    assert cell.run() == []


def test_the_reservation_is_on_the_nodes_that_come_free_first() -> None:
    cell = Cell(8, 8)
    hold(cell, "lab/ana", 8, timeout_s=900)
    hold(cell, "lab/ana", 8, timeout_s=300)
    cell.ask("lab/bob", 8, "big")
    cell.run()
    cell.world.wait(300_000)
    second = next(g for g in cell.world.state.gangs.values() if g.members[0].member.node_id == "n2")
    cell.world.finish(second.calls[0])
    cell.world.idle_ms = {second.id: 1}
    cell.run()
    cell.world.end(cell.world.state.gangs[second.id])
    assert cell.run() == ["lab/bob"]
    assert cell.world.do(c.Schedule(raw_ids=())) == ()


def test_what_the_first_leaves_of_its_nodes_others_may_have_however_long_they_run() -> None:
    cell = Cell(8)
    hold(cell, "lab/ana", 6, timeout_s=600)
    big = cell.ask("lab/bob", 7, "big")
    cell.ask("lab/eve", 1, "endless")
    cell.ask("lab/zoe", 1, "endless")
    assert cell.run() == ["lab/eve"]
    assert cell.world.call(big).state is CallState.QUEUED


def test_a_gang_waits_for_as_many_nodes_as_have_room_first() -> None:
    cell = Cell(8, 8)
    for timeout_s in (900, 100, 900, 100):
        hold(cell, "lab/ana", 4, timeout_s=timeout_s)
    need = Need(spec=spec("big", gpus=8), workspace="lab")
    state, log_ms = cell.world.state, cell.world.log_ms
    found = reservation_for(state, need, rooms_of(state), log_ms)
    assert found is not None
    assert found.nodes == {"n1", "n2"}
    assert found.at_ms - log_ms < 200_000


def test_a_short_call_passes_longer_ones_of_its_function_that_may_not_start() -> None:
    cell = Cell(8)
    hold(cell, "lab/ana", 6, timeout_s=600)
    cell.ask("lab/bob", 8, "big")
    cell.run()
    limits = Limits(grace_s=0, startup_timeout_s=20)
    ana = Owner(workspace="lab", user="ana")
    function = cell.world.register(spec("f", gpus=1, limits=limits), ana)
    long = [cell.world.submit(100 + at, function, ana, timeout_ms=900_000) for at in range(12)]
    short = cell.world.submit(200, function, ana, timeout_ms=300_000)
    cell.run()
    assert {cell.world.call(call).state for call in long} == {CallState.QUEUED}
    assert cell.world.call(short).state is CallState.ASSIGNED


def test_calls_that_are_passed_over_end_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of others behind them are looked at all the same."""
    monkeypatch.setattr("phalanx_control.scheduler.cycle.MOST_PASSED_OVER", 10)
    cell = Cell(8)
    hold(cell, "lab/ana", 6, timeout_s=600)
    cell.ask("lab/bob", 8, "big")
    cell.run()
    for user in ("ana", "bob"):
        owner = Owner(workspace="lab", user=user)
        function = cell.world.register(spec(f"long-{user}", gpus=1), owner)
        for number in range(40):
            cell.world.submit(1_000 + 100 * (user == "bob") + number, function, owner, timeout_ms=900_000)
    cell.world.wait(1_000)
    cell.ask("lab/zoe", 2, "held", limits=Limits(timeout_s=300, grace_s=0, startup_timeout_s=20))
    assert cell.run() == ["lab/zoe"]


def test_a_new_gang_does_not_begin_a_call_that_waits_for_its_next_attempt() -> None:
    """The call that it was started for went to another one meanwhile, and failed there."""
    cell = Cell(1, 1)
    retried = Limits(timeout_s=500, retries=1, retrying=Retrying(initial_delay_s=30))
    function = cell.world.register(spec("f", gpus=1, limits=retried), ANA)
    first = cell.world.ready_gang(function, 1)
    second = cell.world.submit(2, function, ANA, timeout_ms=500_000)
    cell.world.start(first.for_call)
    cell.world.schedule()
    (started,) = (gang for gang in cell.world.state.gangs.values() if gang.for_call == second)
    cell.world.finish(first.for_call)
    cell.world.schedule()
    cell.world.start(second)
    cell.world.finish(second, Outcome.FAILED, error=m.ErrorInfo(cause=Cause.USER_EXCEPTION, message="no"))
    assert cell.world.call(second).not_before_ms > cell.world.log_ms
    cell.world.bring_up(started)
    assert cell.world.call(second).state is CallState.QUEUED


def test_a_call_with_a_timeout_takes_nothing_from_one_that_nobody_knows_the_start_of() -> None:
    cell = Cell(8)
    cell.ask("lab/ana", 6)
    cell.run()
    cell.ask("lab/bob", 8, "big")
    cell.run()
    cell.world.wait(30_001)
    cell.ask("lab/eve", 1, "short", limits=Limits(timeout_s=5, grace_s=0, startup_timeout_s=1))
    assert cell.run() == []


def test_every_sentence_is_made_anew_within_seconds_and_those_of_the_first_in_each_pass() -> None:
    cell = Cell(8)
    small = [cell.ask("lab/ana", 1, f"s{at}") for at in range(2)]
    cell.ask("lab/ana", 6, "six")
    cell.run()
    waiting = [cell.ask("lab/bob", 8, f"big{at}") for at in range(5)]
    cell.run()
    assert all("has 0 free of 8" in cell.reason(call) for call in waiting)
    cell.end(small[0])
    cell.run()
    assert all("has 1 free of 8" in cell.reason(call) for call in waiting[:2])
    for _ in range(8):
        cell.world.wait(1_000)
        cell.run()
    assert all("has 1 free of 8" in cell.reason(call) for call in waiting)


def test_of_many_victims_the_cheapest_are_looked_at_first_and_for_the_first_call_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("phalanx_control.scheduler.space._VICTIMS_TRIED", 1)
    cell = Cell(8, 8, 8)
    for firm, spots, run_ms in ((6, 2, 60), (7, 1, 1), (7, 1, 1)):
        cell.ask("lab/ana", firm, f"firm{len(cell.world.state.gangs)}")
        cell.run()
        old_spot(cell, *[("lab/bob", 1)] * spots, run_ms=run_ms * MINUTE_MS)
    dear = [g for g in cell.world.state.gangs.values() if g.owner.user == "bob" and g.lead == "n1"]
    cell.ask("lab/zoe", 2, "both", launch="single")
    cell.run()
    assert ending(cell) == sorted(g.for_call for g in dear)


@pytest.mark.parametrize(("asked", "ends"), [(1, 2), (0.5, 1)])
def test_those_that_share_a_gpu_give_way_too_and_no_more_of_them_than_must(asked: float, ends: int) -> None:
    cell = Cell(1)
    old_spot(cell, ("lab/ana", 0.5), ("lab/ana", 0.5))
    cell.ask("lab/bob", asked, "firm")
    cell.run()
    assert len(ending(cell)) == ends
    check_picture(cell.world.state)


@pytest.mark.parametrize("gpus", [0, 1])
def test_gangs_that_hold_cores_give_way_to_those_that_need_them(gpus: float) -> None:
    cell = Cell(8)
    cores = cell.ask("lab/ana", 0, "cores", resources=spec(gpus=0, cpus=62.0).resources, **SPOT)
    cell.run()
    cell.world.start(cores)
    cell.world.wait(10 * MINUTE_MS)
    old_spot(cell, ("lab/ana", 1))
    cell.ask("lab/bob", gpus, "firm", resources=spec(gpus=gpus, cpus=4.0).resources)
    cell.run()
    assert ending(cell) == [cores]
    check_picture(cell.world.state)


def test_workspaces_are_not_told_of_each_others_functions_and_users() -> None:
    cell = Cell(8, policy={"workspaces": {"prod": {"gpus": 8}}})
    (spot,) = old_spot(cell, ("lab/ana", 8))
    gang = cell.gang_of(spot)
    cell.ask("prod/bob", 8, "secret")
    cell.run()
    assert cell.world.state.gangs[gang.id].stop_reason == "gave way to another workspace"
    cell = Cell(8)
    cell.ask("lab/ana", 8, "secret")
    cell.run()
    waits = cell.ask("prod/bob", 8)
    cell.run()
    assert cell.reason(waits).endswith("best node n1 has 0 free of 8 (8 held by others)")


# ---- what went wrong once ----


def test_no_more_gangs_end_while_the_first_are_on_their_way_out() -> None:
    cell = Cell(8, policy={"workspaces": {"lab": {"limit": 4}}})
    old_spot(cell, *[("lab/ana", 1)] * 4)
    cell.ask("lab/bob", 1, "firm")
    for _ in range(4):
        cell.run()
        cell.world.wait(1_000)
    assert len(ending(cell)) == 1


def test_what_still_ends_counts_against_a_limit() -> None:
    cell = Cell(4, 4, policy={"workspaces": {"lab": {"limit": 4}}})
    old_spot(cell, ("lab/ana", 4))
    cell.ask("lab/bob", 4, "firm")
    cell.ask("lab/ana", 1, "next", **SPOT)
    cell.run()
    assert sum(len(m.member.gpus) for g in cell.world.state.gangs.values() for m in g.members) == 4


def test_nobody_is_ended_for_a_call_that_its_accounts_refuse_all_the_same() -> None:
    cell = Cell(8, policy={"workspaces": {"lab": {"limit": 2}, "prod": {"gpus": 7}}})
    old_spot(cell, ("lab/ana", 1))
    cell.ask("lab/bob", 1, "first")
    cell.run()
    cell.ask("lab/bob", 1, "second")
    cell.run()
    assert ending(cell) == []


def test_many_that_are_taken_from_together_do_not_take_it_back() -> None:
    cell = Cell(8)
    old_spot(cell, *[("lab/ana", 1)] * 8)
    cell.ask("lab/bob", 8, "wide", **SPOT)
    cell.run()
    assert ending(cell) == [], "with all of them gone they would stand before it: they came first"


def test_a_guarantee_is_not_undercut_by_taking_one_gang_after_the_other() -> None:
    cell = Cell(8, policy={"workspaces": {"lab": {"gpus": 4}}})
    old_spot(cell, *[("lab/ana", 1)] * 8)
    cell.ask("zoo/zoe", 8, "wide", **SPOT)
    cell.run()
    assert ending(cell) == []


def test_a_gang_that_takes_long_to_start_is_not_ended_for_a_later_call_of_its_user() -> None:
    cell = Cell(1)
    cell.ask("lab/ana", 1, "slow", **SPOT)
    cell.world.schedule()
    cell.world.wait(5 * MINUTE_MS)
    cell.ask("lab/ana", 1, "later", **SPOT)
    cell.world.schedule()
    assert ending(cell) == []


def test_a_user_whose_calls_are_all_refused_hides_nobody() -> None:
    cell = Cell(8, policy={"workspaces": {"lab": {"users": {"ana": {"limit": 1}}, "weight": 100}}})
    cell.ask("lab/ana", 1)
    cell.run()
    for at in range(10):
        for _ in range(60):
            cell.ask("lab/ana", 1, f"a{at}")
    cell.ask("zoo/bob", 1)
    assert cell.run() == ["zoo/bob"]


def test_a_node_without_the_cores_is_not_what_a_call_waits_for() -> None:
    cell = Cell(8, 8)
    hold(cell, "lab/ana", 8, timeout_s=300)
    limits = Limits(timeout_s=600, grace_s=0)
    held = cell.ask("lab/bob", 8, "cores", resources=spec(gpus=8, cpus=7.5).resources, limits=limits)
    cell.run()
    cell.world.start(held)
    cores = cell.ask("lab/eve", 0, "none", resources=spec(gpus=0, cpus=50.0).resources)
    cell.run()
    need = Need(spec=spec("big", gpus=8, cpus=2.5), workspace="lab")
    found = reservation_for(cell.world.state, need, rooms_of(cell.world.state), cell.world.log_ms)
    assert cell.gang_of(cores).lead != cell.gang_of(held).lead
    assert found is not None
    assert (found.nodes, found.is_known) == ({cell.gang_of(held).lead}, True)


def test_a_call_behind_one_that_runs_is_not_counted_as_ending_in_time() -> None:
    cell = Cell(8)
    hold(cell, "lab/ana", 6, timeout_s=600)
    short = Limits(timeout_s=550, grace_s=0, startup_timeout_s=10)
    cell.ask("lab/bob", 8, "big")
    cell.run()
    first = cell.ask("lab/eve", 2, "short", limits=short)
    assert cell.run() == ["lab/eve"]
    cell.world.start(first)
    second = cell.ask("lab/eve", 2, "short", limits=short)
    cell.run()
    assert cell.world.call(second).state is CallState.QUEUED


@pytest.mark.parametrize("half_life", [1, 10 * 365 * 86_400])
def test_the_shortest_and_the_longest_memory_add_up(half_life: float) -> None:
    cell = Cell(2, policy={"half_life": half_life})
    call = cell.ask("lab/ana", 1)
    cell.run()
    cell.world.wait(86_400_000)
    cell.end(call)
    cell.ask("lab/ana", 1, "g")
    assert cell.run() == ["lab/ana"]
    check_picture(cell.world.state)
