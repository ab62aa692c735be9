"""What an attempt without a result leads to: another attempt, or the end of the call. Counted by cause.

user exception, out of memory, timeout   eat the user's ``retries``
infrastructure                           at most three more attempts, free, where ``retries`` are on
preempted                                free, without limit
third gang that died under the call      POISON, whatever the cause
direct calls                             never rerun: their arguments were never in the log

Without ``retries`` a function runs at most once: a call that may have begun is not begun again. It failed with the rank
that died, or its outcome is unknown.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.messages import ErrorInfo
from phalanx.core.states import CallState, Cause
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state.events import CallFailed, CallRequeued
from phalanx_control.state.model import BodyRef, Call

INFRASTRUCTURE_CAP = 3
POISON_GANGS = 3
BACKOFF_FIRST_MS = 1_000
BACKOFF_MAX_MS = 60_000
_MAY_HAVE_RUN = frozenset({CallState.ASSIGNED, CallState.RUNNING})


def backoff_ms(failed_attempts: int) -> int:
    """Returns the wait before the next attempt: 1 s doubled after each failure, at most 60 s."""
    return min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS << min(failed_attempts, 16))


def attempt_failed(
    draft: Draft,
    call: Call,
    error: ErrorInfo,
    *,
    error_body: BodyRef | None = None,
    busy_ms: int = 0,
    killed_gang: str = "",
) -> None:
    """Requeues or ends a call, not being cancelled, whose attempt failed with ``error``."""
    final = _final_error(draft, call, error, killed_gang)
    if final is None:
        _requeue(draft, call, error, killed_gang)
        return
    draft.add(
        CallFailed(
            call_id=call.id,
            fence=call.fence,
            error=replace(final, pickled=b""),
            error_body=error_body or BodyRef(),
            busy_ms=busy_ms,
            timed_out=final.cause is Cause.TIMEOUT,
            wall_ms=draft.now.wall_ms,
        )
    )


def _final_error(draft: Draft, call: Call, error: ErrorInfo, killed_gang: str) -> ErrorInfo | None:
    """Returns the error that ends the call; None when it may try again."""
    killed = len(call.gangs_killed) + bool(killed_gang)
    if killed >= POISON_GANGS:
        return _poison(call, error, killed_gang)
    if call.direct:
        return error
    if error.cause is Cause.PREEMPTED:
        return None
    if error.cause.eats_user_retries:
        return None if user_tries(call) < draft.spec(call.function_id).limits.retries else error
    if error.cause is not Cause.INFRASTRUCTURE:
        return error
    if call.state in _MAY_HAVE_RUN and not runs_again(draft, call):
        return error if names_culprit(error) else outcome_unknown(call, error)
    return None if call.tries.get(error.cause, 0) < INFRASTRUCTURE_CAP else error


def runs_again(draft: Draft, call: Call) -> bool:
    """Says whether the function may run more than once for one call."""
    return draft.spec(call.function_id).limits.retries > 0


def names_culprit(error: ErrorInfo) -> bool:
    """Says whether the error tells which rank died, and so that the call's attempt is over for certain."""
    return bool(error.signal or error.exit_code or any(r.culprit for r in error.ranks))


def user_tries(call: Call) -> int:
    """Returns how many of the user's retries the call has eaten."""
    return sum(count for cause, count in call.tries.items() if Cause(cause).eats_user_retries)


def _requeue(draft: Draft, call: Call, error: ErrorInfo, killed_gang: str) -> None:
    tried = call.tries.get(error.cause, 0)
    wait_ms = 0 if error.cause is Cause.PREEMPTED else backoff_ms(tried)
    draft.add(
        CallRequeued(
            call_id=call.id,
            cause=error.cause.value,
            reason=f"waits {wait_ms // 1000} s before another attempt; the last one failed: {summary(error)}",
            not_before_ms=draft.now.log_ms + wait_ms,
            killed_gang=killed_gang,
        )
    )


def _poison(call: Call, error: ErrorInfo, killed_gang: str) -> ErrorInfo:
    gangs = ", ".join((*call.gangs_killed, killed_gang) if killed_gang else call.gangs_killed)
    return replace(
        error,
        cause=Cause.POISON,
        type_name="PoisonError",
        message=f"ended three gangs ({gangs}) and is not tried again; the last one: {summary(error)}",
    )


def summary(error: ErrorInfo) -> str:
    """Returns one short line about an error."""
    text = (error.message or error.cause.value).splitlines()[0][:200]
    return f"{error.type_name}: {text}" if error.type_name else text


def infrastructure(message: str, *, node_id: str = "") -> ErrorInfo:
    """Returns an error that is the platform's, not the user's."""
    return ErrorInfo(cause=Cause.INFRASTRUCTURE, message=message, node_id=node_id)


def outcome_unknown(call: Call, error: ErrorInfo) -> ErrorInfo:
    """Returns the error of a call whose gang was lost with it: it may or may not have run."""
    why = "only the caller holds its arguments" if call.direct else "its function has no retries"
    return replace(
        error,
        cause=Cause.INFRASTRUCTURE,
        type_name="OutcomeUnknownError",
        message=f"call {call.id} may have run: {summary(error)}; it was not run again, because {why}",
    )
