"""Which gangs must go so that a waiting one fits: idle ones first, the longest idle leading, then preemptible ones, in
the domain where the least work is lost; and only if that is enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest

from phalanx.core.spec import FunctionSpec
from phalanx.core.states import GangState
from phalanx_control.scheduler.cell_fabric import Area
from phalanx_control.scheduler.fit import Place, candidates_for, find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.offers import could_hold
from phalanx_control.scheduler.room import NodeRoom, Rooms
from phalanx_control.state.model import Gang, State

MOST_TRIED = 256
"""Idle gangs that are considered at most: a pass must stay short in a cell of thousands."""
_PLANS_TRIED = 4
_VICTIMS_TRIED = 256
Costs = Mapping[str, float]
"""Gangs that may be ended → GPU milliseconds of work that are lost with each."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Gangs to let go, none where those that already end are enough, and the nodes on which there is room then."""

    gangs: tuple[Gang, ...]
    nodes: frozenset[str]


def room_after(
    state: State,
    need: Need,
    rooms: Rooms,
    idle_ms: Mapping[str, int],
    *,
    barred: frozenset[str],
    victims: Costs | None = None,
    thorough: bool = True,
) -> Leaving | None:
    """Returns who has to leave; None when no set is enough. Unless ``thorough``, of many victims those on the nodes of
    the cheapest are looked at, and that may miss one.

    ``rooms`` is written on in between and is left as it was.
    """
    imagined = _Imagined(need, rooms, barred)
    try:
        imagined.end(state.gangs[gang_id] for gang_id in [*rooms.draining])
        place = imagined.place() if imagined.ended else None  # as it is, it was tried already
        if place is not None:
            return Leaving((), _nodes(place))
        idle = _idle(state, need, idle_ms)
        chosen = _enough(imagined, idle)
        for some in _narrow_first(victims, rooms, need, thorough=thorough) if chosen is None and victims else ():
            chosen = chosen or _in_the_cheapest_domain(state, imagined, {**some, **{gang.id: 0.0 for gang in idle}})
        if chosen is None:
            return None
        place = imagined.place()
        assert place is not None
        return Leaving(tuple(chosen), _nodes(place))
    finally:
        imagined.undo()


def fits_without(need: Need, rooms: Rooms, gangs: Iterable[Gang], *, barred: frozenset[str]) -> frozenset[str] | None:
    """Returns the nodes on which there is room once these gangs have ended; None where there is none."""
    imagined = _Imagined(need, rooms, barred)
    try:
        imagined.end(gangs)
        place = imagined.place()
        return _nodes(place) if place is not None else None
    finally:
        imagined.undo()


def _nodes(place: Place) -> frozenset[str]:
    return frozenset(member.node_id for member in place.members)


@dataclass(slots=True)
class _Imagined:
    """The picture without gangs that are imagined to have ended."""

    need: Need
    rooms: Rooms
    barred: frozenset[str]
    ended: dict[str, tuple[Gang, FunctionSpec]] = field(default_factory=dict[str, tuple[Gang, FunctionSpec]])

    def place(self) -> Place | None:
        return find_place(self.need, self.rooms, barred=self.barred)

    def fits(self) -> bool:
        return self.place() is not None

    def end(self, gangs: Iterable[Gang]) -> None:
        for gang in gangs:
            held = self.rooms.gangs[gang.id]
            self.rooms.take_out(gang.id)
            self.ended[gang.id] = (held.gang, held.spec)

    def revive(self, gang: Gang) -> None:
        self.rooms.put(*self.ended.pop(gang.id))

    def undo(self) -> None:
        for gang, spec in self.ended.values():
            self.rooms.put(gang, spec)
        self.ended.clear()


def _enough(imagined: _Imagined, gangs: list[Gang]) -> list[Gang] | None:
    """Ends one after the other until the waiting gang fits, then revives each that was not in the way; all where that
    is not enough.
    """
    chosen: list[Gang] = []
    for gang in gangs:
        imagined.end((gang,))
        chosen.append(gang)
        if imagined.fits():
            break
    else:
        for gang in chosen:
            imagined.revive(gang)
        return None
    return _spared(imagined, chosen)


def _spared(imagined: _Imagined, chosen: list[Gang]) -> list[Gang]:
    """Revives, the last first, all gangs without which there is room as well."""
    needed = list(chosen)
    for gang in reversed(chosen):
        imagined.revive(gang)
        if imagined.fits():
            needed.remove(gang)
        else:
            imagined.end((gang,))
    return needed


def _idle(state: State, need: Need, idle_ms: Mapping[str, int]) -> list[Gang]:
    """Warm gangs with nothing in flight that hold what the waiting one could use, the longest idle first."""
    known = (state.gangs[gang_id] for gang_id in idle_ms if gang_id in state.gangs)
    found = [g for g in known if g.state is GangState.READY and not g.calls and _could_help(g, need)]
    return sorted(found, key=lambda g: (-idle_ms[g.id], g.fence))[:MOST_TRIED]


def _could_help(gang: Gang, need: Need) -> bool:
    return any(m.member.gpus for m in gang.members) or not need.spec.resources.gpus


# ---- preemption ----


