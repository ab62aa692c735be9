"""A gang's life, all or nothing: prepared, started, ready, drained, released.

    reserved ── lead prepared ── others prepared ── all: starting ── ready from all: ready
        any error, timeout, silence or idleness: draining ── ended by all, or written off: released

No rank starts before every member is prepared, and none is used before every member is ready.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.errors import GangStartError
from phalanx.core.messages import ErrorInfo, MemberEnded, MemberPrepared, MemberReady
from phalanx.core.states import CallState, Cause, GangState, GpuState, NodeState
from phalanx.core.topology.equipment import MAX_SHOWN_CHARS
from phalanx_control.lifecycle import failures, lemons, meter
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, queries, schemas
from phalanx_control.state.model import Call, Gang, MemberState

_FORMING = frozenset({GangState.RESERVED, GangState.PREPARING})
_HEADS_TRIED = 16
_EQUIPMENT_SCHEMA = schemas.SINCE[events.RanksEquipped]
PREFETCH = 2
"""Logged calls that a gang holds at most: one that runs, and one so that it never waits for the log."""


def member_prepared(draft: Draft, node_id: str, message: MemberPrepared) -> None:
    """One node is ready to start its ranks, or says why it cannot."""
    found = current_member(draft, node_id, message.gang_id, message.fence, "MemberPrepared")
    if found is None:
        return
    gang, member = found
    if gang.state not in _FORMING or member.prepared:
        return
    if message.error:
        said = f"{node_id} could not prepare: {message.error}"
        error = replace(failures.infrastructure(said, node_id=node_id), type_name=GangStartError.__name__)
        drain(draft, gang.id, error.message, error=error)
        return
    draft.add(events.MemberWasPrepared(gang_id=gang.id, node_id=node_id, rendezvous=message.rendezvous))
    gang = draft.state.gangs[gang.id]
    if all(m.prepared for m in gang.members):
        draft.add(events.GangStarting(gang_id=gang.id))


def member_ready(draft: Draft, node_id: str, message: MemberReady) -> None:
    """One node's ranks are inside the process group; with the last one the gang takes its first call."""
    found = current_member(draft, node_id, message.gang_id, message.fence, "MemberReady")
    if found is None:
        return
    gang, member = found
    if gang.state is not GangState.STARTING or member.ready:
        return
    draft.add(events.MemberWasReady(gang_id=gang.id, node_id=node_id, pids=message.pids, backend=message.backend))
    if 0 < len(message.equipment) <= MAX_SHOWN_CHARS and draft.now.schema >= _EQUIPMENT_SCHEMA:
        draft.add(events.RanksEquipped(gang_id=gang.id, node_id=node_id, equipment=message.equipment))
    gang = draft.state.gangs[gang.id]
    if all(m.ready for m in gang.members):
        draft.add(events.GangReady(gang_id=gang.id))
        call = next_waiting(draft, gang)
        if call is not None:
            assign(draft, call, gang)


def next_waiting(draft: Draft, gang: Gang) -> Call | None:
    """Returns the queued call that stands first of those that the new gang may run now: none that may run longer than
    the one that it was started for, which may have passed others by being short.
    """
    own = draft.state.calls.get(gang.for_call)
    own = own if own is not None and own.state is CallState.QUEUED else None
    most_ms = own.timeout_ms if own is not None else 0
    first = queries.first_waiting(draft.state, gang.function_id, limit=_HEADS_TRIED)
    calls = [draft.state.calls[call_id] for _, call_id in first]
    for call in (*calls, own) if own is not None else calls:
        is_short = not most_ms or 0 < call.timeout_ms <= most_ms
        if is_short and call.not_before_ms <= draft.now.log_ms and call.owner.workspace == gang.owner.workspace:
            return call
    return None


