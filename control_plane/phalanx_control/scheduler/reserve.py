"""Which nodes are kept for the call that stands first and cannot start: in the domain that has them soonest. Pure.

When gangs end is known where calls have a timeout or a deadline. Where it is not, those nodes are kept that need the
fewest ends.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, NamedTuple

from phalanx.core.states import GangState
from phalanx_control.scheduler.cell_fabric import Area, Spot
from phalanx_control.scheduler.joined import pick_joined
from phalanx_control.scheduler.nearest import can_pick
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import Held, NodeRoom, Rooms, empty_room
from phalanx_control.state.amounts import Amount
from phalanx_control.state.model import Gang, State

NEVER_MS = math.inf
_BEGIN_MS = 1_000


@dataclass(frozen=True, slots=True)
class Reservation:
    """``at_ms``: the log's time from which on the gang fits at the latest; infinite where nobody knows. ``area``: the
    smallest domain that has all nodes. ``last``: the gang that ends last of those in the way.
    """

    nodes: frozenset[str]
    at_ms: float
    area: Area
    last: Gang | None = None

    @property
    def is_known(self) -> bool:
        """Says whether anybody knows when."""
        return self.at_ms < NEVER_MS


class Offer(NamedTuple):
    """When a node can take a part: ``ends`` gangs have to end before, the last of them is ``last``. Times do not change
    while nothing changes on the node; a node that has room is ready since ever.
    """

    at_ms: float
    ends: int
    last: str = ""


_NOTHING = Amount()
_NEVER = Offer(NEVER_MS, -1)
"""Of a node that could not take a part if it were empty."""


def reservation_for(state: State, need: Need, rooms: Rooms, now_ms: int) -> Reservation | None:
    """Returns the nodes that could hold the gang soonest; None where no set of nodes that take work ever could.

    Others would wait for nothing then. ``state`` is the one that the picture was made of.
    """
    rank = rooms.fabric.rank_of(need.fabric)
    for count in need.node_counts(len(rooms)):
        res, ranks = need.spec.resources, need.ranks_on_node(count)
        key = (need.model, need.gpus // count, need.share, need.workspace if need.share else "", res.cpus * ranks)
        key = (*key, res.memory_gb * ranks, need.fabric == "nvlink", res.isolation)
        by_spot: defaultdict[Spot, list[_Choice]] = defaultdict(list)
        for room in rooms.taking if not need.node else filter(None, [rooms.get(need.node)]):
            offer = room.offers.get(key)
            if offer is None:
                offer = room.offers[key] = _offer(state, need, room, rooms, count)
            if offer is not _NEVER and room.open:
                by_spot[room.spot].append((offer.at_ms, offer.ends, room.gangs, room.at, room, offer.last))
        able = ((area, choices) for area, choices in _by_area(by_spot) if count == 1 or rank in (None, area.rank))
        found = [_soonest(area, choices, count) for area, choices in able if len(choices) >= count]
        if found:
            best = min(found, key=lambda each: each[0])
            at_ms, last = max(now_ms, best[0][0]), best[2]
            return Reservation(best[1], at_ms, best[3], rooms.gangs[last].gang if last else None)
    return None


_Choice = tuple[float, int, int, int, NodeRoom, str]
"""An offer, the soonest first; of several, the node with the fewest gangs."""


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


def _offer(state: State, need: Need, room: NodeRoom, rooms: Rooms, count: int) -> Offer:
    if not could_hold(room, need, count):
        return _NEVER
    if not room.admits(need.spec):
        return _when_empty(state, room, rooms)
    missing, ranks = _missing(need, room, count), need.ranks_on_node(count)
    freed = _NOTHING
    if missing <= 0 and room.has_room_beside_gpus(need.spec, ranks, freed):
        return Offer(-NEVER_MS, 0)
    if not need.spec.resources.gpus:
        return Offer(NEVER_MS, room.gangs)
    gives = Counter(holder for gpu in room.matching(need.model) if gpu.usable for holder in gpu.holders)
    known = (rooms.gangs[gang_id] for gang_id in gives)
    ends = sorted((ends_ms(state, gang), gang.fence, gang.id) for gang, _ in known)
    for number, (at_ms, _, gang_id) in enumerate(ends, start=1):
        missing -= gives[gang_id]
        freed = freed.plus(_beside_gpus(rooms.gangs[gang_id], room))
        if missing <= 0 and room.has_room_beside_gpus(need.spec, ranks, freed):
            return Offer(at_ms, number, gang_id)
    return Offer(NEVER_MS, room.gangs)


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


def _missing(need: Need, room: NodeRoom, count: int) -> int:
    """Returns how many GPUs are not free yet; 1 also for a part of one, or for cores."""
    if need.gpus:
        return need.gpus // count - room.count_free(need.model)
    if need.share:
        return 1 - any(gpu.fits_share(need.share, need.workspace) for gpu in room.matching(need.model))
    return 1 - room.has_room_beside_gpus(need.spec, 1)


def could_hold(room: NodeRoom, need: Need, count: int) -> bool:
    """Says whether the node could take a part of the gang once everything on it has ended."""
    res, ranks = need.spec.resources, need.ranks_on_node(count)
    joined = need.fabric == "nvlink"
    key = (need.model, need.gpus // count, need.share, res.cpus * ranks, res.memory_gb * ranks, joined)
    found = room.could_hold.get(key)
    if found is None:
        found = room.could_hold[key] = _could_hold_empty(room, need, count)
    return found


def _could_hold_empty(room: NodeRoom, need: Need, count: int) -> bool:
    empty, each = empty_room(room.node), need.gpus // count
    if empty.count_free(need.model) < (each or bool(need.share)):
        return False
    joined = need.fabric != "nvlink" or pick_joined(empty, need.model, each) is not None
    return (
        joined
        and can_pick(empty, need.model, each)
        and empty.has_room_beside_gpus(need.spec, need.ranks_on_node(count))
    )


def _by_area(by_spot: Mapping[Spot, list[_Choice]]) -> Iterator[tuple[Area, list[_Choice]]]:
    found: defaultdict[Area, list[_Choice]] = defaultdict(list)
    for spot, choices in by_spot.items():
        for area in spot:
            found[area] += choices
    yield from found.items()


def _soonest(area: Area, choices: list[_Choice], count: int) -> tuple[_Order, frozenset[str], str, Area]:
    """Returns how good the area is, which of its nodes, and who ends last there."""
    chosen = nsmallest(count, choices)
    last = max(chosen, key=lambda choice: (choice[0], choice[3]))
    order = (last[0], sum(choice[1] for choice in chosen), area.rank, area.key)
    return order, frozenset(choice[4].id for choice in chosen), last[5], area


_Order = tuple[float, int, int, Any]
