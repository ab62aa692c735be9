"""How places are told: which GPUs, on which nodes, in which domain, and why there. Words only."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx_control.scheduler.candidates import Tally
from phalanx_control.scheduler.cell_fabric import level_words
from phalanx_control.scheduler.domains import Choice
from phalanx_control.scheduler.kinds import ANY_GPU, GpuKind
from phalanx_control.scheduler.nearest import Picked, ideal_of
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import GpuRoom, Held, NodeRoom, Rooms

_NODES_NAMED = 8


def placement_words(
    need: Need, rooms: Rooms, chosen: Sequence[tuple[NodeRoom, Picked]], choice: Choice | None, note: str
) -> str:
    """Returns the sentence that goes with a place of whole GPUs. ``choice``: of the nodes, where there are several."""
    nodes = "one node" if len(chosen) == 1 else f"{len(chosen)} nodes"
    if need.spec.resources.nodes:
        why = f"{nodes} as asked"
    else:
        which = "as many nodes as can share it evenly" if need.spec.resources.spread else "the fewest nodes that fit"
        why = f"{which}: {nodes}"
    near = _nearness(rooms, choice, len(chosen)) if choice is not None else ""
    parts = (_size_words(need), note, _fabric_words(need), _gpus_words(chosen), _ideal_words(need, rooms, chosen))
    more = [text for text in parts if text]
    return "; ".join([f"{count_gpus(need.gpus, need.model)}: {_where(chosen)}, {why}{near}", *more])


def _size_words(need: Need) -> str:
    """Says of an elastic gang how many GPUs it might have."""
    asked = need.spec.resources
    return f"as many as could be had of {asked.gpus:g} to {asked.max_gpus}" if asked.max_gpus else ""


def _fabric_words(need: Need) -> str:
    """Says what was asked of the fabric, and whether a wish came true."""
    if need.fabric_instead is None and need.spec.resources.prefer_fabric:
        return f"prefer_fabric={need.spec.resources.prefer_fabric!r} could not be had"
    return {"nvlink": "joined by NVLink, as asked", "rail": "within one domain, as asked"}.get(need.fabric, "")


def _gpus_words(chosen: Sequence[tuple[NodeRoom, Picked]]) -> str:
    """Says why these GPUs of a node: of the first one where there are several, whose rings end at its ports."""
    room, picked = chosen[0]
    return picked.why if len(chosen) == 1 or not picked.why else f"within {room.id}: {picked.why}"


def _ideal_words(need: Need, rooms: Rooms, chosen: Sequence[tuple[NodeRoom, Picked]]) -> str:
    """Says by how much the node's best set would be better, and who has some of it; "" where this is the best."""
    room, picked = chosen[0]
    ideal = ideal_of(room, need.model, picked.gpus) if len(chosen) == 1 else None
    if ideal is None:
        return ""
    held = [gpu for gpu in ideal.gpus if not gpu.free]
    holders = dict.fromkeys(owner_words(rooms.gangs[gpu.holders[0]], need.workspace) for gpu in held if gpu.holders)
    why = f": {indices(held)} held by {' and '.join(holders)}" if holders else ""
    less = 1 - ideal.chosen_gbyte_s / ideal.gbyte_s
    return f"{less:.0%} less than the {ideal.gbyte_s:.1f} GB/s of {indices(ideal.gpus)}{why}"


def owner_words(held: Held, workspace: str) -> str:
    """Names a gang's function and user to those of its workspace."""
    gang, spec = held
    if gang.owner.workspace != workspace:
        return "others"
    return f"{spec.name} of {gang.owner.user}" if gang.owner.user else spec.name


def _where(chosen: Sequence[tuple[NodeRoom, Picked]]) -> str:
    if len(chosen) <= _NODES_NAMED:
        return " and ".join(f"{len(picked.gpus)} on {room.id} ({indices(picked.gpus)})" for room, picked in chosen)
    named = ", ".join(room.id for room, _ in chosen[: _NODES_NAMED - 1])
    return f"{len(chosen[0][1].gpus)} each on {named} and {len(chosen) - _NODES_NAMED + 1} more"


def _nearness(rooms: Rooms, choice: Choice, count: int) -> str:
    """Says in which domain the nodes are, and that no smaller one has enough of them."""
    missed = f"; {_missed(choice.missed[-1], count)}" if choice.missed else ""
    area = choice.within.area
    if area is rooms.fabric.cell:
        return f", in no common domain{missed}" if choice.missed else ""
    how = "empty nodes elsewhere stay empty" if choice.tighter else "tightest that fits"
    free = f"{count_nodes(choice.within.nodes)} free of {rooms.nodes_in[area]}"
    return f", {'both' if count == 2 else 'all'} in {area.words} ({how}: {free}){missed}"


def _missed(tally: Tally, count: int) -> str:
    return f"no {level_words(tally.area.level)} has {count} free, {tally.area.words} has {tally.nodes}"


def indices(gpus: Sequence[GpuRoom]) -> str:
    """Writes GPU indices as people do: ``0-3, 6``."""
    runs: list[list[int]] = []
    for index in sorted(g.info.index for g in gpus):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def count_gpus(count: float, kind: GpuKind = ANY_GPU) -> str:
    """Writes ``1 GPU``, ``8 H100 GPUs of 80 GB or more``."""
    words = f"{kind.model.replace('|', ' or ')} " if kind.model else ""
    memory = f" of {kind.memory_gb:g} GB or more" if kind.memory_gb else ""
    return f"{count:g} {words}GPU{'' if count == 1 else 's'}{memory}"


def asked_gpus(need: Need) -> str:
    """Writes how many GPUs a gang cannot start without."""
    words = count_gpus(need.gpus or need.share, need.model)
    return f"at least {words}" if need.most else words


def count_nodes(count: int) -> str:
    """Writes ``1 node``, ``3 nodes``."""
    return f"{count} node{'' if count == 1 else 's'}"


def some_words(texts: Sequence[str], most: int) -> str:
    """Writes the first few of a list: ``a, b and 3 more``."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")
