"""Nodes on which gangs keep dying: written down as it happens, and cordoned when it goes on; `state.blames` judges.

Never more than a fifth of a pool without a person, as with GPUs: what kills gangs everywhere is no node's fault.
"""

from __future__ import annotations

from phalanx.core.states import Cause, NodeState
from phalanx_control.lifecycle import failures
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import blames, events, queries, schemas
from phalanx_control.state.model import Blame, Cordon, Gang

CORDONED_PER_MILLE = 200
"""Of a pool's nodes, without a person; small pools lose none."""
BY = "phalanx"
MAX_REASON_CHARS = 160
_SCHEMA = schemas.SINCE[events.NodeBlamed]


def note_death(draft: Draft, gang: Gang, call_id: str) -> None:
    """Writes down that a gang died on a node, unless it was its user's doing. ``call_id``: what it ran, or was for."""
    error = gang.error
    if error is None or error.cause is not Cause.INFRASTRUCTURE or draft.now.schema < _SCHEMA:
        return
    node_id = error.node_id
    if node_id not in draft.state.nodes or queries.member_on(gang, node_id) is None:
        return
    blame = Blame(
        gang_id=gang.id,
        function_id=gang.function_id,
        call_id=call_id,
        reason=failures.summary(error)[:MAX_REASON_CHARS],
        at_ms=draft.now.log_ms,
    )
    draft.add(events.NodeBlamed(node_id=node_id, blame=blame))
    _cordon_if_due(draft, node_id)


def _cordon_if_due(draft: Draft, node_id: str) -> None:
    found = blames.held_against(draft.state, node_id, draft.now.log_ms)
    if len(found) < blames.CORDONED_AFTER or draft.state.nodes[node_id].cordon is not None:
        return
    if not _pool_bears_it(draft, node_id):
        return
    cordon = Cordon(
        state=NodeState.CORDONED,
        reason=blames.deaths_in_words(found),
        by=BY,
        wall_ms=draft.now.wall_ms,
    )
    draft.add(events.NodeCordoned(node_id=node_id, cordon=cordon))


def _pool_bears_it(draft: Draft, node_id: str) -> bool:
    pool = draft.state.nodes[node_id].info.pool
    members = [node for node in draft.state.nodes.values() if node.info.pool == pool]
    out = sum(node.cordon is not None and node.cordon.by == BY for node in members)
    return (out + 1) * 1000 <= len(members) * CORDONED_PER_MILLE
