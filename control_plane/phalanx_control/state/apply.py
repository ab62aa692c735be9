"""The fold: one event and a state make the next state. Facts only; it judges nothing and refuses nothing.

Every kind of event has one small function, found by its class. The indexes that depend on calls (queue, lines, ended)
are kept in step here and nowhere else. A KeyError means that the log is not the history of this state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from immutables import Map
from msgspec.structs import replace

from phalanx.core.states import GangState, GpuState
from phalanx.policy import policy_from_json
from phalanx_control.state import apply_calls, events, queries, schemas
from phalanx_control.state.amounts import held_by, with_ended
from phalanx_control.state.apply_calls import put_gang
from phalanx_control.state.model import FunctionStats, Gang, GpuMark, LedgerLine, MemberState, Node, State, Usage
from phalanx_control.state.touched import touch

_BLAMES_KEPT = 16
"""Of a node: more than it takes to be cordoned."""
Step = Callable[[State, Any, int], State]


def apply(state: State, event: events.AnyEvent, log_ms: int) -> State:
    """Returns the state after ``event``, which happened at ``log_ms`` of the log's clock."""
    since = schemas.since(event)
    if since > state.schema:
        state = replace(state, schema=since)
    return _STEPS[type(event)](state, event, log_ms)


def apply_batch(state: State, *, seq: int, log_ms: int, events: events.Events) -> State:
    """Returns the state after one log entry."""
    for event in events:
        state = apply(state, event, log_ms)
    return replace(state, seq=seq, log_ms=log_ms)


def _leader_took_over(state: State, event: events.LeaderTookOver, log_ms: int) -> State:
    return replace(state, epoch=event.epoch, took_over_ms=log_ms)


def _function_registered(state: State, event: events.FunctionRegistered, _: int) -> State:
    return replace(state, functions=state.functions.set(event.function.id, event.function))


def _app_deployed(state: State, event: events.AppDeployed, _: int) -> State:
    return replace(state, apps=state.apps.set(f"{event.app.workspace}/{event.app.name}", event.app))


def _token_created(state: State, event: events.TokenCreated, _: int) -> State:
    return replace(state, tokens=state.tokens.set(event.token.id, event.token))


def _token_revoked(state: State, event: events.TokenRevoked, _: int) -> State:
    return replace(state, tokens=state.tokens.delete(event.token_id))


def _join_token_created(state: State, event: events.JoinTokenCreated, _: int) -> State:
    return replace(state, join_tokens=state.join_tokens.set(event.sha256, event.expires_wall_ms))


def _join_token_used(state: State, event: events.JoinTokenUsed, _: int) -> State:
    reusable = state.join_tokens[event.sha256] == 0
    return state if reusable else replace(state, join_tokens=state.join_tokens.delete(event.sha256))


# ---- nodes ----


def _node_joined(state: State, event: events.NodeJoined, log_ms: int) -> State:
    known = state.nodes.get(event.info.node_id)
    node = replace(known, info=event.info) if known is not None else Node(info=event.info, since_ms=log_ms)
    return replace(state, nodes=state.nodes.set(event.info.node_id, node))


def _node_state_changed(state: State, event: events.NodeStateChanged, log_ms: int) -> State:
    node = replace(state.nodes[event.node_id], state=event.state, since_ms=log_ms)
    return replace(state, nodes=state.nodes.set(event.node_id, node))


def _node_cordoned(state: State, event: events.NodeCordoned, _: int) -> State:
    node = replace(state.nodes[event.node_id], cordon=event.cordon)
    return replace(state, nodes=state.nodes.set(event.node_id, node))


def _node_uncordoned(state: State, event: events.NodeUncordoned, _: int) -> State:
    node = replace(state.nodes[event.node_id], cordon=None)
    return replace(_without_blames(state, event.node_id), nodes=state.nodes.set(event.node_id, node))


def _node_blamed(state: State, event: events.NodeBlamed, _: int) -> State:
    known = state.blames.get(event.node_id, ())
    return replace(state, blames=state.blames.set(event.node_id, (*known, event.blame)[-_BLAMES_KEPT:]))


def _without_blames(state: State, node_id: str) -> State:
    return replace(state, blames=state.blames.delete(node_id)) if node_id in state.blames else state


def _node_left(state: State, event: events.NodeLeft, _: int) -> State:
    return replace(_without_blames(state, event.node_id), nodes=state.nodes.delete(event.node_id))


def _gpu_marked(state: State, event: events.GpuMarked, log_ms: int) -> State:
    node = state.nodes[event.node_id]
    marks = {uuid: mark for uuid, mark in node.marks.items() if uuid != event.gpu}
    if event.state is not GpuState.FREE:
        marks[event.gpu] = GpuMark(state=event.state, reason=event.reason, since_ms=log_ms)
    return replace(state, nodes=state.nodes.set(event.node_id, replace(node, marks=marks)))


