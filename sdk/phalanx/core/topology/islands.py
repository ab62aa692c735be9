"""Choice on a node that shows more than 16 devices (split GPUs, a whole NVLink domain as one host): islands first.

Devices are put together by what connects them best (the GPU they are parts of, NVLinks, the NUMA node) into islands of
at most 8, each with tables of its own. A gang gets one island where one holds it: the best set, then the island that
is left fullest. Larger gangs get whole islands, and the rest of them from the one that it leaves least of. Exact
within an island; across islands the ring is the islands' rings one after the other, not the best there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from phalanx.core.topology import bitsets, devices
from phalanx.core.topology.choice import choose
from phalanx.core.topology.devices import Device
from phalanx.core.topology.figures import Figures, figures_of
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.refusals import Cause, Refusal, impossible, nothing_allowed
from phalanx.core.topology.rings import Weights, slowest
from phalanx.core.topology.rules import Rules
from phalanx.core.topology.tables import Tables, tables_of

MOST_MEMBERS = 8


@dataclass(frozen=True, slots=True)
class Islands:
    """``members``: each island's positions in ``devices``, which are those of masks too; ``tables``: each one's own."""

    devices: tuple[Device, ...]
    weights: Weights
    rules: Rules
    members: tuple[tuple[int, ...], ...]
    tables: tuple[Tables, ...]

    def inside(self, mask: int) -> list[int]:
        """Returns, for each island, the part of a set that lies in it, in the island's own positions."""
        return [bitsets.mask_of(own for own, at in enumerate(island) if mask >> at & 1) for island in self.members]


@dataclass(frozen=True, slots=True)
class Spread:
    """A set out of one island or more. ``ring``: positions in the node's devices, island by island."""

    mask: int
    ring: tuple[int, ...]
    uuids: tuple[str, ...]
    """In ring order."""
    ring_gbyte_s: float
    """The slowest link of this ring, GB/s one way by the model; 0 for one device."""
    why: str


def build_islands(node: NodeTopology, figures: Figures | None = None) -> Islands:
    """Returns the islands of a node of any size, with their tables."""
    figures = figures or figures_of(node)
    everything = devices.devices_of(node)
    members = tuple(_packed(_groups(node, everything)))
    return Islands(
        everything,
        devices.weights_of(node, everything, figures),
        Rules.of(node, everything),
        members,
        tuple(tables_of(node, tuple(everything[at] for at in island), figures) for island in members),
    )


def _groups(node: NodeTopology, everything: tuple[Device, ...]) -> list[list[tuple[int, ...]]]:
    """Positions by island, and inside it by NUMA node: what may be cut apart last. Parts of one GPU are an island."""
    linked = [bitsets.positions(island) for island in devices.island_masks(node, everything)]
    alone = [island[0] for island in linked if len(island) == 1]
    owners = [device.gpu if device.mig else -1 for device in everything]
    islands = [island for island in linked if len(island) > 1] + _by(alone, owners)
    return [_by(island, devices.numa_places(node, everything)) for island in sorted(islands)]


def _by(members: Iterable[int], keys: Sequence[int]) -> list[tuple[int, ...]]:
    found: dict[int, list[int]] = {}
    for at in members:
        found.setdefault(keys[at], []).append(at)
    return [tuple(group) for group in found.values()]


def _packed(groups: list[list[tuple[int, ...]]]) -> Iterator[tuple[int, ...]]:
    """Fills islands of at most `MOST_MEMBERS` with whole places, as far as these fit."""
    for places in groups:
        island: tuple[int, ...] = ()
        for place in places:
            for start in range(0, len(place), MOST_MEMBERS):
                part = place[start : start + MOST_MEMBERS]
                if len(island) + len(part) > MOST_MEMBERS:
                    yield island
                    island = ()
                island += part
        yield island


