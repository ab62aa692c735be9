"""Nodes come, speak, fall silent and come back; what that means for their gangs.

Silence proves nothing: an agent ends a gang only after the function's ``disconnect_grace``, so a gang is written off
8 s after that, and never by a leader that has led for less than one grace. A boot id that changed, or an agent that
says what it holds, is proof.

What a GPU reported of its own hardware cordons it; but never more than a fifth of a pool without a person: a driver
that cries wolf must not empty it. GPUs that are dirty, lost or a stranger's are marked whatever their number.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.errors import AuthError
from phalanx.core.messages import ErrorInfo, GangFacts, GpuInfo, Hello, Leave, Report
from phalanx.core.states import GangState, GpuState, NodeState
from phalanx_control.lifecycle import failures, gangs, meter
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, queries, schemas
from phalanx_control.state.commands import NodeSilent
from phalanx_control.state.model import Gang, Node

SUSPECT_AFTER_MS = 6_000
WRITE_OFF_MARGIN_MS = 8_000
NEW_LEADER_SLACK_MS = 1_000
EMPTY_NODE_GRACE_MS = 10_000
CORDONED_PER_MILLE = 200
"""Of a pool's GPUs, without a person; one is always allowed."""
MAX_TOPOLOGY_CHARS = 512 * 1024
"""A node of 72 GPUs takes a third of it."""
_LEAVING_SCHEMA = schemas.SINCE[events.NodeLeft]
_MARKED = frozenset({GpuState.QUARANTINED, GpuState.EXTERNAL, GpuState.DOWN})
_SILENT = frozenset({NodeState.SUSPECT, NodeState.LOST})


def hello(draft: Draft, node_id: str, message: Hello) -> None:
    """A session begins: the node is described anew, and gangs that it no longer holds are over there.

    Raises AuthError when the agent speaks for another node.
    """
    if message.node.node_id != node_id:
        raise AuthError(f"the agent of {node_id} cannot speak for {message.node.node_id!r}")
    known = draft.state.nodes.get(node_id)
    info = replace(message.node, topology=_bounded(message.node.topology))
    if known is None or known.info != info:
        draft.add(events.NodeJoined(info=info))
    _forget_marks_of_others(draft, node_id)
    _is_back(draft, node_id)
    _mark_gpus(draft, node_id, message.node.gpus)
    rebooted = known is not None and known.info.boot_id != message.node.boot_id
    _compare_gangs(draft, node_id, message.gangs, rebooted=rebooted)


def report(draft: Draft, node_id: str, message: Report) -> None:
    """The node lives. GPUs that became unusable, or usable again, are marked; a changed topology is written down."""
    node = draft.state.nodes.get(node_id)
    if node is None:
        return
    if _bounded(message.topology):
        _describe(draft, node, message)
    if node.state is NodeState.LOST:
        _is_back(draft, node_id)
        _compare_gangs(draft, node_id, message.gangs, rebooted=False)
    _mark_gpus(draft, node_id, message.gpus)


def leave(draft: Draft, node_id: str, _message: Leave) -> None:
    """The node's agent ends for good, and holds no gang: not those either that were reserved while it said so."""
    if node_id not in draft.state.nodes or draft.now.schema < _LEAVING_SCHEMA:
        return
    for gang in queries.gangs_on(draft.state, node_id):
        _gone_from(draft, gang, node_id, why=f"{node_id} has left")
    draft.add(events.NodeLeft(node_id=node_id))


def _describe(draft: Draft, node: Node, message: Report) -> None:
    """Writes down what the node looks like now, where that differs; who occupies its GPUs is no part of it."""
    gpus = message.gpus or node.info.gpus
    if message.topology != node.info.topology or _lasting(gpus) != _lasting(node.info.gpus):
        draft.add(events.NodeJoined(info=replace(node.info, topology=message.topology, gpus=gpus)))
        _forget_marks_of_others(draft, node.info.node_id)


def _forget_marks_of_others(draft: Draft, node_id: str) -> None:
    """Drops marks of GPUs that the node does not have: one that comes back says itself how it is."""
    node = draft.state.nodes[node_id]
    for uuid in sorted(node.marks.keys() - {gpu.uuid for gpu in node.info.gpus}):
        draft.add(events.GpuMarked(node_id=node_id, gpu=uuid, state=GpuState.FREE))


def _bounded(topology: str) -> str:
    """Returns "" for what is too long to be written down: the node is used without."""
    return topology if len(topology) <= MAX_TOPOLOGY_CHARS else ""


def _lasting(gpus: tuple[GpuInfo, ...]) -> list[tuple[str, str, bool, str]]:
    said = [gpu.reason if gpu.cordon or gpu.state is GpuState.FREE else "" for gpu in gpus]
    return [(gpu.uuid, gpu.model, gpu.cordon, reason) for gpu, reason in zip(gpus, said, strict=True)]


def heard(draft: Draft, node_id: str) -> None:
    """Any message ends suspicion; only one that says what the node holds brings a lost one back."""
    node = draft.state.nodes.get(node_id)
    if node is not None and node.state is NodeState.SUSPECT:
        _is_back(draft, node_id)


def _is_back(draft: Draft, node_id: str) -> None:
    if draft.state.nodes[node_id].state in _SILENT:
        draft.add(events.NodeStateChanged(node_id=node_id, state=NodeState.READY, reason="heard again"))