def assign(draft: Draft, call: Call, gang: Gang) -> None:
    """Begins the next attempt of a queued call, under a new fence."""
    draft.add(
        events.CallAssigned(
            call_id=call.id,
            gang_id=gang.id,
            attempt=call.attempt + 1,
            fence=call.fence + 1,
            placement=gang.placement,
        )
    )


def member_ended(draft: Draft, node_id: str, message: MemberEnded) -> None:
    """One node's ranks are gone. The first to say so, unasked, ends the whole gang."""
    found = current_member(draft, node_id, message.gang_id, message.fence, "MemberEnded")
    if found is None:
        return
    gang, member = found
    if member.ended:
        return
    meter.count(draft, gang, node_id, message.counters)
    error = _reported_error(node_id, message)
    if gang.state in queries.STARTING:
        error = error or failures.infrastructure(f"ranks on {node_id} ended before they were ready", node_id=node_id)
    if gang.state in queries.STARTING | queries.WARM:
        drain(draft, gang.id, failures.summary(error) if error else f"ended on {node_id}", error=error)
    elif error is not None and gang.state is GangState.DRAINING and _says_more(gang.error, error):
        drain(draft, gang.id, failures.summary(error), error=error)
    for gpu in message.quarantined:
        state = gpu.state if gpu.state in (GpuState.EXTERNAL, GpuState.DOWN) else GpuState.QUARANTINED
        draft.add(events.GpuMarked(node_id=node_id, gpu=gpu.uuid, state=state, reason=gpu.reason))
    end_member(draft, gang.id, node_id)


def _reported_error(node_id: str, message: MemberEnded) -> ErrorInfo | None:
    error = message.error
    if message.clean and not error.message and not error.type_name:
        return None
    if not error.message and not error.type_name:
        return failures.infrastructure(f"ranks on {node_id} ended without a reason", node_id=node_id)
    return replace(error, pickled=b"", node_id=error.node_id or node_id)


def _says_more(known: ErrorInfo | None, new: ErrorInfo) -> bool:
    """Says whether ``new`` names a culprit where what is known names none."""
    return known is not None and failures.names_culprit(new) and not failures.names_culprit(known)


def drain(
    draft: Draft, gang_id: str, reason: str, *, error: ErrorInfo | None = None, calls_finish: bool = False
) -> None:
    """Begins a gang's end. A user's error while it starts ends the call that waits for it at once."""
    gang = draft.state.gangs[gang_id]
    draft.add(events.GangDraining(gang_id=gang_id, reason=reason, error=error, drain=calls_finish))
    if error is not None and gang.state in queries.STARTING and error.cause.eats_user_retries:
        call = draft.state.calls.get(gang.for_call)
        if call is not None and call.state is CallState.QUEUED:
            failures.attempt_failed(draft, call, error)


def return_unneeded(draft: Draft, call: Call) -> None:
    """Gives back the GPUs that were being made ready for a call that is over, unless another call waits for them."""
    if queries.waiting_of(draft.state, call.function_id):
        return
    for gang in queries.gangs_of(draft.state, call.function_id):
        if gang.for_call == call.id and gang.state in queries.STARTING:
            drain(draft, gang.id, f"call {call.id} {draft.call(call.id).state.value.replace('_', ' ')}")


def end_member(draft: Draft, gang_id: str, node_id: str, *, gone: frozenset[str] = frozenset()) -> None:
    """Closes one node's part, and the gang when it was the last."""
    draft.add(events.MemberHasEnded(gang_id=gang_id, node_id=node_id))
    release_when_over(draft, gang_id, gone=gone)


def release_when_over(draft: Draft, gang_id: str, *, gone: frozenset[str] = frozenset()) -> None:
    """Releases a draining gang when each member has ended, or is on a node that is LOST or in ``gone``."""
    gang = draft.gang(gang_id)
    if gang is None or gang.state is not GangState.DRAINING:
        return
    missing = [m for m in gang.members if not m.ended]
    if any(m.member.node_id not in gone and not _lost(draft, m) for m in missing):
        return
    lemons.note_death(draft, gang, _running(draft, gang) or gang.last_call or gang.for_call)
    _settle_calls(draft, gang)
    meter.close(draft, gang)
    draft.add(events.GangReleased(gang_id=gang_id, lost=bool(missing), wall_ms=draft.now.wall_ms))


