"""The part of the fold that moves calls, and keeps queue, lines, ended and gangs' lists of calls in step with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from immutables import Map
from msgspec.structs import replace

from phalanx.core.states import CallState, GangState
from phalanx.core.webhooks import receiver_of
from phalanx_control.state import events, ordered, untold
from phalanx_control.state.amounts import standing_of
from phalanx_control.state.model import Call, Delivery, FunctionStats, Gang, Spent, State, WebhookKey
from phalanx_control.state.touched import touch


def _call_accepted(state: State, event: events.CallAccepted, _: int) -> State:
    call = event.call
    if call.deadline_ms:
        state = replace(state, deadlines=ordered.insert(state.deadlines, (call.deadline_ms, call.id)))
    return _enqueue(_enter_child(_count_logged(state, call), call), call)


def _call_waits(state: State, event: events.CallWaits, _: int) -> State:
    return _put(state, replace(state.calls[event.call_id], reason=event.reason))


def _call_assigned(state: State, event: events.CallAssigned, log_ms: int) -> State:
    call = state.calls[event.call_id]
    state = _join_gang(_dequeue(state, call), event.gang_id, call.id, log_ms)
    return _put(
        state,
        replace(
            call,
            state=CallState.ASSIGNED,
            gang_id=event.gang_id,
            attempt=event.attempt,
            fence=event.fence,
            placement=event.placement,
            assigned_ms=log_ms,
            started_ms=0,
            started_wall_ms=0,
            reason="",
        ),
    )


def _call_ran(state: State, event: events.CallRan, log_ms: int) -> State:
    known = state.calls.get(event.call_id)
    call = event.call or known
    assert call is not None
    if known is None:
        state = _enter_child(_count_logged(state, call), call)
    elif known.state is CallState.QUEUED:
        state = _dequeue(state, known)
    state = _join_gang(state, call.gang_id, call.id, log_ms)
    return _put(
        state,
        replace(
            call,
            state=CallState.RUNNING,
            attempt=event.attempt,
            fence=event.fence,
            started_ms=log_ms,
            started_wall_ms=event.wall_ms,
        ),
    )


def _call_requeued(state: State, event: events.CallRequeued, log_ms: int) -> State:
    call = state.calls[event.call_id]
    state = _leave_gang(state, call, log_ms)
    nothing_ran = not event.cause and call.state is CallState.ASSIGNED
    tries = dict(call.tries)
    if event.cause:
        tries[event.cause] = tries.get(event.cause, 0) + 1
    spent = call.spent
    if event.busy_ms or event.error:
        attempt = Spent(
            gang_id=call.gang_id,
            busy_ms=event.busy_ms,
            credited=event.credited,
            attempt=call.attempt,
            error=event.error,
        )
        spent = (*spent, attempt)
    call = replace(
        call,
        state=CallState.QUEUED,
        gang_id="",
        spent=spent,
        attempt=call.attempt - 1 if nothing_ran else call.attempt,
        tries=tries,
        reason=event.reason,
        not_before_ms=event.not_before_ms,
        gangs_killed=(*call.gangs_killed, event.killed_gang) if event.killed_gang else call.gangs_killed,
        placement="",
    )
    return _put(state, call) if call.id in state.queue else _enqueue(state, call)


def _call_succeeded(state: State, event: events.CallSucceeded, log_ms: int) -> State:
    call = replace(state.calls[event.call_id], result=event.result)
    return _end(state, _ran(call, event.busy_ms, log_ms, event.wall_ms), CallState.SUCCEEDED, log_ms, event.wall_ms)


def _call_failed(state: State, event: events.CallFailed, log_ms: int) -> State:
    to = CallState.TIMED_OUT if event.timed_out else CallState.FAILED
    call = replace(
        state.calls[event.call_id], error=event.error, error_body=event.error_body, reason=event.error.message
    )
    return _end(state, _ran(call, event.busy_ms, log_ms, event.wall_ms), to, log_ms, event.wall_ms)


def _call_debugged(state: State, event: events.CallDebugged, _: int) -> State:
    call = state.calls[event.call_id]
    return _put(state, replace(call, debug_ms=call.debug_ms + event.ms))


def _call_cancelling(state: State, event: events.CallCancelling, log_ms: int) -> State:
    call = state.calls[event.call_id]
    return _put(state, replace(call, state=CallState.CANCELLING, cancelled_by=event.by, cancelling_ms=log_ms))


def _call_overdue(state: State, event: events.CallOverdue, log_ms: int) -> State:
    call = state.calls[event.call_id]
    return _put(state, replace(call, state=CallState.CANCELLING, overdue=True, cancelling_ms=log_ms))


def _key_taken(state: State, event: events.KeyTaken, _: int) -> State:
    state = _without_key(state, event.name)
    line = ordered.insert(state.keys_line, (event.use.until_ms, event.name))
    return replace(state, keys=state.keys.set(event.name, event.use), keys_line=line)


def _keys_forgotten(state: State, event: events.KeysForgotten, _: int) -> State:
    for name in event.names:
        state = _without_key(state, name)
    return state


def _without_key(state: State, name: str) -> State:
    use = state.keys.get(name)
    if use is None:
        return state
    line = ordered.remove(state.keys_line, (use.until_ms, name))
    return replace(state, keys=state.keys.delete(name), keys_line=line)


def _call_cancelled(state: State, event: events.CallCancelled, log_ms: int) -> State:
    call = _ran(state.calls[event.call_id], event.busy_ms, log_ms, event.wall_ms)
    by = f" by {call.cancelled_by}" if call.cancelled_by else ""
    return _end(state, replace(call, reason=f"cancelled{by}"), CallState.CANCELLED, log_ms, event.wall_ms)


def _webhooks_tried(state: State, event: events.WebhooksTried, _: int) -> State:
    for each in event.tries:
        call = state.calls[each.call_id]
        assert call.delivery is not None
        delivery = Delivery(
            attempts=call.delivery.attempts + 1,
            status=each.status,
            error=each.error,
            over=each.over,
            next_wall_ms=each.next_wall_ms,
        )
        told = replace(call, delivery=delivery)
        state = _put(_enter_untold(_leave_untold(state, call), told), told)
    return state


def _webhook_secret_rotated(state: State, event: events.WebhookSecretRotated, _: int) -> State:
    key = WebhookKey(version=event.version, rotated_wall_ms=event.wall_ms)
    return replace(state, webhook_keys=state.webhook_keys.set(event.workspace, key))


def _calls_archived(state: State, event: events.CallsArchived, _: int) -> State:
    calls, ended, line = state.calls, state.ended, state.ended_line
    for call_id in event.call_ids:
        state = _leave_parent(state, calls[call_id])
        state = _leave_untold(state, calls[call_id])
        line = ordered.remove(line, (ended[call_id], call_id))
        calls = calls.delete(call_id)
        ended = ended.delete(call_id)
    return replace(state, calls=calls, ended=ended, ended_line=line)


# ---- the indexes ----


def _enter_child(state: State, call: Call) -> State:
    if not call.parent:
        return state
    line = ordered.insert(state.children.get(call.parent), (call.submitted_ms, call.id))
    return replace(state, children=state.children.set(call.parent, line))


def _leave_parent(state: State, call: Call) -> State:
    if not call.parent:
        return state
    line = ordered.remove(state.children[call.parent], (call.submitted_ms, call.id))
    left = state.children.delete(call.parent) if line is None else state.children.set(call.parent, line)
    return replace(state, children=left)


def _enter_untold(state: State, call: Call) -> State:
    if call.delivery is None or call.delivery.over:
        return state
    key = (call.delivery.next_wall_ms, call.id)
    return replace(state, untold=untold.insert(state.untold, receiver_of(call.webhook), key))


def _leave_untold(state: State, call: Call) -> State:
    if call.delivery is None or call.delivery.over:
        return state
    key = (call.delivery.next_wall_ms, call.id)
    return replace(state, untold=untold.remove(state.untold, receiver_of(call.webhook), key))


def _put(state: State, call: Call) -> State:
    return replace(state, calls=state.calls.set(call.id, call))


def _enqueue(state: State, call: Call) -> State:
    standing_ms = standing_of(state, call)
    users = state.lines.get(call.function_id, Map[str, ordered.Tree]())
    line = ordered.insert(users.get(call.owner.user), (standing_ms, call.id))
    return replace(
        state,
        calls=state.calls.set(call.id, call),
        queue=state.queue.set(call.id, standing_ms),
        lines=state.lines.set(call.function_id, users.set(call.owner.user, line)),
    )


def _dequeue(state: State, call: Call) -> State:
    users = state.lines[call.function_id]
    line = ordered.remove(users[call.owner.user], (state.queue[call.id], call.id))
    users = users.delete(call.owner.user) if line is None else users.set(call.owner.user, line)
    lines = state.lines.set(call.function_id, users) if users else state.lines.delete(call.function_id)
    return replace(state, queue=state.queue.delete(call.id), lines=lines)


def _end(state: State, call: Call, to: CallState, log_ms: int, wall_ms: int) -> State:
    state = _dequeue(state, call) if call.id in state.queue else _leave_gang(state, call, log_ms)
    if call.deadline_ms:
        state = replace(state, deadlines=ordered.remove(state.deadlines, (call.deadline_ms, call.id)))
    call = replace(call, state=to, ended_ms=log_ms, ended_wall_ms=wall_ms)
    if call.webhook:
        call = replace(call, delivery=Delivery(next_wall_ms=wall_ms))
        state = _enter_untold(state, call)
    return replace(
        state,
        calls=state.calls.set(call.id, call),
        ended=state.ended.set(call.id, log_ms),
        ended_line=ordered.insert(state.ended_line, (log_ms, call.id)),
    )


def _ran(call: Call, busy_ms: int, log_ms: int, wall_ms: int) -> Call:
    """Fills in when it started where it ended before its start was worth a message."""
    if call.started_ms or not busy_ms:
        return replace(call, busy_ms=busy_ms)
    return replace(
        call,
        busy_ms=busy_ms,
        started_ms=max(call.assigned_ms, log_ms - busy_ms),
        started_wall_ms=max(call.submitted_wall_ms, wall_ms - busy_ms),
    )


def _join_gang(state: State, gang_id: str, call_id: str, log_ms: int) -> State:
    gang = state.gangs[gang_id]
    if call_id in gang.calls:
        return state
    busy = gang.state is GangState.READY
    gang = replace(
        gang,
        calls=(*gang.calls, call_id),
        state=GangState.BUSY if busy else gang.state,
        state_since_ms=log_ms if busy else gang.state_since_ms,
    )
    return put_gang(state, gang)


def _leave_gang(state: State, call: Call, log_ms: int) -> State:
    gang = state.gangs.get(call.gang_id)
    if gang is None or call.id not in gang.calls:
        return state
    calls = tuple(c for c in gang.calls if c != call.id)
    idle = not calls and gang.state is GangState.BUSY
    gang = replace(
        gang,
        calls=calls,
        last_call=call.id,
        state=GangState.READY if idle else gang.state,
        state_since_ms=log_ms if idle else gang.state_since_ms,
    )
    return put_gang(state, gang)


def put_gang(state: State, gang: Gang) -> State:
    """Writes a gang's record, new or changed."""
    return replace(state, gangs=state.gangs.set(gang.id, gang), touched=touch(state.touched, gang.id))


def _count_logged(state: State, call: Call) -> State:
    old = state.stats.get(call.function_id, FunctionStats())
    return replace(state, stats=state.stats.set(call.function_id, replace(old, logged=old.logged + 1)))


STEPS: dict[type, Callable[[State, Any, int], State]] = {
    events.CallAccepted: _call_accepted,
    events.CallWaits: _call_waits,
    events.CallAssigned: _call_assigned,
    events.CallRan: _call_ran,
    events.CallRequeued: _call_requeued,
    events.CallSucceeded: _call_succeeded,
    events.CallFailed: _call_failed,
    events.CallCancelling: _call_cancelling,
    events.CallOverdue: _call_overdue,
    events.KeyTaken: _key_taken,
    events.KeysForgotten: _keys_forgotten,
    events.CallCancelled: _call_cancelled,
    events.CallDebugged: _call_debugged,
    events.WebhooksTried: _webhooks_tried,
    events.WebhookSecretRotated: _webhook_secret_rotated,
    events.CallsArchived: _calls_archived,
}