def _mark_gpus(draft: Draft, node_id: str, gpus: tuple[GpuInfo, ...]) -> None:
    for gpu in gpus:
        mark = draft.state.nodes[node_id].marks.get(gpu.uuid)
        if gpu.state not in _MARKED:
            if mark is not None:
                draft.add(events.GpuMarked(node_id=node_id, gpu=gpu.uuid, state=GpuState.FREE))
        elif mark is None and gpu.cordon and not _may_cordon(draft, node_id):
            continue
        elif mark is None or (mark.state, mark.reason) != (gpu.state, gpu.reason):
            draft.add(events.GpuMarked(node_id=node_id, gpu=gpu.uuid, state=gpu.state, reason=gpu.reason))


def _may_cordon(draft: Draft, node_id: str) -> bool:
    """Says whether the pool bears one more quarantined GPU; those that were taken out of their node count no more."""
    pool = draft.state.nodes[node_id].info.pool
    members = [node for node in draft.state.nodes.values() if node.info.pool == pool]
    marks = [node.marks.get(gpu.uuid) for node in members for gpu in node.info.gpus]
    out = sum(mark is not None and mark.state is GpuState.QUARANTINED for mark in marks)
    return out < max(1, len(marks) * CORDONED_PER_MILLE // 1000)


def _compare_gangs(draft: Draft, node_id: str, held: tuple[GangFacts, ...], *, rebooted: bool) -> None:
    """Ends what the state believes to be on the node and the node does not hold."""
    facts = {(g.gang_id, g.fence): g for g in held}
    for gang in queries.gangs_on(draft.state, node_id):
        known = facts.get((gang.id, gang.fence))
        if known is not None and not rebooted:
            meter.count(draft, gang, node_id, known.counters)
        elif not _never_told(gang, node_id) or rebooted:
            why = f"{node_id} was restarted" if rebooted else f"{node_id} no longer holds the gang"
            _gone_from(draft, gang, node_id, why=why)


def _never_told(gang: Gang, node_id: str) -> bool:
    """A member that has not yet said it is prepared may not have been asked: it is asked again."""
    member = queries.member_on(gang, node_id)
    return member is not None and not member.prepared and gang.state in (GangState.RESERVED, GangState.PREPARING)


def _gone_from(draft: Draft, gang: Gang, node_id: str, *, why: str) -> None:
    if gang.state in queries.STARTING | queries.WARM:
        gangs.drain(draft, gang.id, why, error=failures.infrastructure(why, node_id=node_id))
    gangs.end_member(draft, gang.id, node_id)


# ---- silence ----


def silent(draft: Draft, silence: NodeSilent) -> None:
    """Judges a node that has not been heard: suspect, then gang by gang written off, then lost."""
    node = draft.state.nodes.get(silence.node_id)
    if node is not None and node.state in _SILENT and _heard_by_this_leader(draft, silence):
        _is_back(draft, silence.node_id)
        return
    if node is None or node.state is NodeState.LOST:
        return
    if node.state is not NodeState.SUSPECT and silence.silent_ms >= SUSPECT_AFTER_MS:
        _change(draft, node, NodeState.SUSPECT, f"not heard for {silence.silent_ms / 1000:.0f} s")
    on_node = tuple(g for g in queries.gangs_on(draft.state, silence.node_id) if not g.state.terminal)
    over = [g for g in on_node if _may_write_off(draft, silence, _grace_ms(draft, g))]
    if len(over) == len(on_node) and _may_write_off(draft, silence, _node_grace_ms(draft, on_node)):
        why = "is gone" if silence.proved_gone else f"was not heard for {silence.silent_ms / 1000:.0f} s"
        _change(draft, node, NodeState.LOST, why)
    for gang in over:
        _write_off(draft, gang, silence)


def _heard_by_this_leader(draft: Draft, silence: NodeSilent) -> bool:
    """A new leader counts silence from its own beginning; that alone does not mean that the node spoke."""
    led_ms = draft.now.log_ms - draft.state.took_over_ms
    return silence.silent_ms < SUSPECT_AFTER_MS and silence.silent_ms + NEW_LEADER_SLACK_MS <= led_ms


def _may_write_off(draft: Draft, silence: NodeSilent, grace_ms: int) -> bool:
    if silence.proved_gone:
        return True
    led_ms = draft.now.log_ms - draft.state.took_over_ms
    return silence.silent_ms >= grace_ms + WRITE_OFF_MARGIN_MS and led_ms >= grace_ms


def _grace_ms(draft: Draft, gang: Gang) -> int:
    return round(draft.spec(gang.function_id).limits.disconnect_grace_s * 1000)


def _node_grace_ms(draft: Draft, on_node: tuple[Gang, ...]) -> int:
    return max((_grace_ms(draft, g) for g in on_node), default=EMPTY_NODE_GRACE_MS)


def _write_off(draft: Draft, gang: Gang, silence: NodeSilent) -> None:
    error = _loss(silence)
    if gang.state in queries.STARTING | queries.WARM:
        gangs.drain(draft, gang.id, error.message, error=error)
    gangs.release_when_over(draft, gang.id, gone=frozenset({silence.node_id}))


def _loss(silence: NodeSilent) -> ErrorInfo:
    what = "is gone" if silence.proved_gone else f"was not heard for {silence.silent_ms / 1000:.0f} s"
    return failures.infrastructure(f"node {silence.node_id} {what}", node_id=silence.node_id)


def _change(draft: Draft, node: Node, state: NodeState, reason: str) -> None:
    draft.add(events.NodeStateChanged(node_id=node.info.node_id, state=state, reason=reason))