def choose_spread(
    islands: Islands, free_mask: int, size: int, *, required: int = 0, mig_gangs: bool = False
) -> Spread | Refusal:
    """Returns the best set found, or why there is none; parameters as of `choose`."""
    refusal = impossible(islands.devices, islands.rules, free_mask, size, required, mig_gangs=mig_gangs)
    if refusal is not None:
        return refusal
    free = islands.rules.takeable(free_mask, size, mig_gangs=mig_gangs)
    inside, needed = islands.inside(free), islands.inside(required)
    one = _within_one(islands, inside, needed, size, mig_gangs=mig_gangs)
    if one is not None:
        return one
    if size == 1 or islands.rules.legal is not None:
        offered = _offered(islands, free, size, required)
        return offered or nothing_allowed(islands.devices, islands.rules, free, size, required)
    return _over_several(islands, inside, needed, size)


def _offered(islands: Islands, free: int, size: int, required: int) -> Spread | None:
    """The best of the sets over several islands that a shared NVSwitch offers."""
    offers = [mask for mask in sorted(islands.rules.legal or ()) if mask.bit_count() == size and not mask & ~free]
    fitting = islands.rules.allowed([mask for mask in offers if mask & required == required])
    rings = ([(at, islands.tables[at].rings.ring(part)) for at, part in _parts(islands, mask)] for mask in fitting)
    spreads = [_spread(islands, ring, "a set that the partitions of this node offer") for ring in rings]
    return max(spreads, key=lambda spread: spread.ring_gbyte_s, default=None)


def _parts(islands: Islands, mask: int) -> list[tuple[int, int]]:
    return [(at, part) for at, part in enumerate(islands.inside(mask)) if part]


def _within_one(islands: Islands, free: list[int], needed: list[int], size: int, *, mig_gangs: bool) -> Spread | None:
    wanted = sum(mask.bit_count() for mask in needed)
    best: tuple[tuple[int, int], int, Chosen] | None = None
    for at, tables in enumerate(islands.tables):
        if needed[at].bit_count() < wanted or free[at].bit_count() < size:
            continue
        chosen = choose(tables, free[at], size, required=needed[at], mig_gangs=mig_gangs)
        if isinstance(chosen, Chosen):
            rank = (tables.score[chosen.mask] if size > 1 else 0, -free[at].bit_count())
            if best is None or rank > best[0]:
                best = rank, at, chosen
    if best is None:
        return None
    ring, _, _about_others_of_the_island = best[2].why.partition("; ")
    return _spread(islands, [(best[1], best[2].ring)], f"within one island: {ring}")


def _over_several(islands: Islands, free: list[int], needed: list[int], size: int) -> Spread | Refusal:
    """``free`` holds only what the gang may have: MIG devices are among them where they were allowed."""
    parts: list[tuple[int, tuple[int, ...]]] = []
    for at, share in _shares([mask.bit_count() for mask in free], [mask.bit_count() for mask in needed], size):
        chosen = choose(islands.tables[at], free[at], share, required=needed[at], mig_gangs=True)
        if isinstance(chosen, Refusal):
            return chosen
        parts.append((at, chosen.ring))
    spread = _spread(islands, parts, f"no island has {size} free; taken from {len(parts)}, whole ones first")
    if any(spread.mask & pair == pair for pair in islands.rules.wrong):
        return Refusal(Cause.WRONG_COPIES, f"a gang of {size} over several islands holds a pair that copies wrongly")
    return spread


def _shares(free: list[int], needed: list[int], size: int) -> list[tuple[int, int]]:
    """How many of each island: the required ones, then whole islands from the fullest, the rest where it fits best."""
    share = list(needed)
    left = size - sum(share)
    order = sorted(range(len(free)), key=lambda at: (not share[at], -free[at], at))
    while left:
        room = [at for at in order if free[at] > share[at]]
        tight = [at for at in room if free[at] - share[at] >= left]
        at = min(tight, key=lambda at: (not share[at], free[at] - share[at], at)) if tight else room[0]
        taken = min(left, free[at] - share[at])
        share[at] += taken
        left -= taken
    return [(at, number) for at, number in enumerate(share) if number]


def _spread(islands: Islands, parts: list[tuple[int, tuple[int, ...]]], why: str) -> Spread:
    ring = tuple(islands.members[at][own] for at, inside in parts for own in inside)
    figure = slowest(islands.weights, ring) / 1000
    return Spread(bitsets.mask_of(ring), ring, tuple(islands.devices[at].uuid for at in ring), figure, why)
