"""Which nodes are kept for the call that stands first and cannot start: in the domain that has them soonest. Pure.

When gangs end is known where calls have a timeout or a deadline. Where it is not, those nodes are kept that need the
fewest ends.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.core.states import CallState, GangState
from phalanx_control.scheduler.cell_fabric import Area
from phalanx_control.scheduler.nearest import can_pick
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import NodeRoom, Rooms, empty_room
from phalanx_control.state.model import Gang, State

NEVER_MS = math.inf
START_MS = 10_000
"""How long a gang takes to start, at most, where it is asked whether its call would end in time."""


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


@dataclass(frozen=True, slots=True)
class _Offer:
    """When a node can take a part: ``ends`` gangs have to end before, the last of them is ``last``."""

    room: NodeRoom
    at_ms: float
    ends: int
    last: Gang | None

    @property
    def soonest_first(self) -> tuple[float, int, int, int]:
        return self.at_ms, self.ends, self.room.gangs, self.room.at


def reservation_for(state: State, need: Need, rooms: Rooms, now_ms: int) -> Reservation | None:
    """Returns the nodes that could hold the gang soonest; None where no set of nodes that take work ever could.

    Others would wait for nothing then.
    """
    for count in need.node_counts(len(rooms)):
        ends = _Ends(state, rooms, now_ms)
        offers = [o for room in rooms.values() if (o := _offer(need, room, count, ends)) is not None]
        found = [_soonest(area, of_area, count) for area, of_area in _by_area(offers) if len(of_area) >= count]
        if found:
            return min(found, key=_best_first)[1]
    return None


def ends_ms(state: State, gang: Gang, now_ms: int) -> float:
    """Returns when a gang has ended at the latest, for all that is known; infinite where nothing is."""
    grace_ms = state.functions[gang.function_id].spec.limits.grace_s * 1000
    if gang.state is GangState.DRAINING and not gang.calls:
        return now_ms + grace_ms
    calls = [state.calls[call_id] for call_id in gang.calls]
    if not calls or any(not call.timeout_ms and not call.deadline_ms for call in calls):
        return NEVER_MS
    at: float = now_ms
    for call in calls:  # one after the other
        began = call.started_ms if call.state is CallState.RUNNING else at
        limits = [began + call.timeout_ms] if call.timeout_ms else []
        at = max(at, min([*limits, *([call.deadline_ms] if call.deadline_ms else [])]))
    return at + grace_ms


class _Ends:
    """When each gang of a picture has ended, asked once."""

    def __init__(self, state: State, rooms: Rooms, now_ms: int) -> None:
        self.now_ms = now_ms
        self._state = state
        self._rooms = rooms
        self._known: dict[str, tuple[float, int, Gang]] = {}

    def of(self, gang_id: str) -> tuple[float, int, Gang]:
        found = self._known.get(gang_id)
        if found is None:
            gang = self._state.gangs.get(gang_id) or self._rooms.gangs[gang_id].gang
            found = self._known[gang_id] = ends_ms(self._state, gang, self.now_ms), gang.fence, gang
        return found


def _offer(need: Need, room: NodeRoom, count: int, ends: _Ends) -> _Offer | None:
    if not room.open or not need.takes(room.id) or not _could_hold(room, need, count):
        return None
    missing = _missing(need, room, count)
    if missing <= 0:
        return _Offer(room, ends.now_ms, 0, None)
    if not need.spec.resources.gpus:
        return _Offer(room, NEVER_MS, room.gangs, None)
    gives = Counter(holder for gpu in room.matching(need.model) if gpu.usable for holder in gpu.holders)
    for number, end in enumerate(sorted(map(ends.of, gives), key=lambda end: end[:2]), start=1):
        missing -= gives[end[2].id]
        if missing <= 0:
            return _Offer(room, end[0], number, end[2])
    return None


def _missing(need: Need, room: NodeRoom, count: int) -> int:
    """Returns how many GPUs are not free yet; 1 also for a part of one, or for cores."""
    if need.gpus:
        return need.gpus // count - room.count_free(need.model)
    if need.share:
        return 1 - any(gpu.fits_share(need.share, need.workspace) for gpu in room.matching(need.model))
    return 1 - room.has_room_beside_gpus(need.spec, 1)


def _could_hold(room: NodeRoom, need: Need, count: int) -> bool:
    """Says whether the node could take a part of the gang once everything on it has ended."""
    empty, each = empty_room(room.node), need.gpus // count
    if empty.count_free(need.model) < (each or bool(need.share)):
        return False
    return can_pick(empty, need.model, each) and empty.has_room_beside_gpus(need.spec, need.ranks_on_node(count))


def _by_area(offers: Iterable[_Offer]) -> list[tuple[Area, list[_Offer]]]:
    found: defaultdict[Area, list[_Offer]] = defaultdict(list)
    for offer in offers:
        for area in offer.room.spot:
            found[area].append(offer)
    return list(found.items())


def _soonest(area: Area, offers: list[_Offer], count: int) -> tuple[int, Reservation]:
    """Returns how many gangs must end, and the reservation."""
    chosen = sorted(offers, key=lambda offer: offer.soonest_first)[:count]
    last = max(chosen, key=lambda offer: (offer.at_ms, offer.room.at))
    nodes = frozenset(offer.room.id for offer in chosen)
    return sum(offer.ends for offer in chosen), Reservation(nodes, last.at_ms, area, last.last)


def _best_first(found: tuple[int, Reservation]) -> tuple[object, ...]:
    ends, reservation = found
    return reservation.at_ms, ends, reservation.area.rank, reservation.area.key
