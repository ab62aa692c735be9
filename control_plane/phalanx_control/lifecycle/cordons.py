"""What admins do to nodes: cordon, drain, uncordon. It holds whatever the node's agent does, until it is taken back.

    cordoned   nothing new is placed there; what runs goes on, and warm gangs take calls and end by themselves
    draining   its gangs take no calls any more and end when those in flight have; at the deadline they are ended

A call that is ended at the deadline runs again elsewhere, where its function may run more than once, and eats no
retries. What was taken from it is credited.
"""

from __future__ import annotations

from difflib import get_close_matches

from phalanx.core.errors import InvalidSpecError, NotFoundError, VersionError
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause, GangState, NodeState
from phalanx.core.topology.names import natural_key
from phalanx_control.lifecycle import failures, gangs
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, queries, schemas
from phalanx_control.state.commands import SetNodeState
from phalanx_control.state.model import Cordon, Gang, Node

DEADLINE_MS = 600_000
MAX_DEADLINE_MS = 30 * 86_400_000
MAX_REASON_CHARS = 200
CORDON_SCHEMA = schemas.SINCE[events.NodeCordoned]
_NAMED = 5


def set_state(draft: Draft, command: SetNodeState) -> None:
    """Does what an admin asks; the same again changes nothing.

    Raises NotFoundError for a node that is not known, InvalidSpecError for words that are wrong, VersionError while a
    replica could not read it.
    """
    node = draft.state.nodes.get(command.node_id)
    if node is None:
        raise NotFoundError(_unknown(draft, command.node_id), hint="gpuctl nodes")
    if draft.now.schema < CORDON_SCHEMA:
        raise VersionError(
            "a replica of this cell is older than this and would place work on the node all the same",
            hint="upgrade all replicas first",
        )
    if command.state is NodeState.READY:
        if node.cordon is not None or command.node_id in draft.state.blames:
            draft.add(events.NodeUncordoned(node_id=command.node_id, by=command.by))
        return
    _check(command)
    cordon = _cordon(draft, node, command)
    if _says_more(cordon, node.cordon):
        draft.add(events.NodeCordoned(node_id=command.node_id, cordon=cordon))
    if command.state is NodeState.DRAINING:
        _drain(draft, {command.node_id})


def end_drained(draft: Draft) -> None:
    """Ends what came up on draining nodes meanwhile, and at their deadlines all that is still there."""
    draining = {node.info.node_id for node in draft.state.nodes.values() if _drains(node)}
    if draining:
        _drain(draft, draining)


def _drains(node: Node) -> bool:
    return node.cordon is not None and node.cordon.state is NodeState.DRAINING


def _drain(draft: Draft, draining: set[str]) -> None:
    for gang in sorted(draft.state.gangs.values(), key=lambda g: g.fence):
        on = next((m.member.node_id for m in gang.members if m.member.node_id in draining and not m.ended), "")
        if on:
            _end_gang(draft, gang, draft.state.nodes[on])


def _end_gang(draft: Draft, gang: Gang, node: Node) -> None:
    assert node.cordon is not None
    why = f"node {node.info.node_id} is {queries.cordon_in_words(node)}"
    if draft.now.log_ms >= node.cordon.deadline_ms and _still_works(gang):
        message = f"{why}; its time to drain is over"
        error = ErrorInfo(cause=Cause.PREEMPTED, type_name=failures.DRAINED, message=message)
        gangs.drain(draft, gang.id, message, error=error if gang.calls else None)
    elif gang.state in queries.STARTING | queries.WARM:
        gangs.drain(draft, gang.id, why, calls_finish=True)


def _still_works(gang: Gang) -> bool:
    return gang.state in queries.WARM or (gang.state is GangState.DRAINING and gang.drain)


def _cordon(draft: Draft, node: Node, command: SetNodeState) -> Cordon:
    known, now = node.cordon, draft.now
    deadline_ms = deadline_wall_ms = 0
    if command.state is NodeState.DRAINING:
        draining = known is not None and known.state is NodeState.DRAINING
        if known is not None and draining and command.deadline_in_ms is None:
            deadline_ms, deadline_wall_ms = known.deadline_ms, known.deadline_wall_ms
        else:
            in_ms = DEADLINE_MS if command.deadline_in_ms is None else command.deadline_in_ms
            deadline_ms, deadline_wall_ms = now.log_ms + in_ms, now.wall_ms + in_ms
    return Cordon(
        state=command.state,
        reason=command.reason or (known.reason if known is not None else ""),
        by=command.by,
        wall_ms=now.wall_ms,
        deadline_ms=deadline_ms,
        deadline_wall_ms=deadline_wall_ms,
    )


def _says_more(new: Cordon, known: Cordon | None) -> bool:
    if known is None:
        return True
    return (new.state, new.reason, new.deadline_ms) != (known.state, known.reason, known.deadline_ms)


def _check(command: SetNodeState) -> None:
    if command.state not in (NodeState.CORDONED, NodeState.DRAINING):
        raise InvalidSpecError(f"state {command.state.value!r} is not an admin's to say: cordon, drain or uncordon")
    if len(command.reason) > MAX_REASON_CHARS or not command.reason.isprintable():
        raise InvalidSpecError(
            f"reason={command.reason[:60]!r}: give one line of at most {MAX_REASON_CHARS} characters"
        )
    if command.deadline_in_ms is not None and not 0 <= command.deadline_in_ms <= MAX_DEADLINE_MS:
        raise InvalidSpecError(f"deadline={command.deadline_in_ms / 1000:,.0f} s: give between 0 and 30 days")


def _unknown(draft: Draft, node_id: str) -> str:
    there = sorted(draft.state.nodes, key=natural_key)
    near = get_close_matches(node_id, there, n=_NAMED, cutoff=0.6)
    if near:
        return f"no node {node_id[:80]!r}; did you mean {' or '.join(near)}?"
    more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    return f"no node {node_id[:80]!r}; this cell has {', '.join(there[:_NAMED]) or 'none'}{more}"
