"""Questions about a state, answered from it alone: what is free, who holds what, who waits. Nothing here changes it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice

from msgspec import structs

from phalanx.core.spec import FunctionSpec
from phalanx.core.states import CallState, GangState, GpuState, NodeState
from phalanx_control.state import ordered
from phalanx_control.state.model import Call, Function, Gang, KeyUse, LedgerLine, MemberState, Node, State

STARTING = frozenset({GangState.PENDING, GangState.RESERVED, GangState.PREPARING, GangState.STARTING})
WARM = frozenset({GangState.READY, GangState.BUSY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One gang's right to one GPU, or to a share of it. CPU gangs hold none."""

    gang_id: str
    fence: int
    workspace: str
    node_id: str
    gpu: str
    share: float


def leases(state: State) -> Iterator[Lease]:
    """Yields every lease that is not over. It ends when its node's member has ended, not when its gang is given up."""
    for gang in state.gangs.values():
        for member in gang.members:
            if not member.ended:
                yield from _leases_of(gang, member)


def _leases_of(gang: Gang, member: MemberState) -> Iterator[Lease]:
    for gpu in member.member.gpus:
        yield Lease(
            gang_id=gang.id,
            fence=gang.fence,
            workspace=gang.owner.workspace,
            node_id=member.member.node_id,
            gpu=gpu,
            share=member.member.share,
        )


def leases_by_gpu(state: State) -> dict[tuple[str, str], tuple[Lease, ...]]:
    """Returns the leases of each leased GPU, keyed (node id, GPU uuid). Several only where each is a fraction."""
    found: dict[tuple[str, str], tuple[Lease, ...]] = {}
    for lease in leases(state):
        key = (lease.node_id, lease.gpu)
        found[key] = (*found.get(key, ()), lease)
    return found


def free_shares(state: State) -> dict[str, dict[str, float]]:
    """Returns, per node and GPU uuid, which part of the GPU is free: 1 is all of it, marked GPUs are left out."""
    taken: dict[tuple[str, str], float] = {}
    for lease in leases(state):
        key = (lease.node_id, lease.gpu)
        taken[key] = taken.get(key, 0) + lease.share
    return {
        node_id: {
            gpu.uuid: max(0.0, 1 - taken.get((node_id, gpu.uuid), 0))
            for gpu in node.info.gpus
            if gpu.uuid not in node.marks
        }
        for node_id, node in state.nodes.items()
    }


def gpu_state(node: Node, gpu: str, holder: Gang | None) -> tuple[GpuState, str]:
    """Returns a GPU's state and the reason for it, from its mark and from the gang that holds it."""
    mark = node.marks.get(gpu)
    if mark is not None:
        return mark.state, mark.reason
    if holder is None:
        return GpuState.FREE, ""
    if holder.state in STARTING:
        return GpuState.RESERVED, ""
    if holder.state in WARM:
        return GpuState.HELD, ""
    return GpuState.CLEANING, holder.stop_reason


def cordon_in_words(node: Node) -> str:
    """Returns who took a node out of use and why, as ``cordoned by ana: a fan is loud``; "" where nobody did."""
    cordon = node.cordon
    if cordon is None:
        return ""
    what = "drained" if cordon.state is NodeState.DRAINING else "cordoned"
    by = f" by {cordon.by}" if cordon.by else ""
    return f"{what}{by}: {cordon.reason}" if cordon.reason else f"{what}{by}"


def gangs_of(state: State, function_id: str, workspace: str = "") -> tuple[Gang, ...]:
    """Returns a function's gangs that are not over, oldest lease first; of every workspace when none is named."""
    found = (
        g
        for g in state.gangs.values()
        if g.function_id == function_id and not g.state.terminal and workspace in ("", g.owner.workspace)
    )
    return tuple(sorted(found, key=lambda g: g.fence))


def gangs_on(state: State, node_id: str) -> tuple[Gang, ...]:
    """Returns the gangs with ranks on a node that have not ended there, given-up ones included, oldest lease first."""
    found = (g for g in state.gangs.values() if holds(g, node_id))
    return tuple(sorted(found, key=lambda g: g.fence))


def holds(gang: Gang, node_id: str) -> bool:
    """Says whether the gang has a member on the node that has not ended."""
    return any(m.member.node_id == node_id and not m.ended for m in gang.members)


