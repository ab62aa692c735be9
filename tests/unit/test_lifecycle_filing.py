"""What leaves the state for the archive, when, and that no bill changes by it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core import messages as m
from phalanx.core.states import Cause, Phase
from phalanx_control.lifecycle import filing
from phalanx_control.lifecycle.decide import decide
from phalanx_control.metering.cost import cost_by
from phalanx_control.metering.filed import sums_of
from phalanx_control.state import commands as c
from phalanx_control.state import events as ev
from phalanx_control.state.apply import apply_batch
from phalanx_control.state.model import BodyRef
from tests.support.builders import ANA, BOB, World, call_id, node_info, spec
from tests.support.invariants import check_history, check_state
from tests.unit.test_metering_cost import BOOK, count

HOUR_MS = 3_600_000


def archive(world: World) -> ev.Events:
    """Does what the leader does, without files."""
    return world.do(c.ArchiveCalls(call_ids=filing.calls_to_archive(world.state, world.log_ms)))


def file_lines(world: World) -> c.FileLines:
    keys = filing.lines_to_file(world.state, world.wall_ms)
    lines = [world.state.ledger[key] for key in keys]
    month = filing.month_of(lines[0].closed_wall_ms) if lines else ""
    command = c.FileLines(keys=keys, sums=sums_of(lines, month, BOOK))
    world.do(command)
    return command


def with_ended_lease(world: World, n: int = 1, *, gpus: float = 1, error: m.ErrorInfo | None = None) -> None:
    """A gang that worked and was released, and whose call has left the state."""
    gang = world.ready_gang(world.register(spec(f"f{n}", gpus=gpus)), n)
    world.wait(100_000)
    count(world, gang, start=1_000 + n, busy=20_000 + n, idle_warm=30_000)
    if error is None:
        world.finish(call_id(n))
    world.end(gang, error=error)
    if not world.call(call_id(n)).state.terminal:
        world.cancel(call_id(n))
    world.do(c.ArchiveCalls(call_ids=(call_id(n),)))


def test_the_newest_ended_calls_stay_for_an_hour_and_2000_of_them_for_ever() -> None:
    world = World()
    f = world.register(spec())
    for n in range(filing.KEEP.calls + 30):
        world.submit(n, f)
        world.cancel(call_id(n))
    world.submit(99_999, f)
    assert archive(world) == ()
    world.wait(HOUR_MS + 1)
    (archived,) = archive(world)
    assert isinstance(archived, ev.CallsArchived)
    assert set(archived.call_ids) == {call_id(n) for n in range(30)}
    assert call_id(99_999) in world.state.calls
    assert archive(world) == ()
    check_state(world.state)


def test_ended_calls_beyond_the_limit_leave_before_the_hour() -> None:
    world = World()
    f = world.register(spec())
    batch: list[ev.AnyEvent] = []
    for n in range(filing.KEEP.calls_at_most + 10):
        call = c.Submit(call_id=call_id(n), function_id=f, owner=ANA, args=BodyRef())
        batch += decide(world.state, call, world.now)
        batch.append(ev.CallCancelled(call_id=call_id(n), wall_ms=1))
    world.state = apply_batch(world.state, seq=9, log_ms=world.log_ms, events=tuple(batch))
    assert len(filing.calls_to_archive(world.state, world.log_ms)) == 10


def test_only_what_is_here_and_ended_is_archived() -> None:
    world = World()
    f = world.register(spec())
    for n in (1, 2):
        world.submit(n, f)
    world.cancel(call_id(1))
    (archived,) = world.do(c.ArchiveCalls(call_ids=(call_id(1), call_id(2), call_id(3))))
    assert archived == ev.CallsArchived(call_ids=(call_id(1),))
    assert world.do(c.ArchiveCalls(call_ids=(call_id(1),))) == ()


def test_a_line_leaves_an_hour_after_its_lease_and_never_while_something_speaks_of_it() -> None:
    world = World(node_info("n1"))
    gang = world.ready_gang(world.register(spec()))
    world.wait(2 * HOUR_MS)
    assert filing.lines_to_file(world.state, world.wall_ms) == ()
    world.finish(call_id(1))
    world.end(gang)
    assert filing.lines_to_file(world.state, world.wall_ms) == ()
    world.wait(HOUR_MS + 1)
    assert filing.lines_to_file(world.state, world.wall_ms) == ()
    world.do(c.ArchiveCalls(call_ids=(call_id(1),)))
    assert filing.lines_to_file(world.state, world.wall_ms) == (f"{gang.id}/n1",)


@pytest.mark.parametrize("group_by", ["", "function", "user", "phase", "node", "workspace"])
def test_bills_are_the_same_before_and_after_lines_are_filed(group_by: str) -> None:
    world = World(node_info("n1"))
    with_ended_lease(world, 1, gpus=2)
    with_ended_lease(world, 2, gpus=0.25)
    with_ended_lease(world, 3, error=m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="node died"))
    live = world.ready_gang(world.register(spec("live"), BOB), 4)
    count(world, live, busy=100)
    world.wait(HOUR_MS + 1)
    before = cost_by(world.state, group_by, BOOK)
    assert len(file_lines(world).keys) == 3
    assert [line.gang_id for line in world.state.ledger.values()] == [live.id]
    assert cost_by(world.state, group_by, BOOK) == before
    check_history(world.history, world.state)


def test_the_same_lines_again_change_nothing() -> None:
    world = World(node_info("n1"))
    with_ended_lease(world)
    world.wait(HOUR_MS + 1)
    command = file_lines(world)
    filed = world.state.filed
    assert world.do(command) == ()
    assert world.state.filed == filed


def test_lines_of_two_months_are_filed_apart_and_an_old_month_is_forgotten_alone() -> None:
    world = World(node_info("n1"))
    with_ended_lease(world, 1)
    world.wait(40 * 24 * HOUR_MS)
    with_ended_lease(world, 2)
    world.wait(HOUR_MS + 1)
    first, second = file_lines(world), file_lines(world)
    months = sorted({each.month for each in world.state.filed.values()})
    assert (len(first.keys), len(second.keys), months) == (1, 1, ["2023-11", "2023-12"])
    assert world.kinds(world.do(c.DropLedgerMonth(month="2023-11"))) == ["LedgerMonthDropped"]
    assert {each.month for each in world.state.filed.values()} == {"2023-12"}
    assert world.do(c.DropLedgerMonth(month="2023-11")) == ()
    check_history(world.history, world.state)


def test_nothing_is_filed_while_a_live_replica_could_not_read_it() -> None:
    world = World(node_info("n1"))
    with_ended_lease(world)
    world.wait(HOUR_MS + 1)
    keys = filing.lines_to_file(world.state, world.wall_ms)
    command = c.FileLines(keys=keys, sums=sums_of([world.state.ledger[k] for k in keys], "2023-11", BOOK))
    assert decide(world.state, command, c.Now(log_ms=world.log_ms, wall_ms=world.wall_ms, schema=1)) == ()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90_000), st.sampled_from([1.0, 2.0, 0.5])), min_size=1, max_size=6))
def test_no_millisecond_is_lost_or_doubled_whenever_lines_are_filed(leases: list[tuple[int, float]]) -> None:
    world, twin = World(node_info("n1")), World(node_info("n1"))
    for n, (busy_ms, gpus) in enumerate(leases, start=1):
        for each in (world, twin):
            gang = each.ready_gang(each.register(spec("f", gpus=gpus)), n)
            each.wait(100_000)
            count(each, gang, **{Phase.BUSY.value: busy_ms})
            each.finish(call_id(n))
            each.end(gang)
            each.do(c.ArchiveCalls(call_ids=(call_id(n),)))
            each.wait(HOUR_MS + 1)
        file_lines(world)
    assert not world.state.ledger
    assert cost_by(world.state, "phase", BOOK) == cost_by(twin.state, "phase", BOOK)
