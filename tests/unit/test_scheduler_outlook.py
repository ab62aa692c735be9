"""What is said of the queue, of accounts, and of when a gang could start."""

from __future__ import annotations

from typing import Any

from phalanx.core.spec import Limits
from phalanx.core.views import StartView
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.outlook import accounts_of, policy_words, start_of, waiting
from phalanx_control.state.model import Owner
from tests.support.builders import WALL_MS, spec
from tests.support.pictures import check_picture
from tests.unit.test_scheduler_accounts import Cell
from tests.unit.test_scheduler_preemption import hold, old_spot

BOB = Owner(workspace="lab", user="bob")


def start(cell: Cell, gpus: float, **asked: Any) -> StartView:
    found = start_of(cell.world.state, Need(spec=spec("new", gpus=gpus, **asked), workspace="lab"), BOB, cell.world.now)
    check_picture(cell.world.state)
    return found


def test_calls_are_listed_in_the_order_in_which_they_are_served() -> None:
    cell = Cell(8)
    hold(cell, "lab/ana", 8, timeout_s=60)
    first = [cell.ask("lab/ana", 4, f"a{at}") for at in range(2)]
    second = cell.ask("lab/bob", 4, "b")
    cell.run()
    found = list(waiting(cell.world.state, cell.world.now, limit=10))
    assert [each.call_id for each in found] == [second, *first]
    assert [(each.place, each.account) for each in found] == [(1, "lab/bob"), (2, "lab/ana"), (3, "lab/ana")]
    assert found[0].starts_by_ms == WALL_MS + 61_000
    assert found[0].reason.startswith("needs 4 GPUs on 1 node; best node n1 has 0 free of 8")
    assert len(list(waiting(cell.world.state, cell.world.now, limit=2))) == 2


def test_accounts_say_what_they_hold_and_may_have() -> None:
    terms = {"gpus": 2, "limit": 6, "weight": 3, "teams": {"nlp": {"users": ["ana"]}}}
    cell = Cell(8, policy={"workspaces": {"lab": terms, "zoo": {"gpus": 8}}})
    cell.ask("lab/ana", 2)
    cell.run()
    found = {each.account: each for each in accounts_of(cell.world.state, cell.world.now, workspace="lab")}
    assert list(found) == ["lab", "lab/@nlp", "lab/@nlp/ana"]
    lab = found["lab"]
    assert (lab.gpus, lab.guaranteed, lab.limit, lab.weight, lab.share) == (2, 2, 6, 3, 0.25)
    assert len(accounts_of(cell.world.state, cell.world.now)) == 4
    assert policy_words(cell.world.state) == "10 GPUs are guaranteed, and nodes that take work have 8"


def test_a_gang_that_fits_starts_now_and_says_where() -> None:
    found = start(Cell(8), 4)
    assert (found.now, found.ahead) == (True, 0)
    assert found.sentence.startswith("4 GPUs: 4 on n1")


def test_a_gang_that_waits_for_time_limits_knows_until_when_and_with_how_many_it_would_not() -> None:
    cell = Cell(8, 8)
    hold(cell, "lab/ana", 6, timeout_s=300)
    hold(cell, "lab/ana", 7, timeout_s=900)
    found = start(cell, 4)
    assert (found.now, found.at_ms, found.fits_now) == (False, WALL_MS + 301_000, 2)
    assert found.sentence == "on n1, when m.t300-ana-lab of ana has ended at its time limit"


def test_a_gang_that_waits_for_what_has_no_limit_says_that_nobody_knows() -> None:
    cell = Cell(8)
    cell.ask("lab/ana", 8)
    cell.run()
    found = start(cell, 2)
    assert (found.now, found.at_ms) == (False, 0)
    assert found.sentence == "on n1, when m.f-ana-lab of ana has ended, which has no time limit"


def test_idle_gangs_would_be_let_go() -> None:
    cell = Cell(8)
    first = cell.ask("lab/ana", 8)
    cell.run()
    cell.world.finish(first)
    assert start(cell, 2).sentence == "as soon as 1 idle gang let go on n1"


def test_a_limit_is_said() -> None:
    cell = Cell(8, policy={"workspaces": {"lab": {"limit": 2}}})
    cell.ask("lab/ana", 2)
    cell.run()
    assert start(cell, 1).sentence == "needs 1 GPU; lab holds 2 and may have 2"


def test_a_call_has_ended_at_the_latest_when_all_before_it_have() -> None:
    cell = Cell(8)
    old_spot(cell, ("lab/ana", 4))
    limits = Limits(timeout_s=100, grace_s=3)
    call = cell.ask("lab/ana", 4, "limited", limits=limits)
    cell.run()
    cell.world.start(call)
    cell.ask("lab/ana", 4, "limited", limits=limits)
    cell.run()
    assert start(cell, 4).at_ms == cell.world.wall_ms + 205_000
