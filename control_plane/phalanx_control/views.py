"""Records of the state as users see them. Pure: state, agents' last reports and price book in, views out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from phalanx.core.messages import Body, ErrorInfo, GangFacts, GpuInfo
from phalanx.core.states import CallState, GpuState
from phalanx.core.views import (
    AttemptView,
    CallView,
    CostView,
    FunctionView,
    GangView,
    GpuView,
    NodeView,
    RankView,
)
from phalanx_control.lifecycle.facts import LiveFacts
from phalanx_control.lifecycle.failures import user_tries
from phalanx_control.metering.book import PriceBook
from phalanx_control.metering.cost import busy_ms, cost_of_call
from phalanx_control.state import blames, queries
from phalanx_control.state.model import App, BodyRef, Call, FunctionStats, Gang, MemberState, Node, Spent, State


def call_view(state: State, call: Call, facts: LiveFacts, book: PriceBook | None = None) -> CallView:
    """Returns one call. Without a book its cost is left out. Inline results are not filled in: only their size is."""
    spec = state.functions[call.function_id].spec
    gang = _gang_of(state, call)
    lead = facts.gangs.get((gang.id, gang.lead)) if gang is not None else None
    paused_ms = lead.paused_ms if lead is not None else 0
    own_gpus = _gpus_of(state, call, gang)
    return CallView(
        call_id=call.id,
        function_id=call.function_id,
        function=queries.function_label(state, call.function_id),
        workspace=call.owner.workspace,
        user=call.owner.user,
        state=call.state.value,
        reason=_stall(call, lead) or call.reason,
        phase="debug" if _debugged(call, lead) else _phase(call, gang),
        attempt=call.attempt,
        fence=call.fence,
        gang_id=gang.id if gang is not None else call.gang_id,
        gpus=own_gpus or spec.resources.gpus,
        world_size=own_gpus if own_gpus and spec.launch == "per_gpu" else spec.world_size,
        direct=call.direct,
        placement=call.placement or (gang.placement if gang is not None else ""),
        submitted_ms=call.submitted_wall_ms,
        started_ms=call.started_wall_ms,
        ended_ms=call.ended_wall_ms,
        busy_ms=busy_ms(state, call, paused_ms=paused_ms) + sum(each.busy_ms for each in call.spent),
        ready_ranks=sum(m.member.ranks for m in gang.members if m.ready) if gang is not None else 0,
        step=lead.step if lead is not None and call.state is CallState.RUNNING else 0,
        queue_position=queries.queue_position(state, call),
        result=_body(call.result),
        error=call.error or ErrorInfo(),
        ranks=tuple(_ranks(state, gang)) if gang is not None else (),
        cost=cost_of_call(state, call, book, paused_ms=paused_ms) if book is not None else CostView(),
        parent=call.parent,
        retries=spec.limits.retries if call.retries is None else call.retries,
        retries_used=user_tries(call),
        deadline_ms=call.submitted_wall_ms + call.deadline_ms - call.submitted_ms if call.deadline_ms else 0,
        idempotency_key=call.key,
        webhook=_webhook(call, archived=call.id not in state.calls),
        earlier=tuple(_attempt(each) for each in call.spent),
    )


def _attempt(spent: Spent) -> AttemptView:
    return AttemptView(
        attempt=spent.attempt,
        gang_id=spent.gang_id,
        busy_ms=spent.busy_ms,
        credited=spent.credited,
        error=spent.error,
    )


def _gpus_of(state: State, call: Call, gang: Gang | None) -> int:
    """Returns how many GPUs an elastic call's gang has or had; 0: not known, or as its function says."""
    if not state.functions[call.function_id].spec.resources.max_gpus:
        return 0
    if gang is not None:
        return sum(len(m.member.gpus) for m in gang.members)
    nodes = state.lease_nodes.get(call.gang_id, ())
    return sum(len(state.ledger[f"{call.gang_id}/{node_id}"].gpus) for node_id in nodes)


def _webhook(call: Call, *, archived: bool) -> str:
    """Whom the call's end is told: the host alone, since the rest of an address may be a secret of its receiver's. Of
    a call that was archived before, it is told no more.
    """
    delivery = call.delivery
    if not call.webhook:
        return ""
    to = "/".join(call.webhook.split("/", 3)[:3]) + "/…"
    if delivery is None:
        return f"{to}, when it has ended"
    tries = f"{delivery.attempts} attempt{'' if delivery.attempts == 1 else 's'}"
    last = delivery.error or (f"answered {delivery.status}" if delivery.status else "")
    if delivery.over:
        return f"{delivery.over} after {tries}: {to}, {last}"
    if archived:
        return f"given up after {tries}: {to}, its call was archived"
    return f"waits to be told to {to}" + (f" again after {tries}, the last one: {last}" if delivery.attempts else "")


def _stall(call: Call, lead: GangFacts | None) -> str:
    shown = call.state is CallState.RUNNING or _debugged(call, lead)
    return lead.stall if lead is not None and shown else ""


def _debugged(call: Call, lead: GangFacts | None) -> bool:
    return lead is not None and lead.debug and (call.state is CallState.RUNNING or call.state.terminal)