def _policy_set(state: State, event: events.PolicySet, _: int) -> State:
    return replace(state, policy=event.policy, usage=state.usage if event.policy else Map[str, Usage]())


def _fabric_set(state: State, event: events.FabricSet, _: int) -> State:
    return replace(state, fabric=event.fabric)


# ---- gangs ----


def _gang_reserved(state: State, event: events.GangReserved, _: int) -> State:
    gang = event.gang
    call = state.calls.get(gang.for_call)
    if call is not None:
        call = replace(call, made_gangs=(*call.made_gangs, gang.id))
        state = replace(state, calls=state.calls.set(call.id, call))
    return replace(put_gang(state, gang), next_fence=max(state.next_fence, gang.fence + 1))


def _gang_moves(state: State, gang: Gang, to: GangState, log_ms: int) -> State:
    since_ms = gang.state_since_ms if gang.state is to else log_ms
    return put_gang(state, replace(gang, state=to, state_since_ms=since_ms))


def _with_member(gang: Gang, node_id: str, change: Callable[[MemberState], MemberState]) -> Gang:
    members = tuple(change(m) if m.member.node_id == node_id else m for m in gang.members)
    return replace(gang, members=members)


def _member_was_prepared(state: State, event: events.MemberWasPrepared, log_ms: int) -> State:
    gang = _with_member(state.gangs[event.gang_id], event.node_id, lambda m: replace(m, prepared=True))
    gang = replace(gang, rendezvous=event.rendezvous or gang.rendezvous)
    return _gang_moves(state, gang, GangState.PREPARING, log_ms)


def _gang_starting(state: State, event: events.GangStarting, log_ms: int) -> State:
    return _gang_moves(state, state.gangs[event.gang_id], GangState.STARTING, log_ms)


def _member_was_ready(state: State, event: events.MemberWasReady, _: int) -> State:
    gang = _with_member(
        state.gangs[event.gang_id], event.node_id, lambda m: replace(m, ready=True, pids=tuple(event.pids))
    )
    return put_gang(state, replace(gang, backend=event.backend or gang.backend))


def _ranks_equipped(state: State, event: events.RanksEquipped, _: int) -> State:
    gang = state.gangs[event.gang_id]
    return put_gang(state, _with_member(gang, event.node_id, lambda m: replace(m, equipment=event.equipment)))


def _gang_ready(state: State, event: events.GangReady, log_ms: int) -> State:
    return _gang_moves(state, state.gangs[event.gang_id], GangState.READY, log_ms)


def _gang_draining(state: State, event: events.GangDraining, log_ms: int) -> State:
    gang = state.gangs[event.gang_id]
    first = gang.state is not GangState.DRAINING
    gang = replace(
        gang,
        stop_reason=event.reason if first or event.error is not None else gang.stop_reason,
        error=event.error or gang.error,
        drain=event.drain and (first or gang.drain),
    )
    return _gang_moves(state, gang, GangState.DRAINING, log_ms)


def _member_has_ended(state: State, event: events.MemberHasEnded, _: int) -> State:
    gang = _with_member(state.gangs[event.gang_id], event.node_id, lambda m: replace(m, ended=True))
    return _keep_or_forget(state, gang)


def _gang_released(state: State, event: events.GangReleased, log_ms: int) -> State:
    to = GangState.LOST if event.lost else GangState.RELEASED
    gang = replace(state.gangs[event.gang_id], state=to, state_since_ms=log_ms)
    return _keep_or_forget(_count_usage(state, gang, log_ms) if state.policy else state, gang)


def _count_usage(state: State, gang: Gang, log_ms: int) -> State:
    name = queries.usage_name(gang.owner.workspace, gang.owner.user)
    held = held_by(gang, state.functions[gang.function_id].spec)
    half_life_ms = policy_from_json(state.policy).half_life_s * 1000
    known = state.usage.get(name, Usage(at_ms=log_ms))
    usage = with_ended(known, held, began_ms=gang.created_ms, now_ms=log_ms, half_life_ms=half_life_ms)
    return replace(state, usage=state.usage.set(name, usage))


def _keep_or_forget(state: State, gang: Gang) -> State:
    over = gang.state.terminal and all(m.ended for m in gang.members)
    if not over:
        return put_gang(state, gang)
    return replace(state, gangs=state.gangs.delete(gang.id), touched=touch(state.touched, gang.id))


# ---- meter ----


def _meter_opened(state: State, event: events.MeterOpened, _: int) -> State:
    gang = state.gangs[event.gang_id]
    member = next(m.member for m in gang.members if m.member.node_id == event.node_id)
    models = {gpu.uuid: gpu.model for gpu in state.nodes[event.node_id].info.gpus}
    line = LedgerLine(
        gang_id=gang.id,
        fence=gang.fence,
        node_id=event.node_id,
        function_id=gang.function_id,
        owner=gang.owner,
        for_call=gang.for_call,
        gpus={uuid: models.get(uuid, "") for uuid in member.gpus},
        share=member.share,
        opened_wall_ms=event.wall_ms,
    )
    nodes = tuple(sorted((*state.lease_nodes.get(gang.id, ()), event.node_id)))
    return replace(
        state,
        ledger=state.ledger.set(f"{gang.id}/{event.node_id}", line),
        lease_nodes=state.lease_nodes.set(gang.id, nodes),
    )


