"""Which free GPUs of a node a gang gets, in which ring order, and why not others. Looks up; searches nothing.

Sets are compared by, in turn: the slowest link of their best ring, the bandwidth of all their pairs, how few NUMA nodes
they span, how near their network ports are, how many rails they have; then by what the GPUs left free are still good
for, by what all others would be good for once free, by how near they are on PCIe, and by lowest indices. One GPU alone
is picked so that it spoils least: one that is in no complete pair, then one of an island that is broken already, then
the one whose loss costs least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.refusals import Refusal, impossible, nothing_allowed
from phalanx.core.topology.tables import Tables


def choose(
    tables: Tables,
    free_mask: int,
    size: int,
    *,
    required: int = 0,
    legal: Collection[int] | None = None,
    mig_gangs: bool = False,
) -> Chosen | Refusal:
    """Returns the best set of free devices, or why there is none.

    Args:
        tables: of the node's topology.
        free_mask: the free devices; those that are lost are never taken.
        size: how many the gang needs on this node.
        required: devices that must be among them.
        legal: the only sets allowed now, as masks; None: those that the node's NVSwitch partitions allow, or any.
        mig_gangs: lets a gang span MIG devices, which have no peer access to each other.
    """
    free = tables.rules.takeable(free_mask, size, mig_gangs=mig_gangs)
    refusal = impossible(tables.devices, tables.rules, free_mask, size, required, mig_gangs=mig_gangs)
    if refusal is not None:
        return refusal
    if size == 1:
        best, second = _single(tables, free, required, legal)
    else:
        best, second = _best_two(tables, free, size, required, legal)
    if not best:
        return nothing_allowed(tables.devices, tables.rules, free, size, required, legal=legal)
    return Chosen(best, tables.rings.ring(best), second, tables, free)


def _best_two(tables: Tables, free: int, size: int, required: int, legal: Collection[int] | None) -> tuple[int, int]:
    """The best set and the one after it; 0 where there is none."""
    best = 0
    for group in _fitting(tables, free, size, required, legal):
        if best:
            return best, _least_harm(tables, free, group)[0]
        best, second = _least_harm(tables, free, group)
        if second:
            return best, second
    return best, 0


def _fitting(tables: Tables, free: int, size: int, required: int, legal: Collection[int] | None) -> Iterator[list[int]]:
    """Groups of equally good sets within the free ones, best first."""
    taken = ~free
    for _, masks in tables.order[size]:
        fitting = [mask for mask in masks if not mask & taken]
        if fitting and required:
            fitting = [mask for mask in fitting if mask & required == required]
        if fitting and legal is not None:
            fitting = [mask for mask in fitting if mask in legal]
        if fitting:
            yield fitting


def _least_harm(tables: Tables, free: int, masks: list[int]) -> tuple[int, int]:
    """The set of a group that leaves most behind, then the next one; masks are lowest indices first."""
    if len(masks) == 1:
        return masks[0], 0
    leftover, nearness, whole = tables.leftover, tables.nearness, tables.rules.usable
    ranked = sorted(masks, key=lambda at: (leftover[free ^ at], leftover[whole ^ at], nearness[at]), reverse=True)
    return ranked[0], ranked[1]


def _single(tables: Tables, free: int, required: int, legal: Collection[int] | None) -> tuple[int, int]:
    singles = [mask for group in _fitting(tables, free, 1, required, legal) for mask in group]
    ranked = sorted(sorted(singles), key=lambda mask: tables.spoils(free, mask))
    return (ranked[0], ranked[1] if len(ranked) > 1 else 0) if ranked else (0, 0)
