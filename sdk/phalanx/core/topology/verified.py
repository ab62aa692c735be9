"""What copies between the GPUs of a node came to, written into its topology: which pairs are wrong, and which are slow.

A pair is judged against those of the node that are connected alike: no model is good enough to call a link slow by.
Pure; measuring is the ranks' part, and keeping the results the agent's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from phalanx.core.topology.figures import known_link
from phalanx.core.topology.node import Gpu, Link, NodeTopology

SLOW_BELOW = 0.7
"""Of the median of like pairs. Repeated measurements on idle links agree within a few per cent."""
SLOW_BELOW_SIMULATED = 0.1
"""Where copies go through the host's memory, which everything else on the host uses as well."""
K = TypeVar("K")
_LIKE_AT_LEAST = 3
"""So many like pairs tell what is usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCheck:
    """What a copy from each of two GPUs, by UUID as `pair_of` orders them, to the other came to."""

    gpus: tuple[str, str]
    gbyte_s: float
    copies: bool
    at_ms: int = 0
    """Wall clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the ranks of a gang found on one node. ``gpus``: in rank order."""

    node_id: str
    gpus: tuple[str, ...]
    pairs: tuple[PairCheck, ...]
    all_reduce_gbyte_s: float
    """The bus bandwidth of an all-reduce over the whole gang."""
    size_bytes: int = 0
    """Of what was copied."""


def pair_of(one: str, other: str) -> tuple[str, str]:
    """Returns the two in the order in which a pair is named."""
    return (one, other) if one <= other else (other, one)


def kind_of(link: Link) -> str:
    """Returns what links that should be equally fast have in common."""
    if link.nvlinks:
        return f"NV{link.nvlinks}{' switched' if link.switched else ''}"
    return str(link.path or "unknown")


def slow_pairs(kinds: Mapping[K, str], measured: Mapping[K, float], *, simulated: bool) -> dict[K, float]:
    """Returns the pairs that move clearly less than those of their kind usually do, with the part that they move."""
    least = SLOW_BELOW_SIMULATED if simulated else SLOW_BELOW
    found: dict[K, float] = {}
    by_kind: dict[str, list[float]] = {}
    for pair, figure in measured.items():
        by_kind.setdefault(kinds[pair], []).append(figure)
    for pair, figure in measured.items():
        like = by_kind[kinds[pair]]
        usual = median(like)
        if len(like) >= _LIKE_AT_LEAST and figure < least * usual:
            found[pair] = figure / usual
    return found


def with_checks(
    topology: NodeTopology, checks: Iterable[PairCheck], *, simulated: bool, all_reduce_gbyte_s: float | None = None
) -> NodeTopology:
    """Returns the topology with what was verified of its links. A node of which no link is known gets a matrix."""
    places = {gpu.uuid: at for at, gpu in enumerate(topology.gpus)}
    known = {check.gpus: check for check in checks if set(check.gpus) <= places.keys()}
    if not known:
        return replace(topology, all_reduce_gbyte_s=all_reduce_gbyte_s)
    rows = [list(row) for row in topology.links or _unknown(topology.gpus)]
    kinds = {pair: kind_of(known_link(topology, places[pair[0]], places[pair[1]])) for pair in known}
    slow = slow_pairs(kinds, {pair: check.gbyte_s for pair, check in known.items()}, simulated=simulated)
    for pair, check in known.items():
        i, j = places[pair[0]], places[pair[1]]
        part = round(slow[pair], 2) if pair in slow else None
        for one, other in ((i, j), (j, i)):
            rows[one][other] = replace(
                rows[one][other], copies=check.copies, measured_gbyte_s=_shown(check.gbyte_s), slowed=part
            )
    return replace(topology, links=tuple(map(tuple, rows)), all_reduce_gbyte_s=all_reduce_gbyte_s)


def unverified(topology: NodeTopology) -> NodeTopology:
    """Returns the topology as if no link had ever been tried."""
    rows = topology.links
    links = (tuple(replace(x, copies=None, measured_gbyte_s=None, slowed=None) for x in row) for row in rows)
    return replace(topology, links=tuple(links), all_reduce_gbyte_s=None)


def findings(topology: NodeTopology) -> Iterator[str]:
    """Yields a sentence for each pair of a node that was found to be wrong or slow."""
    for i, one in enumerate(topology.gpus):
        for j, other in enumerate(topology.gpus[:i] if topology.links else ()):
            link = known_link(topology, j, i)
            pair = f"GPU {other.index} and GPU {one.index}"
            if link.copies is False:
                yield f"copies between {pair} come out wrong: no gang gets both"
            if link.slowed is not None:
                yield (
                    f"{pair} copy at {link.measured_gbyte_s or 0:g} GB/s, {link.slowed:.0%} of what pairs connected "
                    f"alike do: avoided"
                )


def _unknown(gpus: tuple[Gpu, ...]) -> tuple[tuple[Link, ...], ...]:
    return tuple((Link(),) * len(gpus) for _ in gpus)


def _shown(gbyte_s: float) -> float:
    """Three digits: more of it is noise."""
    return float(f"{gbyte_s:.3g}")
