"""Nobody waits for ever: a gang that stands first starts, however many small calls come behind it."""

from __future__ import annotations

import pytest

from phalanx.core.spec import Limits
from phalanx.core.states import CallState
from tests.unit.test_scheduler_accounts import Cell

LASTS_S = 60
AT_S = 100
"""The gang comes when the cell is full."""
PATIENCE_S = 30
SLACK_S = 5


@pytest.mark.parametrize("limit_s", [LASTS_S, 0], ids=["with time limits", "nobody says how long"])
def test_a_large_gang_starts_within_its_bound_however_many_small_calls_come(limit_s: int) -> None:
    """By when what ran has ended; where nobody knows when that is, others may pass it for half a minute before."""
    cell, limits = Cell(8, 8), Limits(timeout_s=limit_s, grace_s=0, startup_timeout_s=1)
    running: list[tuple[int, str]] = []
    big, waited_s = "", 0
    for second in range(AT_S + 300):
        if second == AT_S:
            big = cell.ask("lab/bob", 16, "big")
        _come(cell, second, limits)
        running += [(second, call) for call in _started(cell)]
        for call in [call for began, call in running if began <= second - LASTS_S and call != big]:
            cell.end(call)
        running = [(began, call) for began, call in running if began > second - LASTS_S]
        if big and cell.world.call(big).state is not CallState.QUEUED:
            waited_s = second - AT_S
            break
        cell.world.wait(1_000)
    assert cell.world.call(big).state is not CallState.QUEUED
    assert waited_s <= LASTS_S + (0 if limit_s else PATIENCE_S) + SLACK_S


def _come(cell: Cell, second: int, limits: Limits) -> None:
    """Small calls, more than ever fit; those that had to wait for long are given up."""
    for number, user in enumerate(("ana", "eve")):
        for call in [
            c for c in cell.world.state.calls.values() if c.owner.user == user and c.state is CallState.QUEUED
        ]:
            cell.world.cancel(call.id, call.owner)
        for at in range(4 + number):
            cell.ask(f"lab/{user}", 1, f"s{second}-{at}", limits=limits)


def _started(cell: Cell) -> list[str]:
    before = {*cell.world.state.gangs}
    cell.run()
    calls = [gang.for_call for gang_id, gang in cell.world.state.gangs.items() if gang_id not in before]
    for call in sorted(calls):
        cell.world.start(call)
    return sorted(calls)
