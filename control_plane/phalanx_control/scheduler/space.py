"""Which idle warm gangs must go so that a waiting gang fits: the longest idle first, and only if that is enough."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from phalanx.core.states import GangState
from phalanx_control.scheduler.fit import Need, find_place
from phalanx_control.scheduler.room import NodeRoom, Rooms
from phalanx_control.state.model import Gang, State


def gangs_to_drain(
    state: State, need: Need, rooms: Rooms, idle_ms: Mapping[str, int], *, barred: frozenset[str]
) -> tuple[Gang, ...] | None:
    """Returns the gangs to let go, none when those that already end are enough, or None when no set is enough."""
    imagined = {node_id: _copy(room) for node_id, room in rooms.items()}
    for gang in state.gangs.values():
        if gang.state is GangState.DRAINING:
            _give_back(state, gang, imagined)
    if find_place(need, imagined, barred=barred) is not None:
        return ()
    chosen: list[Gang] = []
    for gang in _idle(state, need, idle_ms):
        _give_back(state, gang, imagined)
        chosen.append(gang)
        if find_place(need, imagined, barred=barred) is not None:
            return _without_needless(state, need, imagined, chosen, barred)
    return None


def _idle(state: State, need: Need, idle_ms: Mapping[str, int]) -> list[Gang]:
    """Warm gangs with nothing in flight, on nodes that hold GPUs the waiting one could use, the longest idle first."""
    found = [
        g
        for g in state.gangs.values()
        if g.state is GangState.READY and not g.calls and g.id in idle_ms and _could_help(g, need)
    ]
    return sorted(found, key=lambda g: (-idle_ms[g.id], g.fence))


def _could_help(gang: Gang, need: Need) -> bool:
    return any(m.member.gpus for m in gang.members) or not need.spec.resources.gpus


def _without_needless(
    state: State, need: Need, imagined: Rooms, chosen: list[Gang], barred: frozenset[str]
) -> tuple[Gang, ...]:
    """Puts back, the most recently used first, each gang that turns out not to stand in the way."""
    kept = list(chosen)
    for gang in reversed(chosen[:-1]):
        _take(state, gang, imagined)
        if find_place(need, imagined, barred=barred) is not None:
            kept.remove(gang)
        else:
            _give_back(state, gang, imagined)
    return tuple(kept)


def _give_back(state: State, gang: Gang, rooms: Rooms) -> None:
    spec = state.functions[gang.function_id].spec
    for member in gang.members:
        room = rooms.get(member.member.node_id)
        if room is not None and not member.ended:
            room.give_back(gang, member, spec)


def _take(state: State, gang: Gang, rooms: Rooms) -> None:
    spec = state.functions[gang.function_id].spec
    for member in gang.members:
        room = rooms.get(member.member.node_id)
        if room is not None:
            room.take(gang, member, spec)


def _copy(room: NodeRoom) -> NodeRoom:
    twin = copy(room)
    twin.gpus = [copy(gpu) for gpu in room.gpus]
    for gpu in twin.gpus:
        gpu.holders = list(gpu.holders)
        gpu.workspaces = set(gpu.workspaces)
    return twin
