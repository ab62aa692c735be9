"""Which nodes a gang gets: the smallest domain that holds it, the tightest of its kind, and whole ones kept whole.

Domains are tried from NVLink domains over the levels of the fabric to the cell. Where the gang needs several domains
below the one that holds it: as few as possible, the largest first, the last one the tightest. At the bottom the nodes
with the fewest free GPUs, so that empty ones stay empty. Only a function that says so requires a domain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx_control.scheduler.candidates import Bucket, Candidate, Candidates, Tally
from phalanx_control.scheduler.cell_fabric import Area


@dataclass(frozen=True, slots=True)
class Portion:
    """Nodes that are equally near to each other, the fullest first, of which the gang takes ``count``."""

    nodes: tuple[Candidate, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Choice:
    """``within``: the smallest domain that holds all nodes, as it was before. ``tighter``: a smaller one held the gang,
    but by opening more empty nodes. ``missed``: by level, smallest first, the domain with most candidates: too few.
    """

    portions: tuple[Portion, ...]
    within: Tally
    tighter: bool
    missed: tuple[Tally, ...]


def choose_nodes(candidates: Candidates, count: int, *, only: int | None = None) -> Choice | None:
    """Returns ``count`` candidates, as near to each other as can be; None where there are too few, in areas of the rank
    ``only`` where that is given."""
    missed: list[Tally] = []
    levels = candidates.by_level()
    for level in levels if only is None else levels[only : only + 1]:
        able = [tally for tally in level.values() if tally.nodes >= count]
        if able:
            best = _tightest(able, count)
            portions = _spread([*best.buckets.values()], count, _ranks_inside(candidates, best.area))
            return Choice(portions, best, any(t.nodes < best.nodes for t in able), tuple(missed))
        if level:
            missed.append(min(level.values(), key=lambda tally: (-tally.nodes, tally.area.key)))
    return None


def most_together(candidates: Candidates, only: int | None) -> int:
    """Returns how many candidates one gang may have at once: all, or those of one area of the rank ``only``."""
    if only is None:
        return len(candidates)
    areas = (tally.nodes for level in candidates.by_level()[only : only + 1] for tally in level.values())
    return max((min(1, len(candidates)), *areas))


def _ranks_inside(candidates: Candidates, area: Area) -> tuple[int, ...]:
    """The levels by which an area is split, largest first; an NVLink domain may hold several of any."""
    top = candidates.levels - 1 if area.rank == 0 else area.rank
    return tuple(reversed(range(0 if area.rank else 1, top)))


def _tightest(tallies: Sequence[Tally], count: int) -> Tally:
    best = min(tally.tightness(count) for tally in tallies)
    return min((t for t in tallies if t.tightness(count) == best), key=lambda tally: tally.area.key)


def _spread(buckets: Sequence[Bucket], count: int, ranks: tuple[int, ...]) -> tuple[Portion, ...]:
    """Splits the gang over the parts that a level makes of the buckets, and the last of them further down."""
    rank = _next_rank(buckets, ranks)
    if rank is None:
        return (_portion(buckets, count),)
    known, unknown = _parts(buckets, rank)
    ranks = tuple(each for each in ranks if each != rank)
    portions: list[Portion] = []
    for at, part in enumerate(known):
        if part.nodes >= count:
            last = _tightest([p for p in known[at:] if p.nodes >= count], count)
            return (*portions, *_spread([*last.buckets.values()], count, ranks))
        portions.append(_portion([*part.buckets.values()], part.nodes))
        count -= part.nodes
    return (*portions, *_spread(unknown, count, ranks)) if count else tuple(portions)


def _next_rank(buckets: Sequence[Bucket], ranks: tuple[int, ...]) -> int | None:
    """The largest level of the fabric; NVLink domains before it where one of them lies across its parts."""
    largest = next((rank for rank in ranks if rank), None)
    if 0 in ranks and (largest is None or _nvlink_crosses(buckets, largest)):
        return 0
    return largest


def _nvlink_crosses(buckets: Sequence[Bucket], rank: int) -> bool:
    parts: defaultdict[Area, set[Area | None]] = defaultdict(set)
    for bucket in buckets:
        nvlink = _area_at(bucket, 0)
        if nvlink is not None:
            parts[nvlink].add(_area_at(bucket, rank))
    return any(len(each) > 1 for each in parts.values())


def _parts(buckets: Sequence[Bucket], rank: int) -> tuple[list[Tally], list[Bucket]]:
    """What a level makes of the buckets, most candidates first, and those whose place in it is unknown."""
    found: dict[Area, Tally] = {}
    unknown: list[Bucket] = []
    for bucket in buckets:
        area = _area_at(bucket, rank)
        if area is None:
            unknown.append(bucket)
        elif bucket.nodes:
            found.setdefault(area, Tally(area)).add(bucket)
    return sorted(found.values(), key=lambda tally: (-tally.nodes, tally.area.key)), unknown


def _area_at(bucket: Bucket, rank: int) -> Area | None:
    return next((area for area in bucket.spot if area.rank == rank), None)


def _portion(buckets: Sequence[Bucket], count: int) -> Portion:
    nodes = [node for bucket in buckets for node in bucket.nodes.values()]
    return Portion(tuple(sorted(nodes, key=lambda node: node.fullest_first)), count)
