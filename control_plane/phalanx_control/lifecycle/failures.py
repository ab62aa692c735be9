"""What an attempt without a result leads to: another attempt, or the end of the call. Counted by cause.

user exception, out of memory, timeout   eat the user's ``retries``, and are retried where ``retry_on`` names them
a value that cannot travel               not retried unless it is named: the next would not travel either
infrastructure                           at most three more attempts, free, where ``retries`` are on
preempted                                free, without limit; by a drained node only what may run more than once
third gang that died under the call      POISON, whatever the cause
direct calls                             never rerun: their arguments were never in the log

Without ``retries`` a function runs at most once: a call that may have begun is not begun again. It failed with the rank
that died, or its outcome is unknown.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.errors import SerializationError
from phalanx.core.kinds import class_name, is_one_of
from phalanx.core.messages import ErrorInfo
from phalanx.core.spec import Retrying
from phalanx.core.states import CallState, Cause
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import schemas
from phalanx_control.state.events import AttemptCredited, CallCancelled, CallFailed, CallRequeued
from phalanx_control.state.model import BodyRef, Call

INFRASTRUCTURE_CAP = 3
POISON_GANGS = 3
DRAINED = "NodeDrainedError"
"""The type of what ends a call on a node that an admin drains."""
_PLATFORMS_OWN = Retrying()
"""How failures that are nobody's fault are tried again."""
_IN_VAIN = (class_name(SerializationError),)
_MAY_HAVE_RUN = frozenset({CallState.ASSIGNED, CallState.RUNNING})


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
    if busy_ms and is_platforms(error) and draft.now.schema >= schemas.SPENT_SCHEMA:
        draft.add(AttemptCredited(gang_id=call.gang_id, ms=busy_ms))
    if final is None:
        _requeue(draft, call, error, killed_gang, busy_ms)
        return
    draft.add(
        CallFailed(
            call_id=call.id,
            fence=call.fence,
            error=replace(final, pickled=b"", kinds=()),
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
    again = runs_again(draft, call) or draft.spec(call.function_id).preemptible
    if is_drain(error) and call.state in _MAY_HAVE_RUN and not again:
        return outcome_unknown(call, error)
    if error.cause is Cause.PREEMPTED:
        return None
    if error.cause.eats_user_retries:
        return None if user_tries(call) < retries_of(draft, call) and _is_retried(draft, call, error) else error
    if error.cause is not Cause.INFRASTRUCTURE:
        return error
    if call.state in _MAY_HAVE_RUN and not runs_again(draft, call):
        return error if names_culprit(error) else outcome_unknown(call, error)
    return None if call.tries.get(error.cause, 0) < INFRASTRUCTURE_CAP else error


def runs_again(draft: Draft, call: Call) -> bool:
    """Says whether the function may run more than once for one call."""
    return retries_of(draft, call) > 0


def retries_of(draft: Draft, call: Call) -> int:
    """Returns how many of its failures a call may have: its own number, or the function's."""
    return draft.spec(call.function_id).limits.retries if call.retries is None else call.retries


def _retrying(draft: Draft, call: Call) -> Retrying:
    return call.retrying or draft.spec(call.function_id).limits.retrying


def _is_retried(draft: Draft, call: Call, error: ErrorInfo) -> bool:
    retry_on = _retrying(draft, call).retry_on
    return is_one_of(error, retry_on) if retry_on else not is_one_of(error, _IN_VAIN)


def is_drain(error: ErrorInfo | None) -> bool:
    """Says whether an admin's drain of a node ended it."""
    return error is not None and error.cause is Cause.PREEMPTED and error.type_name == DRAINED


def names_culprit(error: ErrorInfo) -> bool:
    """Says whether the error tells which rank died, and so that the call's attempt is over for certain."""
    return bool(error.signal or error.exit_code or any(r.culprit for r in error.ranks))


def user_tries(call: Call) -> int:
    """Returns how many of the user's retries the call has eaten."""
    return sum(count for cause, count in call.tries.items() if Cause(cause).eats_user_retries)


def _requeue(draft: Draft, call: Call, error: ErrorInfo, killed_gang: str, busy_ms: int) -> None:
    wait_ms = _wait_ms(draft, call, error)
    tells = draft.now.schema >= schemas.SPENT_SCHEMA
    draft.add(
        CallRequeued(
            call_id=call.id,
            cause=error.cause.value,
            reason=f"{_which(draft, call, error)} in {wait_ms / 1000:.1f} s after {summary(error)}",
            not_before_ms=draft.now.log_ms + wait_ms,
            killed_gang=killed_gang,
            busy_ms=busy_ms if tells else 0,
            credited=is_platforms(error) and tells,
            error=summary(error) if tells else "",
        )
    )


def is_platforms(error: ErrorInfo) -> bool:
    """Says whether what an attempt did is not to be paid: it was lost through no fault of the user's."""
    return error.cause is Cause.INFRASTRUCTURE or is_drain(error)


def _wait_ms(draft: Draft, call: Call, error: ErrorInfo) -> int:
    if error.cause is Cause.PREEMPTED:
        return 0
    if error.cause.eats_user_retries:
        return _retrying(draft, call).delay_ms(user_tries(call))
    return _PLATFORMS_OWN.delay_ms(call.tries.get(error.cause, 0))


def _which(draft: Draft, call: Call, error: ErrorInfo) -> str:
    """What waits: one of the user's retries, or another attempt that costs none of them."""
    if error.cause.eats_user_retries:
        return f"retry {user_tries(call) + 1} of {retries_of(draft, call)}"
    return "another attempt, which is no retry,"


def _poison(call: Call, error: ErrorInfo, killed_gang: str) -> ErrorInfo:
    gangs = ", ".join((*call.gangs_killed, killed_gang) if killed_gang else call.gangs_killed)
    return replace(
        error,
        cause=Cause.POISON,
        type_name="PoisonError",
        message=f"ended three gangs ({gangs}) and is not tried again; the last one: {summary(error)}",
    )


def stopped(draft: Draft, call: Call, *, busy_ms: int = 0) -> None:
    """Ends a call that was being ended: CANCELLED, or TIMED_OUT where that was for its deadline."""
    if call.overdue:
        _end_overdue(draft, call, "when it was running" if call.started_ms else "while it waited at its gang", busy_ms)
    else:
        draft.add(CallCancelled(call_id=call.id, wall_ms=draft.now.wall_ms, busy_ms=busy_ms))


def timed_out_waiting(draft: Draft, call: Call) -> None:
    """Ends a queued call at its deadline, saying what it waited for."""
    _end_overdue(draft, call, f"while it waited: {call.reason}" if call.reason else "while it waited")


def _end_overdue(draft: Draft, call: Call, when: str, busy_ms: int = 0) -> None:
    after_s = (call.deadline_ms - call.submitted_ms) / 1000
    message = f"did not end by its deadline, {after_s:g} s after it was submitted: that came {when}"
    error = ErrorInfo(cause=Cause.TIMEOUT, type_name="CallTimeoutError", message=message)
    draft.add(
        CallFailed(
            call_id=call.id,
            fence=call.fence,
            error=error,
            busy_ms=busy_ms,
            timed_out=True,
            wall_ms=draft.now.wall_ms,
        )
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
