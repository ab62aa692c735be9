"""Which gangs must go so that a waiting one fits: idle ones first, the longest idle leading, then preemptible ones, in
the domain where the least work is lost; and only if that is enough.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from phalanx.core.spec import FunctionSpec
from phalanx.core.states import GangState
from phalanx_control.scheduler.cell_fabric import Area
from phalanx_control.scheduler.fit import Place, candidates_for, find_place
from phalanx_control.scheduler.need import Need, Part
from phalanx_control.scheduler.offers import could_hold, has_room
from phalanx_control.scheduler.room import NodeRoom, Rooms
from phalanx_control.state.model import Gang, MemberState, State

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
        there = _by_node(rooms, victims)
        yield {gang_id: victims[gang_id] for node_id in sorted(nodes) for gang_id in there.get(node_id, ())}
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
    there = _by_node(rooms, costs)
    for count in need.node_counts(len(rooms)):
        part, ranks = need.part(count), need.ranks_on_node(count)
        near = (r for r in _rooms_to_free(imagined, there, count) if r.open and r.id not in imagined.barred)
        able = (room for room in near if need.takes(room.id) and could_hold(room, need, count, part))
        found_on = (_Trial(rooms, need, part, ranks, costs).offer(room, there.get(room.id, ())) for room in able)
        offers = [offer for offer in found_on if offer is not None]
        for area, of_area in _by_area(offers).items():
            if len(of_area) < count or (count > 1 and rank not in (None, area.rank)):
                continue
            cheapest = sorted(of_area, key=lambda offer: (offer.cost, len(offer.gangs), offer.room.at))[:count]
            gangs = tuple(sorted({gang_id for offer in cheapest for gang_id in offer.gangs}))
            key = (sum(costs[gang_id] for gang_id in gangs), area.rank, area.key)
            if gangs and (gangs not in found or key < found[gangs]):  # pyright: ignore[reportOperatorIssue]
                found[gangs] = key
    return sorted(found, key=lambda gangs: found[gangs])  # pyright: ignore[reportArgumentType, reportCallIssue]


def _by_node(rooms: Rooms, costs: Costs) -> dict[str, list[str]]:
    """Returns the gangs that may be ended, by where they are."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for gang_id in costs:
        for member in rooms.gangs[gang_id].gang.members:
            if not member.ended:
                found[member.member.node_id].append(gang_id)
    return found


def _rooms_to_free(imagined: _Imagined, there: Mapping[str, list[str]], count: int) -> list[NodeRoom]:
    """Returns the nodes on which somebody may be ended, and those that have room for a part as they are."""
    rooms = imagined.rooms
    free = candidates_for(imagined.need, rooms, count).names() if imagined.need.gpus else ()
    return sorted((rooms[name] for name in {*there, *free}), key=lambda room: room.at)


def _by_area(offers: Iterable[_Offer]) -> dict[Area, list[_Offer]]:
    found: defaultdict[Area, list[_Offer]] = defaultdict(list)
    for offer in offers:
        for area in offer.room.spot:
            found[area].append(offer)
    return found


@dataclass(frozen=True, slots=True)
class _Trial:
    """Finds whom a part of the gang needs to go on a node: those who give most for the least work."""

    rooms: Rooms
    need: Need
    part: Part
    ranks: int
    costs: Costs

    def offer(self, room: NodeRoom, there: Sequence[str]) -> _Offer | None:
        """``there``: the gangs on the node that may be ended. None where all of them are not enough."""
        if not room.admits(self.need.spec):
            return self._of(room, sorted(there)) if len(there) == room.gangs else None
        if has_room(room, self.need, self.part, self.ranks):
            return _Offer(room, 0.0, ())
        gives = self._gives(room, there)
        able = sorted(there, key=lambda gang_id: (self.costs[gang_id] / max(1, gives[gang_id]), gang_id))
        only_gpus = self.part.gpus and not self.part.cpus and not self.part.memory_gb
        if only_gpus and not any(len(gpu.holders) > 1 for gpu in room.matching(self.part.model)):
            return self._counted(room, [gang_id for gang_id in able if gives[gang_id]], gives)
        return self._tried(room, able)

    def _gives(self, room: NodeRoom, there: Sequence[str]) -> Counter[str]:
        gpus = room.matching(self.part.model) if self.part.gpus or self.part.share else ()
        held = Counter(holder for gpu in gpus if gpu.usable for holder in gpu.holders)
        return Counter({gang_id: held[gang_id] for gang_id in there})

    def _counted(self, room: NodeRoom, able: Sequence[str], gives: Counter[str]) -> _Offer | None:
        missing = self.part.gpus - room.count_free(self.part.model)
        for number, gang_id in enumerate(able, start=1):
            missing -= gives[gang_id]
            if missing <= 0:
                return self._of(room, able[:number])
        return None

    def _tried(self, room: NodeRoom, able: Sequence[str]) -> _Offer | None:
        """Where GPUs are shared, or more than GPUs is asked for: ends one after the other in the node's picture."""
        ended: list[str] = []
        try:
            for gang_id in able:
                self._give_back(room, gang_id)
                ended.append(gang_id)
                if has_room(room, self.need, self.part, self.ranks):
                    return self._of(room, ended)
            return None
        finally:
            for gang_id in ended:
                gang, spec = self.rooms.gangs[gang_id]
                for member in _on(gang, room):
                    room.take(gang, member, spec)

    def _give_back(self, room: NodeRoom, gang_id: str) -> None:
        gang, spec = self.rooms.gangs[gang_id]
        for member in _on(gang, room):
            room.give_back(gang, member, spec)

    def _of(self, room: NodeRoom, gang_ids: Sequence[str]) -> _Offer:
        return _Offer(room, sum(self.costs[each] for each in gang_ids), tuple(gang_ids))


def _on(gang: Gang, room: NodeRoom) -> list[MemberState]:
    return [member for member in gang.members if member.member.node_id == room.id and not member.ended]