def _narrow_first(victims: Costs, rooms: Rooms, need: Need, *, thorough: bool) -> Iterator[Costs]:
    """Yields the victims on the nodes of the cheapest, and then all of them."""
    few = max(_VICTIMS_TRIED, need.gpus)
    if len(victims) > few:
        cheapest = nsmallest(few, victims, key=lambda gang_id: (victims[gang_id], gang_id))
        nodes = {member.member.node_id for gang_id in cheapest for member in rooms.gangs[gang_id].gang.members}
        beside = {gang_id for node_id in nodes for gang_id in rooms[node_id].holders}
        yield {gang_id: victims[gang_id] for gang_id in beside if gang_id in victims}
    if thorough or len(victims) <= few:
        yield victims


@dataclass(frozen=True, slots=True)
class _Offer:
    """What it costs to have room for a part of the gang on a node."""

    room: NodeRoom
    cost: float
    gangs: tuple[str, ...]


def _in_the_cheapest_domain(state: State, imagined: _Imagined, costs: Costs) -> list[Gang] | None:
    """Ends the gangs of the domain in which the least work is lost, dear ones spared where they can be."""
    for gang_ids in _plans(imagined, costs)[:_PLANS_TRIED]:
        gangs = [state.gangs[gang_id] for gang_id in gang_ids]
        imagined.end(gangs)
        if imagined.fits():
            return _spared(imagined, sorted(gangs, key=lambda gang: (costs[gang.id], gang.fence)))
        for gang in gangs:
            imagined.revive(gang)
    return None


def _plans(imagined: _Imagined, costs: Costs) -> list[tuple[str, ...]]:
    """Returns sets of gangs that may be enough, the cheapest first."""
    need, rooms = imagined.need, imagined.rooms
    rank = rooms.fabric.rank_of(need.fabric)
    found: dict[tuple[str, ...], tuple[float, int, object]] = {}
    for count in need.node_counts(len(rooms)):
        each = need.gpus // count
        near = _rooms_to_free(imagined, costs, count)
        open_rooms = (r for r in near if r.open and r.id not in imagined.barred and need.takes(r.id))
        open_rooms = (room for room in open_rooms if could_hold(room, need, count))
        offers = [offer for room in open_rooms if (offer := _offer(room, need, each, costs)) is not None]
        for area, of_area in _by_area(offers).items():
            if len(of_area) < count or (count > 1 and rank not in (None, area.rank)):
                continue
            cheapest = sorted(of_area, key=lambda offer: (offer.cost, len(offer.gangs), offer.room.at))[:count]
            gangs = tuple(sorted({gang_id for offer in cheapest for gang_id in offer.gangs}))
            key = (sum(costs[gang_id] for gang_id in gangs), area.rank, area.key)
            if gangs and (gangs not in found or key < found[gangs]):  # pyright: ignore[reportOperatorIssue]
                found[gangs] = key
    return sorted(found, key=lambda gangs: found[gangs])  # pyright: ignore[reportArgumentType, reportCallIssue]


def _rooms_to_free(imagined: _Imagined, costs: Costs, count: int) -> list[NodeRoom]:
    """Returns the nodes on which somebody may be ended, and those that have room for a part as they are."""
    rooms = imagined.rooms
    held = (member.member.node_id for gang_id in costs for member in rooms.gangs[gang_id].gang.members)
    names = dict.fromkeys(held) if imagined.need.gpus else dict.fromkeys(rooms)
    if imagined.need.gpus:
        names |= dict.fromkeys(candidates_for(imagined.need, rooms, count).names())
    return sorted((rooms[name] for name in names), key=lambda room: room.at)


def _by_area(offers: Iterable[_Offer]) -> dict[Area, list[_Offer]]:
    found: defaultdict[Area, list[_Offer]] = defaultdict(list)
    for offer in offers:
        for area in offer.room.spot:
            found[area].append(offer)
    return found


def _offer(room: NodeRoom, need: Need, each: int, costs: Costs) -> _Offer | None:
    """Returns the gangs of the node whose end gives the most GPUs for the least work; None where all are not enough."""
    if not room.admits(need.spec):
        return _emptied(room, costs)
    missing = (each - room.count_free(need.model)) if each else 1
    if missing <= 0:
        return _Offer(room, 0.0, ())
    gives: defaultdict[str, int] = defaultdict(int)
    for gpu in room.matching(need.model) if need.spec.resources.gpus else ():
        if gpu.usable and len(gpu.holders) == 1:
            gives[gpu.holders[0]] += 1
    able = sorted((costs[gang_id] / count, gang_id) for gang_id, count in gives.items() if gang_id in costs)
    chosen: list[str] = []
    for _, gang_id in able:
        chosen.append(gang_id)
        missing -= gives[gang_id]
        if missing <= 0:
            return _Offer(room, sum(costs[each] for each in chosen), tuple(chosen))
    return None


def _emptied(room: NodeRoom, costs: Costs) -> _Offer | None:
    """Returns all gangs of a node that one of the two wants for itself; None where one of them may not be ended."""
    gangs = sorted(room.holders)
    if len(gangs) < room.gangs or any(gang_id not in costs for gang_id in gangs):
        return None
    return _Offer(room, sum(costs[gang_id] for gang_id in gangs), tuple(gangs))
