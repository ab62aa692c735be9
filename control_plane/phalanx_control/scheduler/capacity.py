"""Whether the inventory could ever run a function, busy or not, and what it could run instead."""

from __future__ import annotations

from itertools import islice

from phalanx.core.errors import UnschedulableError
from phalanx.core.played import PLAYED, asks_for_played
from phalanx.core.spec import FunctionSpec
from phalanx_control.scheduler.nearest import why_never
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import NodeRoom, empty_room, model_matches
from phalanx_control.scheduler.words import count_gpus
from phalanx_control.state.model import State

_OTHERS = {
    False: f'played ones, which run nothing and take only functions that ask for gpu="{PLAYED}"',
    True: "real ones; `gpuctl topo simulate` starts played ones",
}


def ensure_possible(state: State, spec: FunctionSpec) -> None:
    """Raises UnschedulableError, naming what would be possible, when no set of known nodes could ever hold the gang.

    With no nodes at all everything is possible: the first may still join.
    """
    if not state.nodes or _is_possible(state, Need(spec=spec, workspace="")):
        return
    played = asks_for_played(spec.resources.gpu)
    rooms = [empty_room(state.nodes[node_id]) for node_id in sorted(state.nodes)]
    rooms = [room for room in rooms if room.played == played]
    need = Need(spec=spec, workspace="")
    if need.node and not any(need.takes(room.id) for room in rooms):
        raise UnschedulableError(f"{_asks(spec)}; this cell has no such node")
    raise UnschedulableError(f"{_asks(spec)}; {_offers(rooms, spec)}{_forbidden(rooms, need)}")


def _is_possible(state: State, need: Need) -> bool:
    """Looks at no more nodes than the gang would take where all are alike."""
    for count in need.node_counts(len(state.nodes)):
        able = (True for node in state.nodes.values() if _could_hold(empty_room(node), need, count))
        if sum(islice(able, count)) == count:
            return True
    return False


def _could_hold(room: NodeRoom, need: Need, count: int) -> bool:
    gpus = need.gpus // count or (1 if need.share else 0)
    enough = need.takes(room.id) and len(room.matching(need.model)) >= gpus
    beside = enough and room.has_room_beside_gpus(need.spec, need.ranks_on_node(count))
    return beside and (not need.gpus or not why_never(room, need.model, gpus))


def _forbidden(rooms: list[NodeRoom], need: Need) -> str:
    """Returns why nodes that have enough GPUs can never give them to one gang."""
    counts = tuple(need.node_counts(len(rooms))) if need.gpus else ()
    for count in counts:
        each = need.gpus // count
        asked = [room for room in rooms if need.takes(room.id) and len(room.matching(need.model)) >= each]
        whys = [(room.id, why) for room in asked if (why := why_never(room, need.model, each))]
        if whys:
            more = f" ({len(whys) - 1} more nodes are like that)" if len(whys) > 1 else ""
            return f"; {whys[0][0]} cannot give {count_gpus(each, need.model)} to one gang: {whys[0][1]}{more}"
    return ""


def _asks(spec: FunctionSpec) -> str:
    res = spec.resources
    parts = [count_gpus(res.gpus, res.gpu)] if res.gpus else ["no GPU"]
    if res.cpus:
        parts.append(f"{res.cpus:g} cpus per rank")
    if res.memory_gb:
        parts.append(f"{res.memory_gb:g} GB of memory per rank")
    if res.node:
        parts.append(f"node {res.node}")
    elif res.nodes:
        parts.append(f"{res.nodes} node{'s' if res.nodes > 1 else ''}")
    elif spec.launch == "single":
        parts.append("one node")
    return f"{spec.name} asks for {', '.join(parts)}"


def _offers(rooms: list[NodeRoom], spec: FunctionSpec) -> str:
    if not rooms:
        return f"this cell has no such node, only {_OTHERS[asks_for_played(spec.resources.gpu)]}"
    models = sorted({g.info.model or "unnamed" for room in rooms for g in room.gpus})
    wanted = spec.resources.gpu
    if wanted and not any(model_matches(wanted, model) for model in models):
        return f"this cell has no such GPU, only {', '.join(models) or 'CPUs'}"
    matching = [(len(room.matching(wanted)), room) for room in rooms]
    total = sum(count for count, _ in matching)
    most, best = max(matching, key=lambda m: m[0])
    what = count_gpus(total, wanted)
    cpus = f"at most {best.node.info.cpus} cpus and {best.node.info.memory_bytes / 1e9:.0f} GB on a node"
    nodes = f"{len(rooms)} node{'s' if len(rooms) > 1 else ''}"
    return f"this cell has {what} on {nodes}, at most {most} on one ({best.id}), and {cpus}"
