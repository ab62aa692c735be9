"""Errors on the data plane: reading and writing them, and telling the guilty rank from its victims. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phalanx.core import error_meta
from phalanx.core.errors import PhalanxError
from phalanx.core.frames import Frame, Kind
from phalanx.core.messages import ErrorInfo, RankFailure
from phalanx.core.states import Cause, Outcome

_MAX_TEXT_CHARS = 64 * 1024
MAX_PICKLED_BYTES = 64 * 1024


def error_from_meta(data: object, *, pickled: bytes = b"", node_id: str = "") -> ErrorInfo:
    """Reads the error of a FAILURE or ENDED frame, within the sizes that the log takes."""
    error = error_meta.error_from_meta(data, otherwise=Cause.INFRASTRUCTURE)
    return replace(
        error,
        message=error.message[:_MAX_TEXT_CHARS],
        traceback=error.traceback[:_MAX_TEXT_CHARS],
        node_id=error.node_id or node_id,
        pickled=pickled if len(pickled) <= MAX_PICKLED_BYTES else b"",
    )


def failure(call: bytes, outcome: Outcome, error: ErrorInfo, *, busy_ms: int = 0) -> Frame:
    """Returns a FAILURE frame that this agent makes itself."""
    meta = {"outcome": outcome.value, "error": error_meta.error_to_meta(error), "busy_ms": busy_ms}
    return Frame(Kind.FAILURE, call, meta, error.pickled)


def cancelled(call: bytes, *, timed_out: bool = False) -> Frame:
    """Returns the outcome of a call that was taken back before it ran."""
    if timed_out:
        error = ErrorInfo(cause=Cause.TIMEOUT, type_name="CallTimeoutError", message="its time was over")
        return failure(call, Outcome.TIMED_OUT, error)
    error = ErrorInfo(cause=Cause.CANCELLED, type_name="CallCancelledError", message="cancelled before it ran")
    return failure(call, Outcome.CANCELLED, error)


def infrastructure(message: str, *, node_id: str = "") -> ErrorInfo:
    return ErrorInfo(cause=Cause.INFRASTRUCTURE, type_name="RankDiedError", message=message, node_id=node_id)


def refusal(error: PhalanxError) -> dict[str, Any]:
    """Returns the meta of a REFUSED frame."""
    return {"error": str(error), "code": error.code, "hint": error.hint}


def is_victim(error: ErrorInfo) -> bool:
    """Says whether the error only tells that something else went away. Whose fault a rank's is, its keeper judged."""
    if error.signal or error.exit_code or any(r.culprit for r in error.ranks):
        return False
    return error.cause in (Cause.INFRASTRUCTURE, Cause.PREEMPTED)


def choose_culprit(errors: list[ErrorInfo]) -> ErrorInfo:
    """Returns the error to show, of several in the order in which they came: the first that is not a victim's. Where
    there are only victims', no rank is named.

    All ranks' records are kept; the victims' are marked as such.
    """
    chosen = next((e for e in errors if not is_victim(e)), errors[0])
    victim = is_victim(chosen)
    records: dict[int, RankFailure] = {}
    for error in errors:
        for record in error.ranks or ((_as_rank(error),) if error.rank >= 0 else ()):
            former = records.get(record.rank)
            if former is None or (record.culprit and not former.culprit):
                records[record.rank] = replace(record, culprit=record.culprit and error is chosen and not victim)
    own = records.get(chosen.rank)
    if own is not None and not victim:
        records[chosen.rank] = replace(own, culprit=True)
    rank = -1 if victim else chosen.rank
    return replace(chosen, rank=rank, ranks=tuple(records[r] for r in sorted(records)))


def _as_rank(error: ErrorInfo) -> RankFailure:
    return RankFailure(
        rank=error.rank,
        node_id=error.node_id,
        culprit=True,
        exit_code=error.exit_code,
        signal=error.signal,
        type_name=error.type_name,
        message=error.message,
        traceback=error.traceback,
    )
