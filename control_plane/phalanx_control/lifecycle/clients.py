"""What clients ask about calls: submit one, cancel one. Both may be asked again, and in every state.

queued, or waiting for a retry ── cancelled at once, with the gang that was being made for it alone
assigned, running ── cancelling, until the agent says that its ranks are gone
over ── nothing happens
"""

from __future__ import annotations

from phalanx.core.errors import CallCancelledError, InvalidSpecError, NotFoundError, VersionError
from phalanx.core.ids import id_raw
from phalanx.core.messages import CallTerms
from phalanx.core.spec import check_retries
from phalanx.core.states import CallState
from phalanx_control.lifecycle import deadlines, gangs, keys, webhooks
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.scheduler.accounts import ensure_allowed
from phalanx_control.scheduler.capacity import ensure_possible
from phalanx_control.state import events, queries, schemas
from phalanx_control.state.commands import Cancel, Submit
from phalanx_control.state.model import Call, Function

_CANCELLED = frozenset({CallState.CANCELLING, CallState.CANCELLED})


def submit(draft: Draft, command: Submit) -> None:
    """Accepts a call. The same id again is the same call.

    Raises InvalidSpecError for an id that is another call's, NotFoundError for an unknown function, UnschedulableError
    for one that no set of nodes could ever run, CallCancelledError where the call that makes it is being cancelled.
    With an idempotency key that is in use nothing is accepted: `keys` says which call it stands for, or refuses.
    """
    known = draft.state.calls.get(command.call_id)
    if known is not None:
        _ensure_same(known, command)
        return
    function = queries.function_of(draft.state, command.function_id, command.owner.workspace)
    if function is None:
        raise NotFoundError(
            f"no function {command.function_id} in workspace {command.owner.workspace}: register it, then submit again"
        )
    _check_id(command.call_id)
    _check_parent(draft, command)
    _check_terms(draft, command.terms)
    if keys.is_in_use(draft, function, command):
        return
    ensure_possible(draft.state, function.spec)
    ensure_allowed(draft.state, function.spec, command.owner)
    call = _new_call(draft, function, command)
    draft.add(events.CallAccepted(call=call))
    keys.take(draft, function, command)
    if call.deadline_ms:
        deadlines.end_when_due(draft, call.id)


def _new_call(draft: Draft, function: Function, command: Submit) -> Call:
    terms = command.terms
    webhook = terms.webhook or function.spec.webhook
    return Call(
        id=command.call_id,
        function_id=function.id,
        owner=command.owner,
        args=command.args,
        timeout_ms=command.timeout_ms or round(function.spec.limits.timeout_s * 1000),
        reason="waits its turn" if draft.state.nodes else "waits for a first node to join",
        submitted_ms=draft.now.log_ms,
        submitted_wall_ms=draft.now.wall_ms,
        parent=command.parent if draft.now.schema >= schemas.PARENT_SCHEMA else "",
        retries=terms.retries if terms.own_retries else None,
        retrying=terms.retrying if terms.own_retries else None,
        deadline_ms=deadlines.deadline_ms(draft.now, terms),
        key=terms.idempotency_key,
        webhook=webhook,
        map_id=terms.map_id if webhook else "",
    )


def _check_terms(draft: Draft, terms: CallTerms) -> None:
    """Raises VersionError where an older replica, which might lead next, would not keep to them."""
    if terms == CallTerms():
        return
    if draft.now.schema < schemas.TERMS_SCHEMA:
        raise VersionError(
            "an older replica of this cell knows no retries, deadline or idempotency_key of a call's own",
            hint="upgrade all replicas first",
        )
    check_retries(terms.retries)
    deadlines.check(terms)
    keys.check(terms.idempotency_key)
    webhooks.check(draft, terms)


def _check_parent(draft: Draft, command: Submit) -> None:
    """A call that ends must not go on making new ones. One that is not known here may be a young direct call."""
    if command.parent:
        _check_id(command.parent)
    parent = draft.state.calls.get(command.parent)
    if parent is not None and parent.owner.workspace == command.owner.workspace and parent.state in _CANCELLED:
        raise CallCancelledError(
            f"call {parent.id}, from inside which it was made, is cancelled", call_id=command.call_id
        )


def _ensure_same(known: Call, command: Submit) -> None:
    if known.owner.workspace != command.owner.workspace or known.function_id != command.function_id:
        raise InvalidSpecError(
            f"call id {command.call_id} belongs to another call: make a new id for every call, and repeat it only "
            f"to ask for the same call again"
        )


def _check_id(call_id: str) -> None:
    try:
        id_raw(call_id)
    except ValueError:
        raise InvalidSpecError(f"call id {call_id[:60]!r} is not one: use phalanx.core.ids.new_call_id()") from None


def cancel(draft: Draft, command: Cancel) -> None:
    """Cancels at once what has not begun, asks the agent to otherwise, and so for every call made from inside it.

    Of a call that failed it releases the gang, where that is held. Idempotent in every state.

    Raises NotFoundError for a call that does not exist in the caller's workspace.
    """
    call = draft.state.calls.get(command.call_id)
    if call is None or call.owner.workspace != command.owner.workspace:
        raise NotFoundError(f"no call {command.call_id} in workspace {command.owner.workspace}")
    held = queries.held_gang(draft.state, call)
    if held is not None:
        gangs.drain(draft, held.id, f"released by {command.owner.user}")
    if call.state.terminal or call.state is CallState.CANCELLING:
        return
    for each in queries.with_descendants(draft.state, call):
        _cancel_one(draft, each, command.owner.user)


def _cancel_one(draft: Draft, call: Call, by: str) -> None:
    if call.state.terminal or call.state is CallState.CANCELLING:
        return
    draft.add(events.CallCancelling(call_id=call.id, by=by))
    if call.state is CallState.QUEUED:
        draft.add(events.CallCancelled(call_id=call.id, wall_ms=draft.now.wall_ms))
        gangs.return_unneeded(draft, call)
