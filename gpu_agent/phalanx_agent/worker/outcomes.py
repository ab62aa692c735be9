"""What an exception in a rank means: whose fault, and whether another rank's end explains it. Imports no torch."""

from __future__ import annotations

import re
import sys

from phalanx.context import CancelledSignal
from phalanx.core.states import Cause

_PEER_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError")
_PEER_WORDS = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|connection refused|remote process exited"
    r"|timed out waiting|socket timeout|read error|write error|connectfullmesh failed|recvvalue failed"
    r"|unhandled system error|nccl communicator was aborted|application timeout|pair.*closed",
    re.IGNORECASE,
)
_MEMORY_WORDS = re.compile(
    r"can't allocate memory|not enough memory|cannot allocate memory|out of memory|std::bad_alloc", re.IGNORECASE
)


def cause_of(exc: BaseException) -> Cause:
    """Sorts an exception of user code."""
    if isinstance(exc, CancelledSignal):
        return Cause.CANCELLED
    return Cause.OUT_OF_MEMORY if is_out_of_memory(exc) else Cause.USER_EXCEPTION


def is_out_of_memory(exc: BaseException) -> bool:
    """True for MemoryError, torch's own out-of-memory error, and its CPU allocator's RuntimeError."""
    if isinstance(exc, MemoryError) or type(exc).__name__ == "OutOfMemoryError":
        return True
    return isinstance(exc, (RuntimeError, OSError)) and bool(_MEMORY_WORDS.search(_text(exc)))


def is_peer_error(exc: BaseException) -> bool:
    """True where a rank says that another one went away: a victim, whoever speaks first."""
    if "torch.distributed" not in sys.modules:
        return False
    seen: set[int] = set()
    at: BaseException | None = exc
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if type(at).__name__ in _PEER_TYPES:
            return True
        if isinstance(at, (RuntimeError, ConnectionError)) and _PEER_WORDS.search(_text(at)):
            return True
        at = at.__cause__
    return False


def _text(exc: BaseException) -> str:
    try:
        return str(exc)[:10_000]
    except Exception:  # noqa: BLE001  a user's __str__ may raise anything
        return ""
