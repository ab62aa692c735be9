"""Which processors and which memory are near a rank's GPUs, shared fairly between the ranks of a node. Pure."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from phalanx.core.topology.importers.reading import number_list, whole
from phalanx.core.topology.node import Gpu, NodeTopology

_MAX_CPU = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """``allowed``: processors that this process may run on. ``simulated``: the topology is of another machine."""

    allowed: frozenset[int]
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """``cpus`` empty: not bound, and ``why`` says so. ``numa``: where memory is preferred; None: nowhere."""

    cpus: tuple[int, ...]
    why: str
    sharers: int = 1
    numa: int | None = None
    numa_why: str = ""


def bindings(
    node: NodeTopology | None, ranks: Sequence[Sequence[int]], host: Host, *, cpus: float, share: float, gang_id: str
) -> tuple[Binding, ...]:
    """Returns one binding per local rank. ``ranks``: positions in the node's `gpus`; ``cpus``: asked for by each, or 0.

    Ranks near the same processors share them all; where each asked for some, each gets its own while they last, and
    the first is chosen by the gang, so that gangs of one node spread.
    """
    near = [_near(node, gpus, host, share) for gpus in ranks]
    together = Counter(each.cpus for each in near)
    seen: Counter[tuple[int, ...]] = Counter()
    found: list[Binding] = []
    for each in near:
        if cpus > 0:
            pool = each.cpus or tuple(sorted(host.allowed))
            found.append(_share(each, pool, cpus=cpus, nth=seen[each.cpus], gang_id=gang_id))
        else:
            found.append(_together(each, together[each.cpus]))
        seen[each.cpus] += 1
    return tuple(found)


def cpus_in(text: str) -> frozenset[int] | None:
    """Returns the processors that a kernel's list as "0-3,8" names; None where it is none."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        low, high = whole(first), whole(last or first)
        if low is None or high is None or not 0 <= low <= high < _MAX_CPU:
            return None
        found |= set(range(low, high + 1))
    return frozenset(found)


def _near(node: NodeTopology | None, gpus: Sequence[int], host: Host, share: float) -> Binding:
    """Returns the processors near a rank's GPUs that it may run on, or why it is not bound."""
    if node is None:
        return Binding((), "not bound: the node's topology is not known")
    if not gpus:
        return Binding((), "not bound: it holds no GPU that the node's topology names")
    if share < 1:
        return Binding((), "not bound: it holds a part of a GPU, and others run beside it")
    held = [node.gpus[at] for at in gpus]
    names = "its GPU" if len(held) == 1 else "its GPUs"
    wanted: set[int] = set()
    for gpu in held:
        listed = cpus_in(gpu.cpus) if gpu.cpus else None
        if not gpu.numa:
            return Binding((), f"not bound: the NUMA node of {names} is not known")
        if not listed:
            return Binding((), f"not bound: nothing says which processors are near {names}")
        wanted |= listed
    return _usable(wanted, names, host, _memory(node, held))


def _usable(wanted: set[int], names: str, host: Host, memory: tuple[int | None, str]) -> Binding:
    usable, text = wanted & host.allowed, number_list(sorted(wanted))
    if host.simulated and usable != wanted:
        return Binding((), f"not bound: the node is simulated, and this machine does not have processors {text}")
    if not usable:
        return Binding((), f"not bound: none of the processors near {names} ({text}) is in the agent's cpuset")
    return Binding(tuple(sorted(usable)), f"near {names}", 1, *memory)


def _together(near: Binding, sharers: int) -> Binding:
    if not near.cpus or sharers < 2:
        return near
    return replace(near, why=f"{near.why}, shared by {sharers} ranks", sharers=sharers)


def _share(near: Binding, pool: tuple[int, ...], *, cpus: float, nth: int, gang_id: str) -> Binding:
    """Takes what was asked for out of a pool, the next ones for the next rank."""
    asked = max(1, math.ceil(cpus))
    count = min(len(pool), asked)
    first = int.from_bytes(hashlib.sha256(gang_id.encode()).digest()[:4], "big") + nth * count
    mine = tuple(sorted({pool[(first + at) % len(pool)] for at in range(count)}))
    said = f"as cpus={cpus:g} asks for" if count == asked else f"fewer than cpus={cpus:g} asks for"
    if near.cpus:
        return replace(near, cpus=mine, why=f"{count} of the {len(pool)} {near.why}, {said}")
    return replace(near, cpus=mine, why=f"{count} of all {len(pool)}, {said}; {near.why.replace('bound', 'near', 1)}")


def _memory(node: NodeTopology, gpus: Sequence[Gpu]) -> tuple[int | None, str]:
    """The lowest NUMA node near the GPUs: further ones of coherent hosts hold no host memory, or are a GPU's own."""
    of_gpus = {gpu.memory_numa for gpu in node.gpus}
    places = {min(set(gpu.numa or ()) - of_gpus, default=-1) for gpu in gpus}
    if len(places) > 1:
        return None, "its GPUs are on several NUMA nodes"
    (numa,) = places
    return (numa, "the NUMA node of its processors") if numa >= 0 else (None, "only GPUs' own memory is near")