def _meter_counted(state: State, event: events.MeterCounted, _: int) -> State:
    key = f"{event.gang_id}/{event.node_id}"
    line = state.ledger[key]
    counters = dict(line.counters)
    for name, ms in event.counters.items():
        counters[name] = max(ms, counters.get(name, 0))
    return replace(state, ledger=state.ledger.set(key, replace(line, counters=counters)))


def _attempt_credited(state: State, event: events.AttemptCredited, _: int) -> State:
    ledger = state.ledger
    for node_id in state.lease_nodes.get(event.gang_id, ()):
        key = f"{event.gang_id}/{node_id}"
        ledger = ledger.set(key, replace(ledger[key], credited_ms=ledger[key].credited_ms + event.ms))
    return replace(state, ledger=ledger)


def _meter_closed(state: State, event: events.MeterClosed, _: int) -> State:
    key = f"{event.gang_id}/{event.node_id}"
    line = replace(state.ledger[key], closed_wall_ms=event.wall_ms, credited=event.credited)
    return replace(state, ledger=state.ledger.set(key, line))


def _direct_calls_counted(state: State, event: events.DirectCallsCounted, _: int) -> State:
    old = state.stats.get(event.function_id, FunctionStats())
    new = replace(
        old,
        direct_succeeded=old.direct_succeeded + event.succeeded,
        direct_failed=old.direct_failed + event.failed,
        direct_busy_ms=old.direct_busy_ms + event.busy_ms,
    )
    return replace(state, stats=state.stats.set(event.function_id, new))


def _direct_report_taken(state: State, event: events.DirectReportTaken, _: int) -> State:
    node = replace(state.nodes[event.node_id], direct_epoch=event.agent_epoch, direct_seq=event.seq)
    return replace(state, nodes=state.nodes.set(event.node_id, node))


def _lines_filed(state: State, event: events.LinesFiled, _: int) -> State:
    ledger, lease_nodes, filed = state.ledger, state.lease_nodes, state.filed
    for key in event.keys:
        line = ledger[key]
        ledger = ledger.delete(key)
        left = tuple(node_id for node_id in lease_nodes[line.gang_id] if node_id != line.node_id)
        lease_nodes = lease_nodes.set(line.gang_id, left) if left else lease_nodes.delete(line.gang_id)
    for new in event.sums:
        known = filed.get(new.key)
        filed = filed.set(new.key, new if known is None else replace(known, ms=known.ms + new.ms))
    return replace(state, ledger=ledger, lease_nodes=lease_nodes, filed=filed)


def _ledger_month_dropped(state: State, event: events.LedgerMonthDropped, _: int) -> State:
    kept = {key: each for key, each in state.filed.items() if each.month != event.month}
    return replace(state, filed=Map(kept))


def _stale_refused(state: State, _event: events.StaleRefused, _: int) -> State:
    return state


_STEPS: dict[type, Step] = {
    events.LeaderTookOver: _leader_took_over,
    events.FunctionRegistered: _function_registered,
    events.AppDeployed: _app_deployed,
    events.TokenCreated: _token_created,
    events.TokenRevoked: _token_revoked,
    events.JoinTokenCreated: _join_token_created,
    events.JoinTokenUsed: _join_token_used,
    events.NodeJoined: _node_joined,
    events.NodeStateChanged: _node_state_changed,
    events.NodeLeft: _node_left,
    events.NodeCordoned: _node_cordoned,
    events.NodeUncordoned: _node_uncordoned,
    events.NodeBlamed: _node_blamed,
    events.GpuMarked: _gpu_marked,
    events.FabricSet: _fabric_set,
    events.PolicySet: _policy_set,
    events.DirectCallsCounted: _direct_calls_counted,
    events.StaleRefused: _stale_refused,
    events.GangReserved: _gang_reserved,
    events.MemberWasPrepared: _member_was_prepared,
    events.GangStarting: _gang_starting,
    events.MemberWasReady: _member_was_ready,
    events.RanksEquipped: _ranks_equipped,
    events.GangReady: _gang_ready,
    events.GangDraining: _gang_draining,
    events.MemberHasEnded: _member_has_ended,
    events.GangReleased: _gang_released,
    events.MeterOpened: _meter_opened,
    events.MeterCounted: _meter_counted,
    events.MeterClosed: _meter_closed,
    events.AttemptCredited: _attempt_credited,
    events.DirectReportTaken: _direct_report_taken,
    events.LinesFiled: _lines_filed,
    events.LedgerMonthDropped: _ledger_month_dropped,
    **apply_calls.STEPS,
}
