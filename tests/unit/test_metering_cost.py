"""From counters to money."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core import messages as m
from phalanx.core.spec import Limits
from phalanx.core.states import Cause, Outcome, Phase
from phalanx_control.metering.book import PriceBook, load_book
from phalanx_control.metering.cost import cost_by, cost_of_call, money_text
from phalanx_control.metering.segments import segments
from phalanx_control.state import commands as c
from phalanx_control.state.model import Gang
from tests.support.builders import BOB, World, call_id, node_info, spec
from tests.support.invariants import check_history

BOOK: PriceBook = load_book(
    {
        "charged": {"start": True, "context": True, "busy": True, "idle_warm": True, "prepare": False},
        "price": [
            {"sku": "h100", "gpu": "H100", "effective_from": "2020-01-01T00:00:00Z", "per_gpu_second": "0.001"},
            {"sku": "old", "gpu": "A100", "effective_from": "2020-01-01T00:00:00Z", "per_gpu_second": "0.0005"},
        ],
    }
)


def count(world: World, gang: Gang, **phases: int) -> None:
    """Every GPU of the gang has spent so many milliseconds in each phase."""
    for member in (k.member for k in gang.members):
        counters = tuple(m.Counter(gpu=g, phase=Phase(p), ms=ms) for g in member.gpus for p, ms in phases.items())
        seen = c.CountersSeen(gang_id=gang.id, node_id=member.node_id, counters=counters)
        world.do(c.Tick(meters=(seen,)))


def world_with_gang(gpus: float = 2) -> tuple[World, Gang]:
    world = World(node_info("n1", gpus=2), node_info("n2", gpus=2))
    gang = world.ready_gang(world.register(spec(gpus=gpus)))
    world.wait(1_000_000)
    return world, gang


def test_a_call_pays_for_the_start_made_for_it_and_for_its_own_time() -> None:
    world, gang = world_with_gang(gpus=4)
    count(world, gang, prepare=9_000, start=1_000, context=500, busy=70_000, idle_warm=90_000)
    world.finish(call_id(1), busy_ms=2_000)
    cost = cost_of_call(world.state, world.call(call_id(1)), BOOK)
    assert [(p.phase, p.gpu_ms, p.charged, p.money) for p in cost.phases] == [
        ("prepare", 36_000, False, "0"),
        ("start", 4_000, True, "0.004"),
        ("context", 2_000, True, "0.002"),
        ("busy", 8_000, True, "0.008"),
    ]
    assert (cost.money, cost.gpu_ms, cost.credit, cost.price_per_gpu_hour) == ("0.014", 50_000, "0", "3.6")


def test_a_second_call_on_a_warm_gang_pays_for_its_own_time_only() -> None:
    world, gang = world_with_gang()
    count(world, gang, start=1_000)
    world.finish(call_id(1), busy_ms=5)
    world.submit(2, gang.function_id)
    world.schedule()
    world.finish(call_id(2), busy_ms=3_000)
    cost = cost_of_call(world.state, world.call(call_id(2)), BOOK)
    assert [(p.phase, p.money) for p in cost.phases] == [("busy", "0.006")]


def test_a_call_that_has_not_run_costs_nothing() -> None:
    world = World()
    world.submit(1, world.register(spec()))
    cost = cost_of_call(world.state, world.call(call_id(1)), BOOK)
    assert (cost.money, cost.phases, cost.currency) == ("0", (), "USD")


def test_busy_time_is_never_more_than_the_closed_lease_was_busy() -> None:
    world, gang = world_with_gang()
    count(world, gang, busy=1_500)
    world.finish(call_id(1), busy_ms=9_999)
    world.end(gang)
    assert cost_of_call(world.state, world.call(call_id(1)), BOOK).gpu_ms == 3_000


def test_a_lease_lost_to_infrastructure_is_credited() -> None:
    world, gang = world_with_gang()
    world.start(call_id(1))
    world.wait(4_000)
    count(world, gang, start=1_000, busy=4_000)
    world.end(gang, error=m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="node died"))
    (line, total) = cost_by(world.state, "function", BOOK)
    assert (line.money, line.credit, line.gpu_ms) == ("0", "0.01", 10_000)
    assert (total.subject, total.money, total.credit) == ("total", "0", "0.01")


def test_what_a_gang_did_before_it_was_lost_is_paid_and_the_lost_attempt_is_not() -> None:
    world, gang = world_with_gang()
    world.start(call_id(1))
    world.wait(4_000)
    world.finish(call_id(1), busy_ms=4_000)
    world.submit(2, gang.function_id)
    world.schedule()
    world.start(call_id(2))
    world.wait(3_000)
    count(world, gang, start=1_000, busy=7_000)
    before = cost_of_call(world.state, world.call(call_id(1)), BOOK)
    world.end(gang, error=m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="process killed by signal 9", signal=9))
    assert cost_of_call(world.state, world.call(call_id(1)), BOOK) == before
    lost = cost_of_call(world.state, world.call(call_id(2)), BOOK)
    assert (lost.money, lost.credit, lost.gpu_ms) == ("0", "0.006", 6_000)
    (line, _) = cost_by(world.state, "function", BOOK)
    assert (line.money, line.credit) == ("0.01", "0.006")


def test_a_call_pays_for_all_its_attempts_but_those_that_the_platform_lost() -> None:
    world = World(node_info("n1", gpus=2))
    limits = Limits(retries=3, scaledown_window_s=1_000_000)
    gang = world.ready_gang(world.register(spec(gpus=2, limits=limits)))
    error = m.ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="ValueError", message="x")
    for _ in range(2):
        world.start(call_id(1))
        world.wait(1_000)
        world.finish(call_id(1), Outcome.FAILED, error=error, busy_ms=1_000)
        world.wait(60_000)
        world.schedule()
    world.start(call_id(1))
    world.wait(2_000)
    count(world, gang, busy=4_000)
    world.end(gang, error=m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="lost"))
    world.wait(60_000)
    world.schedule()
    (second,) = world.state.gangs.values()
    second = world.bring_up(second)
    world.start(call_id(1))
    world.wait(5_000)
    count(world, second, busy=5_000)
    world.finish(call_id(1), busy_ms=5_000)
    cost = cost_of_call(world.state, world.call(call_id(1)), BOOK)
    assert (cost.money, cost.credit, cost.gpu_ms) == ("0.014", "0.004", 18_000)
    check_history(world.history, world.state)


def test_waiting_for_people_is_a_phase_of_the_calls_own_cost() -> None:
    world = World(node_info("n1", gpus=2))
    limits = Limits(hold_on_failure_s=600)
    gang = world.ready_gang(world.register(spec(gpus=2, limits=limits)))
    world.start(call_id(1))
    world.wait(5_000)
    count(world, gang, busy=2_000)
    running = cost_of_call(world.state, world.call(call_id(1)), BOOK, paused_ms=3_000)
    assert [(p.phase, p.gpu_ms) for p in running.phases] == [("busy", 4_000), ("debug", 6_000)]
    error = m.ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="ValueError", message="x")
    world.finish(call_id(1), Outcome.FAILED, error=error, busy_ms=2_000, debug_ms=3_000)
    after = cost_of_call(world.state, world.call(call_id(1)), BOOK)
    assert [(p.phase, p.gpu_ms) for p in after.phases] == [("busy", 4_000), ("debug", 6_000)]
    world.wait(60_000)
    count(world, gang, busy=2_000, debug=63_000)
    held = cost_of_call(world.state, world.call(call_id(1)), BOOK)
    assert [(p.phase, p.gpu_ms) for p in held.phases] == [("busy", 4_000), ("debug", 126_000)]
    check_history(world.history, world.state)


def test_a_share_of_a_gpu_costs_its_share() -> None:
    world, gang = world_with_gang(gpus=0.25)
    count(world, gang, busy=8_000)
    (segment,) = segments(world.state, BOOK)
    assert (segment.gpu_ms, segment.money) == (Decimal(2_000), Decimal("0.002"))


def test_cpu_functions_and_gpus_without_a_price_cost_nothing() -> None:
    world = World(node_info("n1", model="Mystery"))
    gang = world.ready_gang(world.register(spec()))
    world.wait(10_000)
    count(world, gang, busy=1_000)
    world.do(
        c.Tick(meters=(c.CountersSeen(gang_id=gang.id, node_id="n1", counters=(m.Counter(phase=Phase.BUSY, ms=5),)),))
    )
    (total,) = cost_by(world.state, "", BOOK)
    assert (total.subject, total.money, total.gpu_ms) == ("total", "0", 1_000)


@pytest.mark.parametrize(
    ("group_by", "subjects"),
    [
        ("function", ["m.big", "m.small", "total"]),
        ("user", ["bob", "ana", "total"]),
        ("phase", ["busy", "start", "total"]),
        ("node", ["n1", "total"]),
        ("workspace", ["default", "total"]),
    ],
)
def test_costs_are_grouped_and_add_up(group_by: str, subjects: list[str]) -> None:
    world = World(node_info("n1"))
    small = world.ready_gang(world.register(spec("small")), 1)
    world.submit(2, world.register(spec("big", gpus=4)), BOB)
    world.schedule()
    big = world.bring_up(next(g for g in world.state.gangs.values() if g.id != small.id))
    world.wait(100_000)
    count(world, small, start=1_000, busy=2_000)
    count(world, big, start=1_000, busy=9_000)
    lines = cost_by(world.state, group_by, BOOK, workspace="default")
    assert [line.subject for line in lines] == subjects
    assert sum(Decimal(line.money) for line in lines[:-1]) == Decimal(lines[-1].money) == Decimal("0.043")
    assert cost_by(world.state, group_by, BOOK, workspace="other")[-1].money == "0"


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of function, user"):
        cost_by(World().state, "colour", BOOK)


def test_a_call_that_was_cancelled_while_it_ran_has_cost_until_then() -> None:
    world, _ = world_with_gang()
    world.start(call_id(1))
    world.wait(3_000)
    world.cancel(call_id(1))
    assert cost_of_call(world.state, world.call(call_id(1)), BOOK).gpu_ms == 6_000
    world.finish(call_id(1), Outcome.CANCELLED, busy_ms=3_000)
    assert cost_of_call(world.state, world.call(call_id(1)), BOOK).gpu_ms == 6_000


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0.0000005", "0"), ("0.0000015", "0.000002"), ("12.3000000", "12.3"), ("100", "100"), ("0", "0")],
)
def test_lines_are_rounded_half_to_even_and_written_without_exponents(amount: str, text: str) -> None:
    assert money_text(Decimal(amount)) == text


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 900_000), min_size=1, max_size=8), st.randoms())
def test_the_order_and_repetition_of_reports_never_changes_a_bill(reports: list[int], random: Random) -> None:
    world, gang = world_with_gang()
    shuffled = [*reports, *reports]
    random.shuffle(shuffled)
    for ms in shuffled:
        count(world, gang, busy=ms)
    (total,) = cost_by(world.state, "", BOOK)
    assert Decimal(total.money) == Decimal(2 * max(reports)) / 1000 * Decimal("0.001")
