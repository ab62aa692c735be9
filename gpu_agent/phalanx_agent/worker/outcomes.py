"""What an exception in a rank means: whose fault, and whether another rank's end explains it. Imports no torch."""

from __future__ import annotations

import re
from dataclasses import replace
from types import TracebackType

from phalanx.context import CancelledSignal
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause
from phalanx_agent.worker.preflight import PreflightError

_DISTRIBUTED = "torch.distributed"
_OF_GLOO = re.compile(r"^\[[^\]]*\bgloo/[^\]]*:\d+\]", re.MULTILINE)
"""How gloo begins what it says: the place in its own source."""
_MEMORY_WORDS = re.compile(
    r"can't allocate memory|not enough memory|cannot allocate memory|out of memory|std::bad_alloc", re.IGNORECASE
)


def cause_of(exc: BaseException, *, asked_to_stop: bool = False) -> Cause:
    """Sorts an exception of user code, which may raise our signal without having been asked to stop."""
    if isinstance(exc, CancelledSignal) and asked_to_stop:
        return Cause.CANCELLED
    if isinstance(exc, PreflightError):
        return Cause.INFRASTRUCTURE
    return Cause.OUT_OF_MEMORY if is_out_of_memory(exc) else Cause.USER_EXCEPTION


def with_own_paths(error: ErrorInfo, bundle_dir: str) -> ErrorInfo:
    """Names the user's files as the user does: the folder that they were unpacked into says nothing to anybody."""
    text = error.traceback.replace(f"{bundle_dir.rstrip('/')}/", "") if bundle_dir else error.traceback
    return replace(error, traceback=text)


def is_out_of_memory(exc: BaseException) -> bool:
    """True for MemoryError, torch's own out-of-memory error, and its CPU allocator's RuntimeError."""
    if isinstance(exc, MemoryError) or type(exc).__name__ == "OutOfMemoryError":
        return True
    return isinstance(exc, (RuntimeError, OSError)) and bool(_MEMORY_WORDS.search(_text(exc)))


def is_peer_error(exc: BaseException, *, world_size: int) -> bool:
    """True where the collective library raised, which it does when another rank went away: perhaps a victim.

    Only where it came from counts, not its words: a user's own connection may be refused as well. Whether another rank
    failed at all is the keeper's to know.
    """
    if world_size == 1:
        return False
    seen: set[int] = set()
    at: BaseException | None = exc
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if _is_of_collectives(at):
            return True
        at = at.__cause__
    return False


def _is_of_collectives(exc: BaseException) -> bool:
    if _belongs(type(exc).__module__):
        return True
    if type(exc) is not RuntimeError or is_out_of_memory(exc):
        return False
    return _belongs(_raised_in(exc.__traceback__)) or bool(_OF_GLOO.search(_text(exc)))


def _belongs(module: str) -> bool:
    return module == _DISTRIBUTED or module.startswith(f"{_DISTRIBUTED}.")


def _raised_in(trace: TracebackType | None) -> str:
    """Returns the module of the innermost frame."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")) if trace is not None else ""


def _text(exc: BaseException) -> str:
    try:
        return str(exc)[:10_000]
    except Exception:  # noqa: BLE001  a user's __str__ may raise anything
        return ""
