"""Questions that can be asked of calls in other states: what is said, and what can be asked instead."""

from __future__ import annotations

import pytest

from phalanx.cli.exits import Exit, exit_of
from phalanx.cli.problem import problem_of
from phalanx.core.states import CallState
from phalanx.core.views import CallView
from phalanx.not_now import not_now

STEPS = {
    CallState.QUEUED: "gpuctl explain c-1",
    CallState.RUNNING: "gpuctl stack c-1",
    CallState.FAILED: "gpuctl report c-1",
    CallState.SUCCEEDED: "gpuctl logs c-1",
    CallState.CANCELLED: "gpuctl explain c-1",
}


@pytest.mark.parametrize("state", STEPS)
def test_the_next_step_is_one_that_answers_in_the_present_state(state: CallState) -> None:
    error = not_now(CallView(call_id="c-1", state=state.value), "there is a report of calls that failed")
    assert problem_of(error).lines() == (
        f"error[NOT-NOW]: call c-1 is {state.value}",
        "why: there is a report of calls that failed",
        f"try: {STEPS[state]}",
    )
    assert exit_of(error) is Exit.NOT_FOUND
