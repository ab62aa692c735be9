"""Where a gang goes: all of it or nothing. The fewest nodes, near to each other, the same number of GPUs on each.

Gives places on a picture of what is free; decides nothing about who is served first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from phalanx.core.messages import Member
from phalanx.core.played import asks_for_played
from phalanx_control.scheduler.alike import Part, Parts, pick_alike
from phalanx_control.scheduler.candidates import Candidates, Offer
from phalanx_control.scheduler.domains import choose_nodes, most_together
from phalanx_control.scheduler.elastic import sizes
from phalanx_control.scheduler.joined import are_joined, pick_joined
from phalanx_control.scheduler.mix import free_on
from phalanx_control.scheduler.nearest import Picked, can_pick, pick
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.offers import has_room
from phalanx_control.scheduler.room import GpuRoom, NodeRoom, Rooms
from phalanx_control.scheduler.shares import best_node, best_share
from phalanx_control.scheduler.words import placement_words, some_words

_NONE: frozenset[str] = frozenset()
_LEFT_OUT_NAMED = 3
_SIZES_TRIED = 64
"""Of an elastic gang: nearly always the first fits, which was counted before."""
_SIZES_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Members in rank order, and the sentence that says why these."""

    members: tuple[Member, ...]
    sentence: str


def find_place(
    need: Need, rooms: Rooms, *, barred: frozenset[str] = _NONE, avoid: frozenset[str] = _NONE
) -> Place | None:
    """Returns where the gang fits now, leaving out ``barred`` nodes, and those to ``avoid`` where others fit; None when
    it does not.
    """
    if avoid - barred:
        place = find_place(need, rooms, barred=barred | avoid)
        if place is not None:
            left_out = some_words(sorted(avoid - barred), _LEFT_OUT_NAMED)
            return replace(place, sentence=f"{place.sentence}; not where gangs died before: {left_out}")
    if need.most:
        return _elastic_place(need, rooms, barred)
    if need.gpus:
        return _wished_place(need, rooms, barred)
    return _share_place(need, rooms, barred) if need.share else _cpu_place(need, rooms, barred)


def _elastic_place(need: Need, rooms: Rooms, barred: frozenset[str]) -> Place | None:
    """Returns the place with the most GPUs of those that the gang may have."""

    def nodes_with(each: int) -> int:
        candidates = candidates_for(need.sized(each, nodes=1), rooms, 1)
        with candidates.without(barred):
            return most_together(candidates, rooms.fabric.rank_of(need.fabric))

    tried = islice(sizes(need, largest=rooms.largest, nodes_with=nodes_with), _SIZES_TRIED)
    places = (_wished_place(sized, rooms, barred) for sized in tried)
    return next((place for place in places if place is not None), None)


def _wished_place(need: Need, rooms: Rooms, barred: frozenset[str]) -> Place | None:
    wish = need.preferred
    preferred = _whole_place(wish, rooms, barred) if wish is not None else None
    return preferred or _whole_place(need, rooms, barred)


def _whole_place(need: Need, rooms: Rooms, barred: frozenset[str]) -> Place | None:
    counts = need.node_counts(len(rooms))
    for count in reversed(list(counts)) if need.spec.resources.spread else counts:
        if need.gpus // count > rooms.largest:
            continue
        candidates = candidates_for(need, rooms, count)
        with candidates.without(barred):
            placed = _on_some(need, rooms, candidates, count)
        if placed is not None:
            return placed
    return None


def _on_some(need: Need, rooms: Rooms, candidates: Candidates, count: int) -> Place | None:
    """Tries again without the nodes that give no set after all, for as long as there are any."""
    left = len(candidates) + 1
    while count <= len(candidates) < left:
        left = len(candidates)
        placed = _on_nodes(need, rooms, candidates, count)
        if placed is not None:
            return placed
    return None


def candidates_for(need: Need, rooms: Rooms, count: int) -> Candidates:
    """Returns the nodes that can take one of ``count`` equal parts of the gang; the same ones while nothing changes."""
    part, ranks = need.part(count), need.ranks_on_node(count)
    found = rooms.candidates.get(part)
    if found is not None:
        return found.up_to_date()

    def offer(room: NodeRoom) -> int:
        if not room.open or not need.takes(room.id) or not has_room(room, need, part, ranks):
            return 0
        able = pick_joined(room, part.model, part.gpus) if part.joined else can_pick(room, part.model, part.gpus)
        return room.count_free(part.model) if able else 0

    return _kept(rooms, part, offer)