def held_gang(state: State, call: Call) -> Gang | None:
    """Returns the gang that is kept after the call's failure, for people to look at."""
    gang = state.gangs.get(call.gang_id) if call.state in (CallState.FAILED, CallState.TIMED_OUT) else None
    kept = gang is not None and gang.state is GangState.DRAINING and gang.drain
    return gang if kept and state.functions[call.function_id].spec.limits.hold_on_failure_s else None


def member_on(gang: Gang, node_id: str) -> MemberState | None:
    """Returns the gang's member on a node; None when it has none there."""
    return next((m for m in gang.members if m.member.node_id == node_id), None)


def children_of(state: State, call_id: str) -> Iterator[Call]:
    """Yields the calls that were made from inside a call, of every workspace, in order of their submission."""
    return (state.calls[child_id] for _, child_id in ordered.in_order(state.children.get(call_id)))


def with_descendants(state: State, call: Call) -> tuple[Call, ...]:
    """Returns the call and, behind each, the calls of its workspace that were made from inside it."""
    found, seen = [call], {call.id}
    for each in found:
        for child in children_of(state, each.id):
            if child.owner.workspace == call.owner.workspace and child.id not in seen:
                seen.add(child.id)
                found.append(child)
    return tuple(found)


def first_waiting(state: State, function_id: str, *, limit: int) -> Iterator[ordered.Key]:
    """Yields the queued calls of one function that stand first, of whichever user."""
    lines = state.lines.get(function_id)
    return islice(heapq.merge(*map(ordered.in_order, lines.values() if lines else ())), limit)


def waiting_of(state: State, function_id: str) -> int:
    """Returns how many calls of a function are queued."""
    lines = state.lines.get(function_id)
    return sum(map(ordered.size, lines.values())) if lines else 0


def queue_position(state: State, call: Call) -> int:
    """Returns how a queued call stands among all by time and priority, 1 for the first; 0 when it is not queued."""
    if call.id not in state.queue:
        return 0
    key = (state.queue[call.id], call.id)
    return 1 + sum(ordered.rank(tree, key) for users in state.lines.values() for tree in users.values())


def usage_name(workspace: str, user: str) -> str:
    """Returns the name under which the state keeps what a user's gangs had."""
    return f"{workspace}\x1f{user}"


def with_lines(state: State, lines: Iterable[LedgerLine]) -> State:
    """Returns the picture as if these filed lines of the ledger had not left it, to price what they belong to."""
    ledger, lease_nodes = state.ledger, state.lease_nodes
    for line in lines:
        key = f"{line.gang_id}/{line.node_id}"
        if key not in ledger:
            ledger = ledger.set(key, line)
            nodes = tuple(sorted((*lease_nodes.get(line.gang_id, ()), line.node_id)))
            lease_nodes = lease_nodes.set(line.gang_id, nodes)
    return structs.replace(state, ledger=ledger, lease_nodes=lease_nodes)


def function_label(state: State, function_id: str) -> str:
    """Returns what users call a function: app/name@version where deployed, else module.name."""
    function = state.functions.get(function_id)
    if function is None:
        return function_id
    spec = function.spec
    app = state.apps.get(f"{function.owner.workspace}/{spec.app}") if spec.app else None
    if app is not None and app.functions.get(spec.name) == function_id:
        return f"{app.name}/{spec.name}@{app.version}"
    return f"{spec.module}.{spec.name}" if spec.module else spec.name


def function_key(state: State, workspace: str, spec: FunctionSpec) -> str:
    """Returns the id under which a workspace has, or gets, a function of this content.

    It is the content's own id, except where another tenant registered the same content first: tenants never share one.
    """
    plain = spec.function_id
    known = state.functions.get(plain)
    if known is None or known.owner.workspace == workspace:
        return plain
    return f"{plain}-{sha256(workspace.encode()).hexdigest()[:8]}"


def key_name(function: Function, key: str) -> str:
    """Returns the name under which the state keeps an idempotency key."""
    spec = function.spec
    return "\x1f".join((function.owner.workspace, spec.app or spec.module, spec.name, key))


def key_use(state: State, function: Function, key: str, log_ms: int) -> KeyUse | None:
    """Returns what an idempotency key of a function stands for at that time; None where it is not in use, or ""."""
    use = state.keys.get(key_name(function, key)) if key else None
    return use if use is not None and use.until_ms > log_ms else None


def function_of(state: State, function_id: str, workspace: str) -> Function | None:
    """Returns a function when it exists and belongs to the workspace."""
    function = state.functions.get(function_id)
    return function if function is not None and function.owner.workspace == workspace else None
