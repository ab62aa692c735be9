"""Why a call waits, in one sentence that names the nearest miss. Words only; nothing is decided here."""

from __future__ import annotations

from collections import Counter

from phalanx_control.scheduler.fit import Need, count_gpus
from phalanx_control.scheduler.room import NodeRoom, Rooms
from phalanx_control.state.model import Gang, State

_HOLDERS_NAMED = 3


def why_it_waits(state: State, need: Need, rooms: Rooms) -> str:
    """Returns the sentence for the oldest call of a function that fits nowhere now."""
    if not rooms:
        return "waits for a first node to join"
    usable = [room for room in rooms.values() if room.open]
    if not usable:
        states = ", ".join(sorted(f"{room.id} is {room.node.state.value}" for room in rooms.values()))
        return f"no node takes work: {states}"
    if need.gpus:
        return _whole(state, need, usable)
    asks = count_gpus(need.share, need.model) if need.share else _cpu_words(need)
    return f"needs {asks}; none of {len(usable)} nodes has that free"


def _cpu_words(need: Need) -> str:
    return f"a place for a CPU function with {need.spec.resources.cpus:g} cpus"


def _whole(state: State, need: Need, usable: list[NodeRoom]) -> str:
    counts = list(need.node_counts(len(usable)))
    fewest = counts[0] if counts else max(1, need.spec.resources.nodes)
    each = need.gpus // fewest
    best = max(usable, key=lambda room: (len(room.free(need.model)), room.id))
    free, total = len(best.free(need.model)), len(best.matching(need.model))
    asks = f"needs {count_gpus(need.gpus, need.model)} on {fewest} node{'s' if fewest > 1 else ''}"
    if free >= each and not best.has_room_beside_gpus(need.spec, need.ranks_on_node(fewest)):
        return f"{asks}; {best.id} has the GPUs, but not the cpus or memory"
    text = f"{asks}; best node {best.id} has {free} free of {total}"
    held = _holders(state, best, need)
    return f"{text} ({held})" if held else text


def _holders(state: State, room: NodeRoom, need: Need) -> str:
    held: Counter[str] = Counter()
    for gpu in room.matching(need.model):
        if not gpu.usable:
            mark = room.node.marks.get(gpu.info.uuid)
            held[mark.state.value if mark is not None else "unusable"] += 1
        elif gpu.holders:
            gang = state.gangs.get(gpu.holders[0])
            held[f"held by {_owner(state, gang)}" if gang is not None else "held"] += 1
    named = [f"{count} {what}" for what, count in sorted(held.items(), key=lambda h: (-h[1], h[0]))]
    more = len(named) - _HOLDERS_NAMED
    return ", ".join(named[:_HOLDERS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _owner(state: State, gang: Gang) -> str:
    name = state.functions[gang.function_id].spec.name
    return f"{name} of {gang.owner.user}" if gang.owner.user else name
