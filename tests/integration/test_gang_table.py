"""The gang table on real ranks: whatever goes wrong, the rank at fault is named, and a victim never is."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.core.spec import Limits
from tests.support.gang_driver import Gangs
from tests.support.gang_table import WAYS, Trial, go_wrong

HANG_S = 1.0


def error_of(gangs: Gangs, trial: Trial) -> dict[str, Any]:
    limits = Limits(hang_timeout_s=HANG_S, grace_s=1)
    keeper = gangs.one(go_wrong, ranks=trial.world, limits=limits)
    call = keeper.call(trial.culprit, trial.how, trial.moment, trial.rounds, trial.collective)
    error = keeper.error(call, within_s=15)
    keeper.ended()
    keeper.leave()
    return error


@pytest.mark.parametrize("how", WAYS)
def test_the_rank_at_fault_is_named_on_one_node(gangs: Gangs, how: str) -> None:
    error = error_of(gangs, Trial(4, 1, 2, how))
    assert error["rank"] == 2, error
    assert [r["rank"] for r in error["ranks"] if r["culprit"]] == [2]
