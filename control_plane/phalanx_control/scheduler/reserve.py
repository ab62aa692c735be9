"""Which nodes are kept for a call that has waited long: those that need the fewest ends of other gangs."""

from __future__ import annotations

from itertools import islice

from phalanx_control.scheduler.nearest import can_pick
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import NodeRoom, Rooms, empty_room


def nodes_kept_for(need: Need, rooms: Rooms) -> frozenset[str]:
    """Returns the nodes on which nothing new may start, so that what runs there can only become less.

    Empty when no set of nodes that take work could hold the gang even when they were empty: others would wait for
    nothing.
    """
    usable = [room for room in rooms.values() if room.open and need.takes(room.id)]
    usable.sort(key=lambda room: (-_free(room, need), room.gangs, room.id))
    for count in need.node_counts(len(usable)):
        able = (room.id for room in usable if _could_hold(room, need, count))
        best = frozenset(islice(able, count))
        if len(best) == count:
            return best
    return frozenset()


def _could_hold(room: NodeRoom, need: Need, count: int) -> bool:
    """Says whether the node could take a part of the gang once everything on it has ended."""
    empty, each = empty_room(room.node), need.gpus // count
    if empty.count_free(need.model) < (each or bool(need.share)):
        return False
    return can_pick(empty, need.model, each) and empty.has_room_beside_gpus(need.spec, need.ranks_on_node(count))


def _free(room: NodeRoom, need: Need) -> int:
    return len(room.free(need.model))