def _lost(draft: Draft, member: MemberState) -> bool:
    node = draft.state.nodes.get(member.member.node_id)
    return node is None or node.state is NodeState.LOST


def _settle_calls(draft: Draft, gang: Gang) -> None:
    """Ends or requeues what a gang leaves behind. It ran one call at a time: only that one is held against it.

    Of a lost lead it is not known how far it came: what may not run twice is not run again.
    """
    error = _error_of_others(gang)
    running = _running(draft, gang)
    lead_lost = not gang.members[0].ended
    for call in (draft.call(call_id) for call_id in gang.calls):
        if call.state is CallState.CANCELLING:
            failures.stopped(draft, call)
        elif call.direct:
            _settle_direct(draft, call, error)
        elif call.id == running:
            killed = "" if error.cause is Cause.PREEMPTED else gang.id
            failures.attempt_failed(draft, call, error, busy_ms=_ran_ms(draft, call), killed_gang=killed)
        elif lead_lost and not failures.runs_again(draft, call):
            failures.attempt_failed(draft, call, error)
        else:
            draft.add(events.CallRequeued(call_id=call.id, reason="its gang ended before it began"))
    _settle_waiting(draft, gang)


def _ran_ms(draft: Draft, call: Call) -> int:
    """How long a call ran whose end nobody has told; the lease's counters bound what is charged for it."""
    return max(0, draft.now.log_ms - call.started_ms) if call.state is CallState.RUNNING else 0


def _error_of_others(gang: Gang) -> ErrorInfo:
    """What ended a gang, for the calls that have no outcome of their own: the cancelled one has."""
    if gang.error is None:
        return failures.infrastructure(gang.stop_reason or "its gang ended")
    if gang.error.cause in (Cause.CANCELLED, Cause.TIMEOUT):
        return failures.infrastructure(f"its gang was ended with another call: {failures.summary(gang.error)}")
    return gang.error


def _running(draft: Draft, gang: Gang) -> str:
    """Returns the call that the gang was running.

    A lead that still speaks reports the end of the call it ran; where it was lost, the first call given to it may have
    begun without a word.
    """
    running = next((c for c in gang.calls if draft.call(c).state is CallState.RUNNING), "")
    if running or not gang.calls or gang.members[0].ended:
        return running
    return gang.calls[0]


def _settle_direct(draft: Draft, call: Call, error: ErrorInfo) -> None:
    if error.cause is Cause.INFRASTRUCTURE and not failures.names_culprit(error):
        error = failures.outcome_unknown(call, error)
    failures.attempt_failed(draft, call, error, busy_ms=_ran_ms(draft, call))


def _settle_waiting(draft: Draft, gang: Gang) -> None:
    """The call that a gang was made for, where the gang never came up through no fault of the user's."""
    call = draft.state.calls.get(gang.for_call)
    if call is None or call.state is not CallState.QUEUED or gang.error is None or was_ready(gang):
        return
    if not gang.error.cause.eats_user_retries:
        failures.attempt_failed(draft, call, gang.error)


def was_ready(gang: Gang) -> bool:
    """Says whether every rank was inside the process group once."""
    return all(m.ready for m in gang.members)


def current_member(draft: Draft, node_id: str, gang_id: str, fence: int, what: str) -> tuple[Gang, MemberState] | None:
    """Returns the gang and the sender's part of it; otherwise records the message as stale."""
    gang = draft.gang(gang_id)
    member = queries.member_on(gang, node_id) if gang is not None else None
    if gang is None or member is None or gang.fence != fence:
        draft.add(events.StaleRefused(node_id=node_id, what=what, subject=gang_id, fence=fence))
        return None
    return gang, member