def _gang_of(state: State, call: Call) -> Gang | None:
    """Returns the gang that runs a call, is held after its failure, or is made ready for it."""
    if call.state.terminal:
        return queries.held_gang(state, call)
    if call.gang_id:
        return state.gangs.get(call.gang_id)
    starting = (g for g in queries.gangs_of(state, call.function_id, call.owner.workspace) if g.for_call == call.id)
    return next((g for g in starting if g.state in queries.STARTING), None)


def _phase(call: Call, gang: Gang | None) -> str:
    """The gang's word while it comes up, the call's own otherwise."""
    if call.state is CallState.QUEUED and gang is not None:
        return gang.state.value
    return call.state.value


def _body(ref: BodyRef) -> Body:
    return Body(blob=ref.blob, size=ref.size)


def _ranks(state: State, gang: Gang) -> Iterator[RankView]:
    for member in gang.members:
        for local in range(member.member.ranks):
            yield _rank(state, gang, member, local)


def _rank(state: State, gang: Gang, member: MemberState, local: int) -> RankView:
    gpus = member.member.gpus
    gpu = gpus[local] if local < len(gpus) else ""
    node = state.nodes.get(member.member.node_id)
    info = next((g for g in node.info.gpus if g.uuid == gpu), None) if node is not None else None
    return RankView(
        rank=member.member.first_rank + local,
        node_id=member.member.node_id,
        gpu=gpu,
        gpu_index=info.index if info is not None else 0,
        pid=member.pids[local] if local < len(member.pids) else 0,
        state=_member_state(gang, member),
    )


def _member_state(gang: Gang, member: MemberState) -> str:
    if member.ended:
        return "ended"
    if gang.state in queries.STARTING and member.ready:
        return "ready"
    return gang.state.value


def gang_view(state: State, gang: Gang, facts: LiveFacts) -> GangView:
    """Returns one gang, with the lead's last word on its queue."""
    lead = facts.gangs.get((gang.id, gang.lead))
    return GangView(
        gang_id=gang.id,
        function_id=gang.function_id,
        function=queries.function_label(state, gang.function_id),
        state=gang.state.value,
        workspace=gang.owner.workspace,
        user=gang.owner.user,
        world_size=gang.world_size,
        nodes=tuple(m.member.node_id for m in gang.members),
        gpus=tuple(gpu for m in gang.members for gpu in m.member.gpus),
        calls=gang.calls,
        depth=lead.depth if lead is not None else 0,
        in_flight=lead.in_flight if lead is not None else 0,
        idle_ms=lead.idle_ms if lead is not None else 0,
        placement=gang.placement,
        created_ms=gang.created_wall_ms,
    )


def node_view(state: State, node: Node, facts: LiveFacts) -> NodeView:
    """Returns one node, with the state and the holder of each of its GPUs."""
    info = node.info
    on_node = queries.gangs_on(state, info.node_id)
    return NodeView(
        node_id=info.node_id,
        hostname=info.hostname,
        state=node.shown_state.value,
        pool=info.pool,
        agent_version=info.agent_version,
        data_address=info.data_address,
        cpus=info.cpus,
        memory_bytes=info.memory_bytes,
        last_seen_ms=facts.last_seen_ms.get(info.node_id, 0),
        gpus=_gpus(state, node, on_node),
        reason=queries.cordon_in_words(node) or blames.in_words(state, info.node_id, state.log_ms),
        drain_until_ms=node.cordon.deadline_wall_ms if node.cordon is not None else 0,
        gangs=len(on_node),
    )


def _gpus(state: State, node: Node, on_node: tuple[Gang, ...]) -> tuple[GpuView, ...]:
    holders: dict[str, Gang] = {}
    for gang in on_node:
        member = queries.member_on(gang, node.info.node_id)
        for gpu in member.member.gpus if member is not None else ():
            holders.setdefault(gpu, gang)
    ordered = sorted(node.info.gpus, key=lambda g: g.index)
    return tuple(_gpu(state, node, gpu, holders.get(gpu.uuid)) for gpu in ordered)


def _complaint(gpu: GpuInfo) -> str:
    """What the agent says of a GPU that stays in use."""
    if gpu.cordon:
        return f"in use all the same, since a fifth of its pool is quarantined: {gpu.reason}"
    return gpu.reason if gpu.state is GpuState.FREE else ""


def _gpu(state: State, node: Node, gpu: GpuInfo, holder: Gang | None) -> GpuView:
    now, reason = queries.gpu_state(node, gpu.uuid, holder)
    info = replace(gpu, state=now, reason=reason or _complaint(gpu))
    if holder is None:
        return GpuView(info=info)
    label = queries.function_label(state, holder.function_id)
    return GpuView(info=info, gang_id=holder.id, function=label, user=holder.owner.user)


def function_view(state: State, app: App, name: str) -> FunctionView:
    """Returns one deployed function. Raises KeyError for a name that the app does not have."""
    function_id = app.functions[name]
    stats = state.stats.get(function_id, FunctionStats())
    return FunctionView(
        app=app.name,
        name=name,
        version=app.version,
        function_id=function_id,
        deployed_ms=app.deployed_wall_ms,
        calls=stats.logged + stats.direct_succeeded + stats.direct_failed,
    )
