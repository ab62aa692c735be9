"""Whether the inventory could ever run a function, busy or not, and what it could run instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from phalanx.core.errors import UnschedulableError
from phalanx.core.played import PLAYED, asks_for_played
from phalanx.core.spec import FunctionSpec
from phalanx_control.scheduler.cell_fabric import Area, CellFabric, cell_fabric
from phalanx_control.scheduler.elastic import sizes
from phalanx_control.scheduler.joined import largest_joined, pick_joined
from phalanx_control.scheduler.kinds import model_matches
from phalanx_control.scheduler.nearest import why_never
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import NodeRoom, empty_room
from phalanx_control.scheduler.words import count_gpus, count_nodes
from phalanx_control.state.model import Node, State

_OTHERS = {
    False: f'played ones, which run nothing and take only functions that ask for gpu="{PLAYED}"',
    True: "real ones; `gpuctl topo simulate` starts played ones",
}


def ensure_possible(state: State, spec: FunctionSpec) -> None:
    """Raises UnschedulableError, naming what would be possible, when no set of known nodes could ever hold the gang.

    With no nodes at all everything is possible: the first may still join.
    """
    need = Need(spec=spec, workspace="")
    if not state.nodes or _is_possible(state, need):
        return
    played = asks_for_played(spec.resources.gpu)
    rooms = [empty_room(state.nodes[node_id]) for node_id in sorted(state.nodes)]
    rooms = [room for room in rooms if room.played == played]
    if need.node and not any(need.takes(room.id) for room in rooms):
        raise UnschedulableError(f"{_asks(spec)}; this cell has no such node")
    if need.fabric and _is_possible(state, replace(need, fabric_instead="")):
        without = f"it could run with fabric='any', or prefer_fabric={need.fabric!r}"
        raise UnschedulableError(f"{_asks(spec)}; {_fabric_lacks(state, rooms, need)}; {without}")
    raise UnschedulableError(f"{_asks(spec)}; {_offers(rooms, spec)}{_forbidden(rooms, need)}")


def _is_possible(state: State, need: Need) -> bool:
    """Looks at no more nodes than the gang would take where all are alike."""
    if need.most:
        least = replace(need, total=need.least)
        return _is_possible(state, least) or _is_possible_in_some_size(state, need)
    fabric = cell_fabric(state.fabric)
    rank = fabric.rank_of(need.fabric)
    for count in need.node_counts(len(state.nodes)):
        able = (node for node in state.nodes.values() if _could_hold(empty_room(node), need, count))
        if count == 1 or rank is None:
            if sum(1 for _ in islice(able, count)) == count:
                return True
        elif max(_together(fabric, able, rank).values(), default=0) >= count:
            return True
    return False


def _is_possible_in_some_size(state: State, need: Need) -> bool:
    fabric = cell_fabric(state.fabric)
    rank = fabric.rank_of(need.fabric)
    rooms = [empty_room(node) for node in state.nodes.values()]

    def nodes_with(each: int) -> int:
        able = [room.node for room in rooms if _could_hold(room, need.sized(each, nodes=1), 1)]
        return len(able) if rank is None else max(_together(fabric, able, rank).values(), default=min(1, len(able)))

    largest = max(len(room.node.info.gpus) for room in rooms)
    return bool(sizes(need, largest=largest, nodes_with=nodes_with))


def _together(fabric: CellFabric, nodes: Iterable[Node], rank: int) -> Counter[Area]:
    """Counts nodes by the area of a rank in which they stand."""
    return Counter(area for node in nodes for area in fabric.spot(node) if area.rank == rank)


def _could_hold(room: NodeRoom, need: Need, count: int) -> bool:
    gpus = need.gpus // count or (1 if need.share else 0)
    enough = need.takes(room.id) and len(room.matching(need.model)) >= gpus
    beside = enough and room.has_room_beside_gpus(need.spec, need.ranks_on_node(count))
    if beside and need.fabric == "nvlink" and pick_joined(room, need.model, gpus) is None:
        return False
    return beside and (not need.gpus or not why_never(room, need.model, gpus))


def _fabric_lacks(state: State, rooms: list[NodeRoom], need: Need) -> str:
    """Says why the cell's fabric has no place that is large enough."""
    fabric = cell_fabric(state.fabric)
    if need.fabric == "rail" and not fabric.fabric.levels:
        return "this cell does not know its fabric: `gpuctl topo fabric set FILE` tells it"
    nodes = [room.node for room in rooms if room.matching(need.model)]
    most = _together(fabric, nodes, fabric.rank_of(need.fabric) or 0).most_common(1)
    if need.fabric == "rail":
        return f"{most[0][0].words} has {count_nodes(most[0][1])}, more than any other" if most else "no node is in one"
    joined = max(rooms, key=largest_joined, default=None)
    count = largest_joined(joined) if joined is not None else 1
    if joined is None or count == 1:
        one = "no GPUs of one node are known to be joined by NVLinks"
    else:
        one = f"NVLinks join {count} GPUs at most on one node ({joined.id})"
    return f"{one}, and {most[0][0].words} has {count_nodes(most[0][1])}" if most else one


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
    kind = Need(spec=spec, workspace="").model
    at_least = "at least " if res.max_gpus else ""
    parts = [f"{at_least}{count_gpus(res.gpus, kind)}"] if res.gpus else ["no GPU"]
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
    if res.fabric:
        parts.append(f"fabric={res.fabric!r}")
    return f"{spec.name} asks for {', '.join(parts)}"


def _with_memory(rooms: list[NodeRoom], wanted: str) -> str:
    """Names the models that there are, each with its memory."""
    gpus = (gpu.info for room in rooms for gpu in room.gpus if model_matches(wanted, gpu.info.model))
    return ", ".join(sorted({f"{gpu.model or 'unnamed'} of {gpu.memory_bytes / 1e9:.0f} GB" for gpu in gpus})) or "CPUs"


def _offers(rooms: list[NodeRoom], spec: FunctionSpec) -> str:
    if not rooms:
        return f"this cell has no such node, only {_OTHERS[asks_for_played(spec.resources.gpu)]}"
    models = sorted({g.info.model or "unnamed" for room in rooms for g in room.gpus})
    wanted = spec.resources.gpu
    if wanted and not any(model_matches(wanted, model) for model in models):
        return f"this cell has no such GPU, only {', '.join(models) or 'CPUs'}"
    kind = Need(spec=spec, workspace="").model
    matching = [(len(room.matching(kind)), room) for room in rooms]
    if kind.memory_gb and not any(count for count, _ in matching):
        return f"this cell has no such GPU, only {_with_memory(rooms, wanted)}"
    total = sum(count for count, _ in matching)
    most, best = max(matching, key=lambda m: m[0])
    what = count_gpus(total, kind)
    cpus = f"at most {best.node.info.cpus} cpus and {best.node.info.memory_bytes / 1e9:.0f} GB on a node"
    nodes = f"{len(rooms)} node{'s' if len(rooms) > 1 else ''}"
    return f"this cell has {what} on {nodes}, at most {most} on one ({best.id}), and {cpus}"
