"""What agents say of calls: started, finished, refused, and direct ones that are over already.

    queued ── assigned(attempt, fence) ── running ── succeeded | failed | timed out
    queued ── cancelled        assigned, running ── cancelling ── cancelled

An agent's word counts only under the call's present gang, attempt and fence; anything else is kept as evidence and
changes nothing. Terminal states are final, so the same report twice is the same as once.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from phalanx.core.errors import TIME_PASSED
from phalanx.core.messages import CallFinished, CallRefused, CallStarted, DirectCalls, DirectReport, ErrorInfo
from phalanx.core.states import CallState, Cause, Outcome
from phalanx_control.lifecycle import failures, gangs
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, queries, schemas
from phalanx_control.state.commands import AgentSaid
from phalanx_control.state.model import BodyRef, Call, Gang, Node, Owner

REFUSED_WAIT_MS = 250
_DEBUG_SCHEMA = schemas.SINCE[events.CallDebugged]
_WITH_GANG = frozenset({CallState.ASSIGNED, CallState.RUNNING, CallState.CANCELLING})


def started(draft: Draft, node_id: str, message: CallStarted) -> None:
    """A call runs; of a direct one this is the first word."""
    known = draft.state.calls.get(message.call_id)
    if message.direct and (known is None or _is_same_before_it_began(known, message)):
        _direct_started(draft, node_id, message, known)
        return
    call = _current(draft, node_id, message)
    if call is not None and call.state is CallState.ASSIGNED:
        draft.add(events.CallRan(call_id=call.id, attempt=call.attempt, fence=call.fence, wall_ms=draft.now.wall_ms))


def _is_same_before_it_began(known: Call, message: CallStarted) -> bool:
    """A direct call whose caller lost patience and submitted it as well, before the report of its start came."""
    return known.state is CallState.QUEUED and known.attempt == 0 and message.attempt == 1


def _direct_started(draft: Draft, node_id: str, message: CallStarted, known: Call | None) -> None:
    gang = draft.gang(message.gang_id)
    if gang is None or gang.lead != node_id or gang.state.terminal:
        _stale(draft, node_id, message)
        return
    if known is not None and not _may_adopt(known, gang):
        _stale(draft, node_id, message)
        return
    call = known or _direct_call(draft, gang, message)
    call = structs.replace(call, direct=True, gang_id=gang.id, placement=gang.placement, reason="")
    draft.add(
        events.CallRan(
            call_id=call.id, attempt=message.attempt, fence=message.fence, wall_ms=draft.now.wall_ms, call=call
        )
    )


def _may_adopt(known: Call, gang: Gang) -> bool:
    return known.function_id == gang.function_id and known.owner.workspace == gang.owner.workspace


def _direct_call(draft: Draft, gang: Gang, message: CallStarted) -> Call:
    return Call(
        id=message.call_id,
        function_id=gang.function_id,
        owner=Owner(workspace=gang.owner.workspace, user=message.user or gang.owner.user),
        args=BodyRef(size=message.args_bytes),
        timeout_ms=message.timeout_ms,
        submitted_ms=draft.now.log_ms,
        submitted_wall_ms=draft.now.wall_ms,
    )


def finished(draft: Draft, said: AgentSaid, message: CallFinished) -> None:
    """An attempt ended. Success is stored once; anything else is judged by its cause."""
    call = _current(draft, said.node_id, message)
    if call is None or call.state.terminal:
        return
    if message.debug_ms > 0 and draft.now.schema >= _DEBUG_SCHEMA:
        draft.add(events.CallDebugged(call_id=call.id, ms=message.debug_ms))
    if call.state is CallState.CANCELLING:
        failures.stopped(draft, call, busy_ms=message.busy_ms)
    elif message.outcome is Outcome.SUCCEEDED:
        draft.add(
            events.CallSucceeded(
                call_id=call.id,
                fence=call.fence,
                result=said.result,
                busy_ms=message.busy_ms,
                wall_ms=draft.now.wall_ms,
            )
        )
    elif message.outcome is Outcome.CANCELLED:
        _cancelled_by_agent(draft, call, message)
    else:
        _failed(draft, call, said, message)
        _hold(draft, call)
    _end_used_up(draft, call)


def _hold(draft: Draft, call: Call) -> None:
    """Its gang takes no calls any more while its agents keep it for people; not where the call is tried again."""
    gang = draft.gang(call.gang_id)
    if gang is None or gang.state not in queries.WARM or not draft.spec(call.function_id).limits.hold_on_failure_s:
        return
    over = draft.call(call.id).state.terminal
    gangs.drain(draft, gang.id, f"call {call.id} {'failed' if over else 'is tried again'}", calls_finish=over)


def _end_used_up(draft: Draft, call: Call) -> None:
    """A gang that was made for one call does not get another."""
    gang = draft.gang(call.gang_id)
    if gang is not None and gang.state in queries.WARM and draft.spec(call.function_id).fresh:
        gangs.drain(draft, gang.id, "reuse=False: each call gets a gang of its own", calls_finish=True)


def _cancelled_by_agent(draft: Draft, call: Call, message: CallFinished) -> None:
    """The caller cancelled a direct call itself; a durable one was dropped because its gang is being ended."""
    gang = draft.gang(call.gang_id)
    if call.direct or gang is None or not gang.stop_reason:
        draft.add(events.CallCancelled(call_id=call.id, wall_ms=draft.now.wall_ms, busy_ms=message.busy_ms))
        return
    error = gang.error or failures.infrastructure(gang.stop_reason)
    failures.attempt_failed(draft, call, error, busy_ms=message.busy_ms)


def _failed(draft: Draft, call: Call, said: AgentSaid, message: CallFinished) -> None:
    error, gang = message.error, draft.gang(call.gang_id)
    if gang is not None and gang.error is not None and gang.error.cause is Cause.PREEMPTED:
        error = gang.error  # whatever its ranks raised: it was told to end
    elif message.outcome is Outcome.TIMED_OUT:
        error = timeout_error(call, error)
    elif error.cause is Cause.CANCELLED:
        error = replace(error, cause=Cause.USER_EXCEPTION)
    rank_died = bool(error.signal or error.exit_code)
    failures.attempt_failed(
        draft,
        call,
        error,
        error_body=said.error_body,
        busy_ms=message.busy_ms,
        killed_gang=call.gang_id if rank_died else "",
    )


def timeout_error(call: Call, error: ErrorInfo | None = None) -> ErrorInfo:
    """Returns the error of a call that ran out of time, keeping what was reported of it. Where nobody reported another
    limit than its own, that one is named."""
    known = error or ErrorInfo()
    says_more = known.cause is Cause.TIMEOUT and not known.message.startswith(TIME_PASSED)
    limit = f"ran longer than its timeout of {call.timeout_ms / 1000:g} s"
    message = known.message if known.message and (says_more or not call.timeout_ms) else limit
    return replace(known, cause=Cause.TIMEOUT, type_name="CallTimeoutError", message=message)


def refused(draft: Draft, node_id: str, message: CallRefused) -> None:
    """The gang could not take an offer: nothing ran, and the call waits again."""
    call = _current(draft, node_id, message)
    if call is None or call.state.terminal:
        return
    if call.state is CallState.CANCELLING:
        failures.stopped(draft, call)
    elif not call.direct:
        draft.add(
            events.CallRequeued(
                call_id=call.id,
                reason=f"its gang did not take it: {message.reason or 'no reason given'}",
                not_before_ms=draft.now.log_ms + REFUSED_WAIT_MS,
            )
        )


DIRECT_REPORT_SCHEMA = 2


def direct_report(draft: Draft, said: AgentSaid, message: DirectReport) -> None:
    """Direct calls that were over before they were worth a message each. A report that comes again counts once."""
    node = draft.state.nodes.get(said.node_id)
    if node is None or (said.seq and _was_taken(node, said)):
        return
    for calls in message.calls:
        found = gangs.current_member(draft, said.node_id, calls.gang_id, calls.fence, "DirectReport")
        if found is not None and (calls.succeeded or calls.failed):
            _count_direct(draft, found[0], calls)
    if said.seq and draft.now.schema >= DIRECT_REPORT_SCHEMA:
        draft.add(events.DirectReportTaken(node_id=said.node_id, agent_epoch=said.agent_epoch, seq=said.seq))


def _was_taken(node: Node, said: AgentSaid) -> bool:
    """Numbers begin anew with each agent process; of one that is over nothing more is counted."""
    if said.agent_epoch != node.info.agent_epoch:
        return True
    return said.agent_epoch == node.direct_epoch and said.seq <= node.direct_seq


def _count_direct(draft: Draft, gang: Gang, calls: DirectCalls) -> None:
    draft.add(
        events.DirectCallsCounted(
            gang_id=gang.id,
            function_id=gang.function_id,
            user=calls.user,
            succeeded=calls.succeeded,
            failed=calls.failed,
            busy_ms=calls.busy_ms,
            call_ids=calls.call_ids,
        )
    )


def _current(draft: Draft, node_id: str, message: CallStarted | CallFinished | CallRefused) -> Call | None:
    """Returns the call that a message speaks of; records one that speaks of another attempt as stale."""
    call = draft.state.calls.get(message.call_id)
    if call is not None and (call.attempt, call.fence, call.gang_id) == (
        message.attempt,
        message.fence,
        message.gang_id,
    ):
        gang = draft.gang(call.gang_id)
        from_lead = gang is None or gang.lead == node_id
        if from_lead and (call.state in _WITH_GANG or call.state.terminal):
            return call
    _stale(draft, node_id, message)
    return None


def _stale(draft: Draft, node_id: str, message: CallStarted | CallFinished | CallRefused) -> None:
    draft.add(
        events.StaleRefused(node_id=node_id, what=type(message).__name__, subject=message.call_id, fence=message.fence)
    )
