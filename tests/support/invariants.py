"""What must hold of every state that the pure core can reach; ids as in the list of invariants (I1 …)."""

from __future__ import annotations

import json

from immutables import Map

from phalanx.core.states import CallState, GangState
from phalanx.core.webhooks import receiver_of
from phalanx_control.state import events as ev
from phalanx_control.state import ordered, untold
from phalanx_control.state.amounts import standing_of
from phalanx_control.state.apply import apply_batch
from phalanx_control.state.model import State, from_jsonable, to_jsonable
from phalanx_control.state.queries import STARTING, WARM, leases_by_gpu

Entry = tuple[int, int, ev.Events]
"""Sequence number, log_ms, events."""
WITH_GANG = (CallState.ASSIGNED, CallState.RUNNING, CallState.CANCELLING)


def check_state(state: State) -> None:
    """Asserts everything that can be seen in one still picture."""
    check_indexes(state)
    check_one_holder_per_gpu(state)
    check_all_or_nothing(state)
    check_who_is_alone(state)
    check_calls_and_gangs_agree(state)


def check_indexes(state: State) -> None:
    queued = {c.id: standing_of(state, c) for c in state.calls.values() if c.state is CallState.QUEUED}
    assert dict(state.queue) == queued
    assert dict(state.ended) == {c.id: c.ended_ms for c in state.calls.values() if c.state.terminal}
    lines: dict[str, dict[str, list[ordered.Key]]] = {}
    for call_id, ms in queued.items():
        call = state.calls[call_id]
        lines.setdefault(call.function_id, {}).setdefault(call.owner.user, []).append((ms, call_id))
    assert state.lines == Map({f: Map({u: ordered.build(k) for u, k in users.items()}) for f, users in lines.items()})
    live = (c for c in state.calls.values() if c.deadline_ms and not c.state.terminal)
    assert list(ordered.in_order(state.deadlines)) == sorted((c.deadline_ms, c.id) for c in live)
    assert list(ordered.in_order(state.keys_line)) == sorted((use.until_ms, name) for name, use in state.keys.items())
    assert list(ordered.in_order(state.ended_line)) == sorted((ms, c) for c, ms in state.ended.items())
    told = ((c.webhook, c.delivery, c.id) for c in state.calls.values() if c.delivery and not c.delivery.over)
    assert state.untold == untold.build((receiver_of(url), (d.next_wall_ms, call_id)) for url, d, call_id in told)


def check_one_holder_per_gpu(state: State) -> None:
    """I4: one whole lease, or fractions of one tenant that add up to one at most."""
    for key, held in leases_by_gpu(state).items():
        assert sum(lease.share for lease in held) <= 1 + 1e-9, key
        assert len(held) == 1 or len({lease.workspace for lease in held}) == 1, key


def check_who_is_alone(state: State) -> None:
    """Nobody is beside a gang that has its nodes for itself; elastic gangs are as large as they may be at most."""
    on: dict[str, list[str]] = {}
    for gang in state.gangs.values():
        asked = state.functions[gang.function_id].spec.resources
        for member in gang.members:
            if not member.ended:
                on.setdefault(member.member.node_id, []).append(asked.isolation)
        if asked.max_gpus:
            gpus = [len(member.member.gpus) for member in gang.members]
            assert asked.gpus <= sum(gpus) <= asked.max_gpus, gang.id
            assert len({*gpus}) == 1, gang.id
    assert all(len(asked) == 1 or "node" not in asked for asked in on.values())


def check_all_or_nothing(state: State) -> None:
    """I6: nobody is started before all are prepared, nobody used before all are ready."""
    fences = [g.fence for g in state.gangs.values()]
    assert len(set(fences)) == len(fences)
    for gang in state.gangs.values():
        if gang.state in (GangState.STARTING, *WARM):
            assert all(m.prepared for m in gang.members), gang.id
        if gang.state in WARM:
            assert all(m.ready and not m.ended for m in gang.members), gang.id
        if gang.state in STARTING:
            assert not gang.calls, gang.id
        assert gang.fence < state.next_fence


def check_calls_and_gangs_agree(state: State) -> None:
    """I3: a call that holds a fence is with exactly one gang."""
    holders: dict[str, str] = {}
    for gang in state.gangs.values():
        for call_id in gang.calls:
            assert call_id not in holders, call_id
            holders[call_id] = gang.id
    running = {c.id: c.gang_id for c in state.calls.values() if c.state in WITH_GANG}
    assert running == holders


def check_history(history: list[Entry], state: State) -> None:
    """I22, with each batch repeated and through both encodings; I3: fences of a call rise."""
    folded = State()
    fences: dict[str, int] = {}
    for seq, log_ms, batch in history:
        decoded = ev.decode(ev.encode(batch))
        assert decoded == batch
        for _ in range(2):
            if seq > folded.seq:
                folded = apply_batch(folded, seq=seq, log_ms=log_ms, events=decoded)
        for event in batch:
            if isinstance(event, ev.CallAssigned):
                assert event.fence > fences.get(event.call_id, 0)
                fences[event.call_id] = event.fence
    assert folded == state
    assert from_jsonable(json.loads(json.dumps(to_jsonable(state)))) == state
