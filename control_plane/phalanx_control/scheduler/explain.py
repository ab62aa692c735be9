"""Why a call waits, in one sentence that names the nearest miss. Words only; nothing is decided here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from phalanx.core.played import asks_for_played
from phalanx.core.states import NodeState
from phalanx_control.scheduler.candidates import Candidates
from phalanx_control.scheduler.fit import candidates_for, find_place, with_free_gpus
from phalanx_control.scheduler.joined import pick_joined
from phalanx_control.scheduler.nearest import why_none
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import NodeRoom, Rooms, empty_room
from phalanx_control.scheduler.words import asked_gpus, count_nodes, owner_words, some_words
from phalanx_control.state.queries import cordon_in_words

_HOLDERS_NAMED = 3
_CLOSED_NAMED = 2


def why_it_waits(need: Need, rooms: Rooms, *, kept: frozenset[str] = frozenset()) -> str:
    """Returns the sentence for the oldest call of a function that fits nowhere now, ``kept`` nodes left out."""
    played = asks_for_played(need.model.model)
    usable = rooms.played[played]
    shut = [room for room in rooms.shut if room.played == played]
    if need.node:
        usable, shut = ([room for room in some if need.takes(room.id)] for some in (usable, shut))
    if need.node and not usable and not shut:
        return f"waits for node {need.node}"
    if not usable and not shut:
        return f"waits for a first {'played node: `gpuctl topo simulate` starts some' if played else 'node to join'}"
    if not usable:
        return f"no node takes work: {some_words([_closed(room) for room in shut], _CLOSED_NAMED)}"
    asks = asked_gpus(need) if need.gpus or need.share else _cpu_words(need)
    if kept and find_place(need, rooms) is not None:
        return f"needs {asks}, free only where nodes are kept for an older call"
    instead = f"{_cordoned(need, shut)}{_counterfactual(need, rooms, kept)}"
    if need.gpus:
        return f"{_whole(need, rooms, usable)}{instead}"
    return f"needs {asks}; none of {len(usable)} nodes has that free{instead}"


def _counterfactual(need: Need, rooms: Rooms, kept: frozenset[str]) -> str:
    """Names what the function could ask for less to start at once; "" where no single thing would do."""
    res = need.spec.resources
    others: list[tuple[str, Need]] = []
    if need.fabric:
        others.append(("fabric='any'", replace(need, fabric_instead="")))
    if res.isolation:
        spec = replace(need.spec, resources=replace(res, isolation=""))
        others.append(("isolation=None", replace(need, spec=spec)))
    words = [text for text, other in others if find_place(other, rooms, barred=kept) is not None]
    return f"; starts now with {' or '.join(words)}" if words else ""


def _closed(room: NodeRoom) -> str:
    """Says why a node takes no work."""
    why = cordon_in_words(room.node) if room.node.state is NodeState.READY else ""
    return f"{room.id} is {why or room.node.state.value}"


def _cordoned(need: Need, shut: list[NodeRoom]) -> str:
    """Names the nodes that admins took out of use and that have what is asked for free; "" where there are none."""
    taken = [r for r in shut if r.node.cordon is not None and r.node.state is NodeState.READY]
    able = [_closed(room) for room in taken if not need.gpus or room.count_free(need.model)]
    return f"; {some_words(able, _CLOSED_NAMED)}" if able else ""


def _cpu_words(need: Need) -> str:
    return f"a place for a CPU function with {need.spec.resources.cpus:g} cpus"


def _whole(need: Need, rooms: Rooms, usable: list[NodeRoom]) -> str:
    fewest = _fewest(need, rooms, len(usable))
    candidates = candidates_for(need, rooms, fewest)
    asks = f"needs {asked_gpus(need)} on {need.node or count_nodes(fewest)}"
    if need.fabric and len(candidates) >= fewest > 1:
        return f"{asks}; {_apart(candidates, rooms, need, fewest)}"
    if len(candidates):
        asks = f"{asks}; {_too_few(candidates, fewest, need.gpus // fewest)}"
    best = _next_best(need, rooms, candidates) or usable[-1]
    return f"{asks}; {_nearest_miss(rooms, need, best, fewest, 'next node' if len(candidates) else 'best node')}"


def _next_best(need: Need, rooms: Rooms, candidates: Candidates) -> NodeRoom | None:
    """Returns the node with the most free GPUs of those that cannot take a part, or else of all; None: none is free."""
    known = with_free_gpus(need, rooms)
    best = next((room for room in known.emptiest() if room not in candidates), None)
    return best or next(known.emptiest(), None)


def _fewest(need: Need, rooms: Rooms, nodes: int) -> int:
    """Returns the least number of nodes on which the gang could be once all is free, or what it asks for."""
    counts = list(need.node_counts(nodes))
    able = (count for count in counts if need.gpus // count <= rooms.most_of(need.model))
    return next(able, counts[0] if counts else max(1, need.spec.resources.nodes))


def _apart(candidates: Candidates, rooms: Rooms, need: Need, count: int) -> str:
    """There are enough nodes, and not together as they must be."""
    rank = rooms.fabric.rank_of(need.fabric)
    levels = candidates.by_level()
    found = levels[rank].values() if rank is not None and rank < len(levels) else ()
    best = min(found, key=lambda tally: (-tally.nodes, tally.area.key), default=None)
    most = f"{best.area.words} has {best.nodes} of them" if best is not None else "no two of them are known to be"
    return f"{len(candidates)} nodes have {need.gpus // count} free, but not within one domain: {most}"


def _too_few(candidates: Candidates, count: int, each: int) -> str:
    """Says how many nodes could take their part, and how many of them lie together."""
    text = f"{len(candidates)} of {count_nodes(count)} {'has' if len(candidates) == 1 else 'have'} {each} free"
    smallest = next((level for level in candidates.by_level()[:-1] if level), None)
    if smallest is None:
        return text
    best = min(smallest.values(), key=lambda tally: (-tally.nodes, tally.area.key))
    return f"{text}, {best.area.words} has {best.nodes} of them"


def _nearest_miss(rooms: Rooms, need: Need, best: NodeRoom, fewest: int, named: str) -> str:
    each = need.gpus // fewest
    free, total = best.count_free(need.model), len(best.matching(need.model))
    if free >= each:
        if not best.admits(need.spec):
            return f"{best.id} has {free} free of {total}, but {_not_alone(best)}"
        if not best.has_room_beside_gpus(need.spec, need.ranks_on_node(fewest)):
            return f"{best.id} has the GPUs, but not the cpus or memory"
        refusal = why_none(best, need.model, each) or _not_joined(best, need, each)
        if refusal:
            return f"{best.id} has {free} free of {total}, but {refusal}"
    text = f"{named} {best.id} has {free} free of {total}"
    held = _holders(rooms, best, need)
    return f"{text} ({held}){_never(best, need, each)}" if held else text


def _not_alone(best: NodeRoom) -> str:
    """Says who is on a node that one of two gangs wants for itself."""
    if best.isolated:
        return "a gang keeps others off it (isolation='node')"
    gangs = f"{best.gangs} gang{'s are' if best.gangs > 1 else ' is'}"
    return f"{gangs} on it, and isolation='node' wants it empty"


def _not_joined(best: NodeRoom, need: Need, each: int) -> str:
    joined = need.fabric != "nvlink" or pick_joined(best, need.model, each) is not None
    return "" if joined else f"no {each} of them are joined by NVLink"


def _never(best: NodeRoom, need: Need, each: int) -> str:
    """Returns why the node would not do either when everything on it had ended; "" where it would."""
    empty = empty_room(best.node)
    refusal = why_none(empty, need.model, each) if empty.count_free(need.model) >= each else ""
    return f", and empty it would not do either: {refusal}" if refusal else ""


def _holders(rooms: Rooms, room: NodeRoom, need: Need) -> str:
    held: Counter[str] = Counter()
    for gpu in room.matching(need.model):
        if not gpu.usable:
            mark = room.node.marks.get(gpu.info.uuid)
            held[mark.state.value if mark is not None else "unusable"] += 1
        elif gpu.holders:
            held[f"held by {owner_words(rooms.gangs[gpu.holders[0]], need.workspace)}"] += 1
    named = [f"{count} {what}" for what, count in sorted(held.items(), key=lambda h: (-h[1], h[0]))]
    more = len(named) - _HOLDERS_NAMED
    return ", ".join(named[:_HOLDERS_NAMED]) + (f" and {more} more" if more > 0 else "")
