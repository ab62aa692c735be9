"""Exit codes of gpuctl, and which error leads to which. Documented in ``gpuctl --help``; nothing else may invent one.

0 ok              3 not found                     7 control plane unreachable
1 function failed 4 authentication                124 timeout
2 usage           5 unschedulable or over quota   130 interrupted
                  6 cancelled
"""

from __future__ import annotations

from enum import IntEnum

from phalanx.core import errors
from phalanx.core.states import CallState


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    UNSCHEDULABLE = 5
    CANCELLED = 6
    UNREACHABLE = 7
    TIMEOUT = 124
    INTERRUPTED = 130


_BY_ERROR: tuple[tuple[type[BaseException], Exit], ...] = (
    (KeyboardInterrupt, Exit.INTERRUPTED),
    (errors.CallTimeoutError, Exit.TIMEOUT),
    (errors.CallCancelledError, Exit.CANCELLED),
    (errors.CallError, Exit.FAILED),
    (errors.GetTimeoutError, Exit.TIMEOUT),
    (errors.UnschedulableError, Exit.UNSCHEDULABLE),
    (errors.NotFoundError, Exit.NOT_FOUND),
    (errors.AuthError, Exit.AUTH),
    (errors.ConnectionFailedError, Exit.UNREACHABLE),
    (errors.InvalidSpecError, Exit.USAGE),
    (errors.NotBuiltError, Exit.USAGE),
    (errors.SerializationError, Exit.USAGE),
)
_BY_STATE = {
    CallState.SUCCEEDED: Exit.OK,
    CallState.FAILED: Exit.FAILED,
    CallState.TIMED_OUT: Exit.TIMEOUT,
    CallState.CANCELLED: Exit.CANCELLED,
}


def exit_of(error: BaseException) -> Exit:
    """Returns the exit code of an error; everything that is not in the table is a failure."""
    return next((code for cls, code in _BY_ERROR if isinstance(error, cls)), Exit.FAILED)


def exit_of_state(state: str) -> Exit:
    """Returns the exit code of a call's terminal state."""
    return _BY_STATE.get(CallState(state), Exit.FAILED)
