"""Which nodes are kept for the call that stands first and cannot start: in the domain that has them soonest. Pure.

As many nodes as have room first, fewer before more. Where it is not known when gangs end, those nodes are kept that
need the fewest ends.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from phalanx_control.scheduler.cell_fabric import Area, Spot
from phalanx_control.scheduler.need import Need, Part
from phalanx_control.scheduler.offers import NEVER_MS, Offer, ends_ms, offers_of
from phalanx_control.scheduler.room import NodeRoom, Rooms
from phalanx_control.state.model import Gang, State

_BOOKS_KEPT = 32


@dataclass(frozen=True, slots=True)
class Reservation:
    """``at_ms``: the log's time from which on the gang fits at the latest; infinite where nobody knows. ``area``: the
    smallest domain that has all nodes. ``last``: the gang that ends last of those in the way. ``spare``: by node, how
    many GPUs will be free then beyond those that the gang needs.
    """

    spare: Mapping[str, int]
    at_ms: float
    area: Area
    last: Gang | None = None

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that the gang would be on."""
        return frozenset(self.spare)

    @property
    def is_known(self) -> bool:
        """Says whether anybody knows when."""
        return self.at_ms < NEVER_MS


def reservation_for(state: State, need: Need, rooms: Rooms, now_ms: int) -> Reservation | None:
    """Returns the nodes that could hold the gang soonest; None where no set of nodes that take work ever could.

    Others would wait for nothing then. ``state`` is the one that the picture was made of.
    """
    rank = rooms.fabric.rank_of(need.fabric)
    best: tuple[int, _Soonest] | None = None
    for count in need.node_counts(len(rooms)):
        found = _timetable(state, need, rooms, count).soonest(count, rank if count > 1 else None)
        if found is not None and (best is None or found.order[:2] < best[1].order[:2]):
            best = count, found
    if best is None:
        return None
    count, ((at_ms, *_), chosen, area) = best
    last = max(chosen, key=lambda choice: (choice.at_ms, choice.at)).last
    spare = {each.name: _spare(state, need.part(count), rooms, rooms[each.name], at_ms) for each in chosen}
    return Reservation(spare, max(now_ms, at_ms), area, rooms.gangs[last].gang if last else None)


def _spare(state: State, part: Part, rooms: Rooms, room: NodeRoom, at_ms: float) -> int:
    """Returns how many GPUs of a node will be free then that the part leaves; 0 where it needs more than GPUs."""
    if not part.gpus or part.cpus or part.memory_gb or part.joined or part.isolation:
        return 0
    stay = {gang_id for gang_id in room.holders if ends_ms(state, rooms.gangs[gang_id].gang) > at_ms}
    free = sum(gpu.usable and stay.isdisjoint(gpu.holders) for gpu in room.matching(part.model))
    return max(0, free - part.gpus)


class _Choice(NamedTuple):
    """A node's offer. The least is the soonest; of several, the node with the fewest gangs."""

    at_ms: float
    ends: int
    gangs: int
    at: int
    name: str
    last: str
    spot: Spot


class _Soonest(NamedTuple):
    """How good an area is, and which of its nodes."""

    order: tuple[float, int, int, Any]
    chosen: list[_Choice]
    area: Area


def _soonest(area: Area, chosen: list[_Choice]) -> _Soonest:
    return _Soonest((chosen[-1].at_ms, sum(each.ends for each in chosen), area.rank, area.key), chosen, area)


class _Best(NamedTuple):
    """The nodes of each area that has enough, the best first; ``stale``: areas that are to be looked at again."""

    stale: set[Area]
    of: dict[Area, _Soonest]
    in_order: list[_Soonest]

    def renew(self, area: Area, chosen: list[_Choice] | None) -> None:
        known = self.of.pop(area, None)
        if known is not None:
            del self.in_order[bisect_left(self.in_order, known)]
        if chosen is not None:
            found = self.of[area] = _soonest(area, chosen)
            insort(self.in_order, found)


class Timetable:
    """When each node can take a part, the soonest of each area first; made once and then kept in step."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._known: dict[str, _Choice] = {}
        self._by_area: defaultdict[Area, list[_Choice]] = defaultdict(list)
        self._best: dict[int, _Best] = {}
        """By how many nodes are needed."""
        self._seen = -1

    def renew(self, look: Callable[[NodeRoom], Offer | None]) -> None:
        """Looks again at the nodes on which something changed since it did last."""
        changes = self._rooms.ends
        names: Iterable[str] = self._rooms if self._seen < 0 else dict.fromkeys(changes[self._seen :])
        self._seen, is_new = len(changes), self._seen < 0
        for room in map(self._rooms.__getitem__, names):
            self._forget(room)
            offer = look(room)
            if offer is not None:
                order = (offer.at_ms, offer.ends, room.gangs, room.at)
                self._put(_Choice(*order, room.id, offer.last, room.spot), sort=not is_new)
        if is_new:
            for choices in self._by_area.values():
                choices.sort()

    def soonest(self, count: int, rank: int | None) -> _Soonest | None:
        """Returns the best of the areas that have so many nodes; of those of one rank, where it is given."""
        best = self._best.get(count)
        if best is None:
            best = self._best[count] = _Best(set(self._by_area), {}, [])
        for area in best.stale:
            choices = self._by_area[area]
            best.renew(area, choices[:count] if len(choices) >= count else None)
        best.stale.clear()
        return next((each for each in best.in_order if rank in (None, each.area.rank)), None)

    def _put(self, choice: _Choice, *, sort: bool) -> None:
        self._known[choice.name] = choice
        for choices in self._lists_of(choice):
            if sort:
                insort(choices, choice)
            else:
                choices.append(choice)

    def _forget(self, room: NodeRoom) -> None:
        choice = self._known.pop(room.id, None)
        if choice is None:
            return
        for choices in self._lists_of(choice):
            del choices[bisect_left(choices, choice)]

    def _lists_of(self, choice: _Choice) -> Iterator[list[_Choice]]:
        for area in choice.spot:
            for best in self._best.values():
                best.stale.add(area)
            yield self._by_area[area]


def _timetable(state: State, need: Need, rooms: Rooms, count: int) -> Timetable:
    """Returns what is known of the nodes that the gang may be on, as the picture is now."""
    key = need.part(count)
    found = rooms.timetables.pop(key, None) or Timetable(rooms)
    rooms.timetables[key] = found
    if len(rooms.timetables) > _BOOKS_KEPT:
        del rooms.timetables[next(iter(rooms.timetables))]
    found.renew(offers_of(state, need, rooms, count))
    return found