def with_free_gpus(need: Need, rooms: Rooms) -> Candidates:
    """Returns the nodes that have any GPU free that would do, whatever else they lack."""
    model, name = need.model, need.node
    found = rooms.candidates.get((model, name))
    if found is not None:
        return found.up_to_date()
    played = asks_for_played(model.model)

    def offer(room: NodeRoom) -> int:
        fits = room.open and room.played == played and need.takes(room.id)
        return room.count_free(model) if fits else 0

    return _kept(rooms, (model, name), offer)


def _kept(rooms: Rooms, key: object, offer: Offer) -> Candidates:
    if len(rooms.candidates) >= _SIZES_KEPT:
        rooms.candidates.clear()
    found = rooms.candidates[key] = Candidates(rooms, offer)
    return found


def _on_nodes(need: Need, rooms: Rooms, candidates: Candidates, count: int) -> Place | None:
    """Returns the best place; None where a node gives no set after all, which is then no candidate any more."""
    each = need.gpus // count
    choice = None
    if count == 1:
        room = best_node(need, rooms, candidates) or candidates.fullest()
        best = pick_joined if need.fabric == "nvlink" else pick
        parts = Parts((Part(room, best(room, need.model, each)),)) if room is not None else Parts(())
    else:
        choice = choose_nodes(candidates, count, only=rooms.fabric.rank_of(need.fabric))
        parts = pick_alike(choice.portions, need.model, each) if choice is not None else Parts(())
    by_name: dict[str, tuple[NodeRoom, Picked]] = {}
    for part in parts.parts:
        if part.picked is None or (need.fabric == "nvlink" and not are_joined(part.room, part.picked.gpus)):
            candidates.drop(part.room)
            candidates.guessed = True
        else:
            by_name[part.room.id] = (part.room, part.picked)
    if len(by_name) < count:
        return None
    names = rooms.fabric.order(part.room.node for part in parts.parts) if count > 1 else tuple(by_name)
    chosen = [by_name[name] for name in names]
    ranks = need.ranks_on_node(count)
    members = tuple(_member(r, p.gpus, first_rank=at * ranks, ranks=ranks) for at, (r, p) in enumerate(chosen))
    return Place(members=members, sentence=placement_words(need, rooms, chosen, choice, parts.note))


def _share_place(need: Need, rooms: Rooms, barred: frozenset[str]) -> Place | None:
    best = best_share(need, rooms, barred)
    if best is None:
        return None
    room, gpu = best
    beside = f"beside {len(gpu.holders)} more" if gpu.holders else "nobody else on it"
    return Place(
        members=(_member(room, (gpu,), share=need.share),),
        sentence=f"{need.share:g} of GPU {gpu.info.index} on {room.id}, {beside}",
    )


def _cpu_place(need: Need, rooms: Rooms, barred: frozenset[str]) -> Place | None:
    """Whoever says how many cores it takes goes where the fewest GPUs wait for cores; the others are spread."""
    open_ = (room for room in rooms.values() if room.open and room.admits(need.spec))
    usable = (room for room in open_ if room.id not in barred and need.takes(room.id))
    fitting = [room for room in usable if room.has_room_beside_gpus(need.spec, 1)]
    if not fitting:
        return None
    if need.spec.resources.cpus:
        room = min(fitting, key=lambda room: (sum(free_on(room)), room.cpus, room.id))
        return Place(members=(_member(room, ()),), sentence=f"no GPU, on {room.id}, where the fewest GPUs are free")
    room = min(fitting, key=lambda room: (room.cpu_gangs, room.gangs, room.id))
    return Place(members=(_member(room, ()),), sentence=f"no GPU, on {room.id}, the least loaded node")


def _member(
    room: NodeRoom, gpus: Sequence[GpuRoom], *, first_rank: int = 0, ranks: int = 1, share: float = 1
) -> Member:
    return Member(
        node_id=room.id,
        first_rank=first_rank,
        ranks=ranks,
        gpus=tuple(g.info.uuid for g in gpus),
        share=share,
        data_address=room.node.info.data_address,
        fingerprint=room.node.info.fingerprint,
    )
