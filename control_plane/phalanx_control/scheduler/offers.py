"""When a node can take a part of a gang, for all that is known of those that hold it. Pure.

When gangs end is known where calls have a timeout or a deadline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from phalanx.core.states import GangState
from phalanx_control.scheduler.joined import pick_joined
from phalanx_control.scheduler.nearest import can_pick
from phalanx_control.scheduler.need import Need, Part
from phalanx_control.scheduler.room import Held, NodeRoom, Rooms
from phalanx_control.state.amounts import Amount
from phalanx_control.state.model import Gang, State

NEVER_MS = math.inf
_BEGIN_MS = 1_000


class Offer(NamedTuple):
    """When a node can take a part: ``ends`` gangs have to end before, the last of them is ``last``. A node that has
    room is ready since ever, so that times change only when something does on the node.
    """

    at_ms: float
    ends: int
    last: str = ""


_NOTHING = Amount()


def ends_ms(state: State, gang: Gang) -> float:
    """Returns when a gang has ended at the latest, for all that is known; infinite where nothing is.

    Its calls count from when the gang was given them, with a second for their start.
    """
    grace_ms = state.functions[gang.function_id].spec.limits.grace_s * 1000
    if gang.state is GangState.DRAINING and not gang.calls:
        return gang.state_since_ms + grace_ms
    at = 0.0 if gang.calls else NEVER_MS
    for call in (state.calls[call_id] for call_id in gang.calls):  # one after the other
        limit = max(at, call.assigned_ms) + _BEGIN_MS + call.timeout_ms if call.timeout_ms else NEVER_MS
        at = min(limit, call.deadline_ms or NEVER_MS)
    return at + grace_ms


def offers_of(state: State, need: Need, rooms: Rooms, count: int) -> Callable[[NodeRoom], Offer | None]:
    """Returns what says when a node has room for one of ``count`` parts; None: not even when all on it has ended."""
    part, ranks = need.part(count), need.ranks_on_node(count)

    def look(room: NodeRoom) -> Offer | None:
        if not room.open or not need.takes(room.id) or not could_hold(room, need, count, part):
            return None
        if not room.admits(need.spec):
            return _when_empty(state, room, rooms)
        if has_room(room, need, part, ranks):
            return Offer(-NEVER_MS, 0)
        if not part.gpus and not part.share:
            return Offer(NEVER_MS, room.gangs)
        missing, freed = part.gpus - room.count_free(part.model) if part.gpus else 1, _NOTHING
        gives = Counter(holder for gpu in room.matching(part.model) if gpu.usable for holder in gpu.holders)
        known = (rooms.gangs[gang_id] for gang_id in gives)
        ends = sorted((ends_ms(state, gang), gang.fence, gang.id) for gang, _ in known)
        for number, (at_ms, _, gang_id) in enumerate(ends, start=1):
            missing -= gives[gang_id]
            freed = freed.plus(_beside_gpus(rooms.gangs[gang_id], room))
            if missing <= 0 and room.has_room_beside_gpus(need.spec, ranks, freed):
                return Offer(at_ms, number, gang_id)
        return Offer(NEVER_MS, room.gangs)

    return look


def _beside_gpus(held: Held, room: NodeRoom) -> Amount:
    """Returns the cores and the memory that a gang holds on a node."""
    ranks = sum(each.member.ranks for each in held.gang.members if each.member.node_id == room.id)
    return Amount(cpus=held.spec.resources.cpus * ranks, memory_gb=held.spec.resources.memory_gb * ranks)


def _when_empty(state: State, room: NodeRoom, rooms: Rooms) -> Offer:
    """Of a node that one of the two wants for itself: when all that is there has ended."""
    known = [rooms.gangs[gang_id].gang for gang_id in room.holders]
    if len(known) < room.gangs:
        return Offer(NEVER_MS, room.gangs)
    at_ms, _, last = max((ends_ms(state, gang), gang.fence, gang.id) for gang in known)
    return Offer(at_ms, len(known), last)


def has_room(room: NodeRoom, need: Need, part: Part, ranks: int) -> bool:
    """Says whether the node has what a part needs, as it is; which of its GPUs go together is another question."""
    if not room.admits(need.spec) or not room.has_room_beside_gpus(need.spec, ranks):
        return False
    if part.share:
        return any(gpu.fits_share(part.share, part.tenant) for gpu in room.matching(part.model))
    return room.count_free(part.model) >= part.gpus


def could_hold(room: NodeRoom, need: Need, count: int, part: Part | None = None) -> bool:
    """Says whether the node could take a part of the gang once everything on it has ended."""
    part = part or need.part(count)
    found = room.could_hold.get(part)
    if found is None:
        found = room.could_hold[part] = _could_hold_empty(room.emptied(), need, part, need.ranks_on_node(count))
    return found


def _could_hold_empty(empty: NodeRoom, need: Need, part: Part, ranks: int) -> bool:
    if empty.count_free(part.model) < (part.gpus or bool(part.share)):
        return False
    joined = not part.joined or pick_joined(empty, part.model, part.gpus) is not None
    return joined and can_pick(empty, part.model, part.gpus) and empty.has_room_beside_gpus(need.spec, ranks)
