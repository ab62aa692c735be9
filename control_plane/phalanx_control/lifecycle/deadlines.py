"""Deadlines: a call that has not ended by then ends TIMED_OUT, in whatever state it is, and says what it waited for.

queued, or waiting for a retry ── timed out at once
assigned, running ── overdue, shown as cancelling, until its ranks are gone; then timed out
"""

from __future__ import annotations

from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import CallTerms
from phalanx.core.states import CallState
from phalanx_control.lifecycle import failures, gangs
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, ordered
from phalanx_control.state.commands import Now

MAX_MS = 30 * 86_400_000


def check(terms: CallTerms) -> None:
    """Raises InvalidSpecError for a deadline that cannot be kept."""
    if terms.deadline_in_ms < 0 or terms.deadline_wall_ms < 0 or terms.deadline_in_ms > MAX_MS:
        raise InvalidSpecError(f"deadline={terms.deadline_in_ms / 1000:g} s: give up to 2,592,000 seconds (30 days)")


def deadline_ms(now: Now, terms: CallTerms) -> int:
    """Returns when, in log_ms, a call that is submitted now must have ended; 0: never."""
    if terms.deadline_wall_ms:
        return max(now.log_ms, now.log_ms + terms.deadline_wall_ms - now.wall_ms, 1)
    return now.log_ms + terms.deadline_in_ms if terms.deadline_in_ms else 0


def end_overdue(draft: Draft) -> None:
    """Ends every call whose deadline has come."""
    due: list[str] = []
    for at_ms, call_id in ordered.in_order(draft.state.deadlines):
        if at_ms > draft.now.log_ms:
            break
        due.append(call_id)
    for call_id in due:
        end_when_due(draft, call_id)


def end_when_due(draft: Draft, call_id: str) -> None:
    """Ends the call, or asks its agent to, where its deadline has come and nobody has cancelled it before."""
    call = draft.call(call_id)
    if not 0 < call.deadline_ms <= draft.now.log_ms or call.state.terminal or call.state is CallState.CANCELLING:
        return
    if call.state is CallState.QUEUED:
        failures.timed_out_waiting(draft, call)
        gangs.return_unneeded(draft, call)
    else:
        draft.add(events.CallOverdue(call_id=call_id))
