"""Which nodes are kept for a call that has waited long: those that need the fewest ends of other gangs."""

from __future__ import annotations

from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import NodeRoom, Rooms


def nodes_kept_for(need: Need, rooms: Rooms) -> frozenset[str]:
    """Returns the nodes on which nothing new may start, so that what runs there can only become less.

    Empty when no set of nodes that take work could hold the gang even when they were empty.
    """
    usable = [room for room in rooms.values() if room.open and need.takes(room.id)]
    for count in need.node_counts(len(usable)):
        able = [room for room in usable if _could_hold(room, need, count)]
        if len(able) >= count:
            best = sorted(able, key=lambda room: (-_free(room, need), room.gangs, room.id))[:count]
            return frozenset(room.id for room in best)
    return frozenset()


def _could_hold(room: NodeRoom, need: Need, count: int) -> bool:
    usable = sum(gpu.usable for gpu in room.matching(need.model))
    return usable >= (need.gpus // count if need.gpus else bool(need.share))


def _free(room: NodeRoom, need: Need) -> int:
    return len(room.free(need.model))
