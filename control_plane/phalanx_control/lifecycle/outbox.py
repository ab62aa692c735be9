"""What agents must be told. Said once when it happens, and all of it again to an agent that reconnects.

Every message may be repeated: agents take each as often as it comes. Nothing here signs or reads bodies: the
controller fills tickets and inline arguments in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from phalanx.core import messages
from phalanx.core.messages import ToAgent
from phalanx.core.states import CallState, GangState, NodeState
from phalanx_control.lifecycle.networks import networks_differ
from phalanx_control.state import events, queries
from phalanx_control.state.model import BodyRef, Call, Gang, MemberState, State

Addressed = tuple[str, ToAgent]

_FORMING = frozenset({GangState.RESERVED, GangState.PREPARING})
_OVER = frozenset({GangState.DRAINING, GangState.RELEASED, GangState.LOST})


def messages_for(before: State, batch: events.Events, after: State) -> tuple[Addressed, ...]:
    """Returns (node id, message) for everything that agents must do because of a batch that is now durable."""
    out: list[Addressed] = []
    for event in batch:
        say = _SAY.get(type(event))
        if say is not None:
            out.extend(say(before, event, after))
    return tuple(out)


def reconcile(state: State, node_id: str, held: tuple[messages.GangFacts, ...]) -> tuple[ToAgent, ...]:
    """Returns all that a node must be told again, given the gangs that it says it holds."""
    out: list[ToAgent] = []
    known: set[tuple[str, int]] = set()
    facts = {(f.gang_id, f.fence): f for f in held}
    for gang in queries.gangs_on(state, node_id):
        known.add((gang.id, gang.fence))
        out.extend(_again(state, gang, node_id, facts.get((gang.id, gang.fence))))
    strangers = sorted(set(facts) - known)
    out.extend(messages.Stop(gang_id=gang_id, fence=fence, reason="its lease is over") for gang_id, fence in strangers)
    return tuple(out)


def _again(state: State, gang: Gang, node_id: str, facts: messages.GangFacts | None) -> Iterable[ToAgent]:
    member = queries.member_on(gang, node_id)
    assert member is not None
    if gang.state in _OVER:
        yield _stop(state, gang)
        return
    if gang.state in _FORMING:
        if not member.prepared and (gang.lead == node_id or gang.rendezvous):
            yield _prepare(state, gang, node_id)
        return
    if gang.state is GangState.STARTING:
        if not member.ready:
            yield _start(gang)
        return
    if gang.lead == node_id:
        yield from _calls_again(state, gang, frozenset(facts.call_ids) if facts is not None else frozenset())


def _calls_again(state: State, gang: Gang, held: frozenset[str]) -> Iterable[ToAgent]:
    for call in (state.calls[call_id] for call_id in gang.calls):
        if call.state is CallState.CANCELLING:
            yield _cancel(state, call)
        elif not call.direct and call.id not in held:
            yield _offer(call)


# ---- one small function per kind of event ----


def _reserved(_before: State, event: events.GangReserved, after: State) -> Iterable[Addressed]:
    gang = after.gangs.get(event.gang.id)
    if gang is not None and gang.state in _FORMING:
        yield gang.lead, _prepare(after, gang, gang.lead)


def _member_prepared(_before: State, event: events.MemberWasPrepared, after: State) -> Iterable[Addressed]:
    gang = after.gangs.get(event.gang_id)
    if gang is None or gang.lead != event.node_id or gang.state not in _FORMING:
        return
    for member in gang.members[1:]:
        yield member.member.node_id, _prepare(after, gang, member.member.node_id)


def _starting(_before: State, event: events.GangStarting, after: State) -> Iterable[Addressed]:
    gang = after.gangs.get(event.gang_id)
    if gang is not None and gang.state is GangState.STARTING:
        for member in gang.members:
            yield member.member.node_id, _start(gang)


def _draining(_before: State, event: events.GangDraining, after: State) -> Iterable[Addressed]:
    gang = after.gangs.get(event.gang_id)
    if gang is not None:
        for member in _not_ended(gang):
            yield member.member.node_id, _stop(after, gang)


def _assigned(_before: State, event: events.CallAssigned, after: State) -> Iterable[Addressed]:
    call = after.calls.get(event.call_id)
    gang = after.gangs.get(event.gang_id)
    if call is not None and gang is not None and call.fence == event.fence and call.state is CallState.ASSIGNED:
        yield gang.lead, _offer(call)


def _cancelling(_before: State, event: events.CallCancelling | events.CallOverdue, after: State) -> Iterable[Addressed]:
    call = after.calls.get(event.call_id)
    gang = after.gangs.get(call.gang_id) if call is not None else None
    if call is not None and gang is not None and call.state is CallState.CANCELLING:
        yield gang.lead, _cancel(after, call)


def _node_changed(before: State, event: events.NodeStateChanged, after: State) -> Iterable[Addressed]:
    """A node that was given up and speaks again must end what was rerun elsewhere."""
    node = before.nodes.get(event.node_id)
    if node is None or node.state is not NodeState.LOST or event.state is NodeState.LOST:
        return
    for gang in queries.gangs_on(after, event.node_id):
        if gang.state in _OVER:
            yield event.node_id, _stop(after, gang)


def _token_revoked(_before: State, event: events.TokenRevoked, after: State) -> Iterable[Addressed]:
    for node_id in sorted(after.nodes):
        yield node_id, messages.RevokeToken(token_id=event.token_id)


_SAY: dict[type, Callable[[State, Any, State], Iterable[Addressed]]] = {
    events.GangReserved: _reserved,
    events.MemberWasPrepared: _member_prepared,
    events.GangStarting: _starting,
    events.GangDraining: _draining,
    events.CallAssigned: _assigned,
    events.CallCancelling: _cancelling,
    events.CallOverdue: _cancelling,
    events.NodeStateChanged: _node_changed,
    events.TokenRevoked: _token_revoked,
}


# ---- the messages ----


def _not_ended(gang: Gang) -> tuple[MemberState, ...]:
    return tuple(m for m in gang.members if not m.ended)


def _prepare(state: State, gang: Gang, node_id: str) -> messages.Prepare:
    rank = next(i for i, m in enumerate(gang.members) if m.member.node_id == node_id)
    return messages.Prepare(
        gang_id=gang.id,
        fence=gang.fence,
        function_id=gang.function_id,
        function=state.functions[gang.function_id].spec,
        workspace=gang.owner.workspace,
        user=gang.owner.user,
        members=tuple(m.member for m in gang.members),
        node_rank=rank,
        rendezvous=gang.rendezvous if rank else "",
        placement=gang.placement,
        networks_differ=networks_differ(state, gang),
    )


def _start(gang: Gang) -> messages.Start:
    return messages.Start(gang_id=gang.id, fence=gang.fence, rendezvous=gang.rendezvous)


def _stop(state: State, gang: Gang) -> messages.Stop:
    return messages.Stop(
        gang_id=gang.id,
        fence=gang.fence,
        reason=gang.stop_reason,
        drain=gang.drain and gang.state is GangState.DRAINING,
        grace_ms=_grace_ms(state, gang.function_id),
    )


def _offer(call: Call) -> messages.Offer:
    return messages.Offer(
        call_id=call.id,
        attempt=call.attempt,
        fence=call.fence,
        gang_id=call.gang_id,
        args=_body(call.args),
        timeout_ms=call.timeout_ms,
        user=call.owner.user,
    )


def _cancel(state: State, call: Call) -> messages.CancelCall:
    return messages.CancelCall(
        call_id=call.id,
        gang_id=call.gang_id,
        attempt=call.attempt,
        grace_ms=_grace_ms(state, call.function_id),
        fence=call.fence,
    )


def _body(ref: BodyRef) -> messages.Body:
    return messages.Body(blob=ref.blob, size=ref.size)


def _grace_ms(state: State, function_id: str) -> int:
    return round(state.functions[function_id].spec.limits.grace_s * 1000)
