"""An error in three lines: what happened, why, and what to do next. Pure.

error[GANG-UNSCHEDULABLE]: no node could ever run this gang
why: it needs 16 GPUs; the largest node has 8
try: gpuctl nodes
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core import errors
from phalanx.core.errors import CallError, PhalanxError

_WHY: dict[type[PhalanxError], str] = {
    errors.ConnectionFailedError: "the control plane did not answer at the configured address",
    errors.AuthError: "the token is missing, wrong, expired, or has too low a role",
    errors.NotNowError: "that can be asked of it in other states only",
    errors.NotFoundError: "nothing of that name or id is known to this workspace",
    errors.UnschedulableError: "no node could ever hold it",
    errors.GetTimeoutError: "the time limit of this command passed; the call itself goes on",
    errors.CallTimeoutError: "the function's own time limit passed",
    errors.CallCancelledError: "somebody cancelled the call",
    errors.GangStartError: "no rank ran the function: its gang could not be made ready",
    errors.RankDiedError: "a rank's process ended before it returned",
    errors.SerializationError: "the value cannot travel to another process",
    errors.InvalidSpecError: "the request does not fit what is allowed",
    errors.NotBuiltError: "this version does not have it yet",
    errors.VersionError: "the two sides run versions that do not fit",
    errors.NoBlobStoreError: "the installation has no blob store for values of this size",
}


@dataclass(frozen=True, slots=True)
class Problem:
    code: str
    what: str
    why: str
    hint: str

    def lines(self) -> tuple[str, str, str]:
        """Returns the three lines, without colours."""
        return (f"error[{self.code}]: {self.what}", f"why: {self.why}", f"try: {self.hint}")


def problem_of(error: BaseException) -> Problem:
    """Returns the three parts of any error; the user's own exceptions keep their type's name."""
    what, why = _split(str(error) or type(error).__name__)
    if isinstance(error, PhalanxError):
        known = next((text for cls, text in _WHY.items() if isinstance(error, cls)), "")
        return Problem(error.code, what, why or known or "see above", error.hint or _hint(error))
    if isinstance(error, KeyboardInterrupt):
        became = "; ".join(getattr(error, "__notes__", ()))
        return Problem("INTERRUPTED", became or "interrupted", "Ctrl-C was pressed", "run the command again")
    call_id = str(getattr(error, "call_id", ""))
    if call_id:
        what = f"{type(error).__name__}: {error}"
        rank = getattr(error, "rank", -1)
        who = f"rank {rank} of the function" if isinstance(rank, int) and rank >= 0 else "the function"
        return Problem("CALL-FAILED", what, f"{who} raised it", f"gpuctl logs {call_id}")
    return Problem("INTERNAL", f"{type(error).__name__}: {what}", why or "this is a bug in gpuctl", "repeat with -v")


def _split(message: str) -> tuple[str, str]:
    """Takes a message apart at its first line break, else at its first colon with a space."""
    first, _, rest = message.partition("\n")
    if rest:
        return first, rest.strip()
    head, _, tail = first.partition(": ")
    return (head, tail) if tail and len(head) >= 12 else (first, "")


def _hint(error: PhalanxError) -> str:
    if isinstance(error, CallError) and error.call_id:
        return f"gpuctl logs {error.call_id}"
    if isinstance(error, (errors.InvalidSpecError, errors.SerializationError, errors.NotBuiltError)):
        return "change what the first line names"
    return "gpuctl doctor"
