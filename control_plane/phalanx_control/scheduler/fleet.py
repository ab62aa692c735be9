"""The picture of the cell, kept from one pass to the next and brought up to date: what did not change costs a glance.

What it shows depends on the state alone, never on how it came about; tests compare it with `rooms_of`, made anew.
"""

from __future__ import annotations

from phalanx_control.scheduler.room import Rooms, rooms_of
from phalanx_control.state.model import Gang, MemberState, Node, State
from phalanx_control.state.touched import names_since

_HALF_LIVES = 100
"""After so many the picture is made anew: what it adds up for the past stays exact."""


class _Kept:
    """The last picture of this process, and what it was made of."""

    rooms: Rooms | None = None
    state = State()


def picture_of(state: State) -> Rooms:
    """Returns the picture of every node. Whoever writes on it for good writes what the next state will say."""
    rooms = _Kept.rooms
    if rooms is None or _is_another(state, rooms) or not _has_nodes_of(rooms, state):
        rooms = rooms_of(state)
        rooms.unsure.clear()
    else:
        _bring_up_to_date(rooms, state)
    _Kept.rooms, _Kept.state = rooms, state
    return rooms


def _is_another(state: State, rooms: Rooms) -> bool:
    known = _Kept.state
    age = (state.log_ms - rooms.memory.since_ms) / rooms.memory.half_life_ms
    return (state.fabric, state.policy) != (known.fabric, known.policy) or abs(age) > _HALF_LIVES


def _has_nodes_of(rooms: Rooms, state: State) -> bool:
    same = state.nodes is _Kept.state.nodes
    return same or (len(rooms) == len(state.nodes) and all(node_id in rooms for node_id in state.nodes))


def _bring_up_to_date(rooms: Rooms, state: State) -> None:
    for key in [key for key, found in rooms.candidates.items() if found.guessed]:
        del rooms.candidates[key]
    if state.nodes is not _Kept.state.nodes:
        for node_id, node in state.nodes.items():
            known = rooms[node_id].node
            if known is not node and not _is_same(known, node):
                rooms.renew(node)
            rooms[node_id].node = node
    touched = names_since(state.touched, _Kept.state.touched)
    for gang_id in {**rooms.gangs, **state.gangs} if touched is None else {*touched, *rooms.unsure}:
        _bring_gang(rooms, state, gang_id)
    rooms.unsure.clear()


def _bring_gang(rooms: Rooms, state: State, gang_id: str) -> None:
    gang, known = state.gangs.get(gang_id), rooms.gangs.get(gang_id)
    if gang is None:
        if known is not None:
            rooms.take_out(gang_id)
    elif known is None:
        rooms.put(gang, state.functions[gang.function_id].spec)
    elif known.gang is not gang:
        _look_again(rooms, known.gang, gang, state)


def _is_same(known: Node, node: Node) -> bool:
    return known.info is node.info and known.takes_work is node.takes_work and known.marks == node.marks


def _look_again(rooms: Rooms, known: Gang, gang: Gang, state: State) -> None:
    if [_part(m) for m in known.members] == [_part(m) for m in gang.members]:
        rooms.see(gang)
        return
    rooms.take_out(gang.id)
    rooms.put(gang, state.functions[gang.function_id].spec)


def _part(member: MemberState) -> tuple[object, bool]:
    return member.member, member.ended
