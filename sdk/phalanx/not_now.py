"""What is asked of a call that is in another state: what that is, and what can be asked of it instead."""

from __future__ import annotations

from phalanx.core.errors import NotNowError
from phalanx.core.states import CallState
from phalanx.core.views import CallView

_INSTEAD = {
    CallState.RUNNING: "gpuctl stack",
    CallState.CANCELLING: "gpuctl stack",
    CallState.SUCCEEDED: "gpuctl logs",
    CallState.FAILED: "gpuctl report",
    CallState.TIMED_OUT: "gpuctl report",
}


def not_now(view: CallView, only: str) -> NotNowError:
    """Returns the error of a question that can be asked in other states ``only``, with one that can be asked now."""
    command = _INSTEAD.get(CallState(view.state), "gpuctl explain")
    return NotNowError(f"call {view.call_id} is {view.state}: {only}", hint=f"{command} {view.call_id}")
