"""What time alone brings about: silence, start-up limits, overdue calls, old keys, idle gangs, counters."""

from __future__ import annotations

from phalanx.core.messages import ErrorInfo
from phalanx.core.states import CallState, Cause, GangState
from phalanx_control.lifecycle import calls, cordons, deadlines, failures, gangs, keys, meter, nodes
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import queries
from phalanx_control.state.commands import CountersSeen, Tick
from phalanx_control.state.model import Call, Gang

AGENT_MARGIN_MS = 10_000
"""How much longer than promised an agent may be silent about a timeout or a cancellation before it is overruled."""


def tick(draft: Draft, command: Tick) -> None:
    """Does, in this order, whatever is due."""
    for silence in command.silent:
        nodes.silent(draft, silence)
    for gang in sorted(draft.state.gangs.values(), key=lambda g: g.fence):
        _limit_start(draft, gang)
        _overrule_silent_agent(draft, gang, paused_ms=command.paused_ms.get(gang.id, 0))
    cordons.end_drained(draft)
    deadlines.end_overdue(draft)
    keys.forget_old(draft)
    for gang_id, idle_ms in sorted(command.gang_idle_ms.items()):
        _scale_down(draft, gang_id, idle_ms)
    for seen in command.meters:
        _count(draft, seen)


def _limit_start(draft: Draft, gang: Gang) -> None:
    limit_s = draft.spec(gang.function_id).limits.startup_timeout_s
    if gang.state not in queries.STARTING or not limit_s:
        return
    if draft.now.log_ms - gang.created_ms <= limit_s * 1000:
        return
    forked = gang.state is GangState.STARTING
    message = f"was not ready after startup_timeout={limit_s:g} s; it got as far as {gang.state.value}"
    cause = Cause.TIMEOUT if forked else Cause.INFRASTRUCTURE
    gangs.drain(draft, gang.id, message, error=ErrorInfo(cause=cause, type_name="StartupTimeout", message=message))


def _overrule_silent_agent(draft: Draft, gang: Gang, *, paused_ms: int) -> None:
    """Ends calls whose timeout or cancellation the agent should have reported long ago."""
    grace_ms = round(draft.spec(gang.function_id).limits.grace_s * 1000)
    for call_id in gang.calls:
        call = draft.call(call_id)
        if call.state is CallState.RUNNING and call.timeout_ms:
            if draft.now.log_ms - call.started_ms > call.timeout_ms + paused_ms + grace_ms + AGENT_MARGIN_MS:
                _time_out(draft, gang, call)
        elif call.state is CallState.CANCELLING:
            late = draft.now.log_ms - call.cancelling_ms > grace_ms + AGENT_MARGIN_MS
            if late and gang.state in queries.WARM:
                gangs.drain(draft, gang.id, f"did not end call {call.id} when it was cancelled")


def _time_out(draft: Draft, gang: Gang, call: Call) -> None:
    error = calls.timeout_error(call)
    if gang.state in queries.WARM:
        gangs.drain(draft, gang.id, f"did not end call {call.id} at its timeout")
    failures.attempt_failed(draft, call, error, busy_ms=draft.now.log_ms - call.started_ms)


def _scale_down(draft: Draft, gang_id: str, idle_ms: int) -> None:
    gang = draft.gang(gang_id)
    if gang is None or gang.state is not GangState.READY or gang.calls:
        return
    window_s = draft.spec(gang.function_id).limits.scaledown_window_s
    quiet_ms = min(idle_ms, draft.now.log_ms - gang.state_since_ms)
    if quiet_ms >= window_s * 1000 and not queries.waiting_of(draft.state, gang.function_id):
        gangs.drain(draft, gang_id, f"idle for scaledown_window={window_s:g} s", calls_finish=True)


def _count(draft: Draft, seen: CountersSeen) -> None:
    gang = draft.gang(seen.gang_id)
    if gang is not None and queries.holds(gang, seen.node_id):
        meter.count(draft, gang, seen.node_id, seen.counters)
