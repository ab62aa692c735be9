"""All sets of a size in the order in which they would be chosen, for people who want to see why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from phalanx.core.topology.islands import Islands, Spread
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.rules import names
from phalanx.core.topology.tables import Score


@dataclass(frozen=True, slots=True)
class Ranked:
    """One set. ``why_not`` is empty for the chosen one."""

    gpus: str
    ring: str
    ring_gbyte_s: float
    pairs_gbyte_s: float
    why_not: str


def rank_sets(chosen: Chosen, top: int) -> tuple[Ranked, ...]:
    """Returns the chosen set and those that come after it, ``top`` in all."""
    others = [mask for mask in _in_order(chosen) if mask != chosen.mask]
    return tuple(_ranked(chosen, mask) for mask in (chosen.mask, *others[: top - 1]))


def rank_spread(islands: Islands, spread: Spread) -> Ranked:
    """Returns the set of a node with more devices than a table holds: the one that is chosen, others are not known."""
    pairs = sum(islands.weights[i][j] for i, j in combinations(spread.ring, 2))
    return Ranked(
        gpus=names(islands.devices, spread.mask),
        ring="-".join(islands.devices[at].name for at in spread.ring),
        ring_gbyte_s=spread.ring_gbyte_s,
        pairs_gbyte_s=pairs / 1000,
        why_not="",
    )


def _in_order(chosen: Chosen) -> list[int]:
    tables, free, size = chosen.tables, chosen.free, chosen.mask.bit_count()
    groups = [[mask for mask in masks if not mask & ~free] for _, masks in tables.order[size]]
    if size == 1:
        singles = sorted(mask for masks in groups for mask in masks)
        return sorted(singles, key=lambda mask: tables.spoils(free, mask))
    for masks in groups:
        masks.sort(key=lambda mask: (tables.leftover[free ^ mask], tables.nearness[mask]), reverse=True)
    return [mask for masks in groups for mask in masks]


def _ranked(chosen: Chosen, mask: int) -> Ranked:
    tables = chosen.tables
    score = Score.of(tables.score[mask])
    return Ranked(
        gpus=tables.names(mask),
        ring="-".join(tables.devices[at].name for at in tables.rings.ring(mask)),
        ring_gbyte_s=score.ring_mbyte_s / 1000,
        pairs_gbyte_s=score.pairs_mbyte_s / 1000,
        why_not="" if mask == chosen.mask else replace(chosen, runner_up=mask).why.rpartition("; ")[2],
    )
