"""Which rank is slow: the time of a gang's steps by rank, less what it waited for the others. Pure.

A step is what lies between two progress marks of a rank. The ranks of a gang that works in step all take the same time
for one, so that alone says nothing: the slow rank is the one that waits least. Its *own time* of a step is the step's
time less the longest wait in one of the step's collectives: from when it entered until the last rank had entered, where
torch tells when that was (gloo), or as long as the collective took on the GPU, where torch times that (NCCL with
TORCH_NCCL_ENABLE_TIMING=1). The longest one and not the sum, because collectives that run beside the computation
overlap: so a slow rank may be told as less slow than it is, and never as slower. Where own times of all ranks are not
known, the times of their steps are compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median, median_low
from typing import Any

from phalanx.core.stacks import ranks_text

SLOW_RATIO = 1.3
"""A rank whose time is so many times the gang's median is slow, over MIN_STEPS steps or more."""
MIN_STEPS = 10
MIN_EXCESS_MS = 1.0
"""Below it, a difference is the operating system's scheduling and not a slow rank."""
KEPT_STEPS = 128
"""Figures are of so many steps, the newest ones."""
_KEPT_ARRIVALS = 256

Key = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """One rank's steps. ``own_ms`` None: what it waited is not known. ``ratio``: to the gang's median, 0 = unknown."""

    rank: int
    node_id: str = ""
    gpu: str = ""
    step: int = 0
    """As the function counts them; ``steps``: how many the figures are of, of the newest at most KEPT_STEPS."""
    steps: int = 0
    step_ms: float = 0.0
    own_ms: float | None = None
    ratio: float = 0.0
    slow: bool = False


@dataclass(slots=True)
class _Rank:
    step: int = 0
    marks: deque[int] = field(default_factory=lambda: deque[int](maxlen=KEPT_STEPS))
    """When it marked, in microseconds."""
    settled_us: int = 0
    """Steps that ended by then have been looked at."""
    step_us: deque[int] = field(default_factory=lambda: deque[int](maxlen=KEPT_STEPS))
    own_us: deque[int] = field(default_factory=lambda: deque[int](maxlen=KEPT_STEPS))
    entered: dict[Key, tuple[int, int]] = field(default_factory=dict[Key, tuple[int, int]])
    """When it entered each of its last collectives, and how long that took; -1: not timed."""
    known_us: tuple[int, int] = (0, 0)
    """From when to when nothing is missing from ``entered``."""


class StepBook:
    """The newest steps of every rank of a gang, in bounded memory. Times of one node's clock, in microseconds."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def clear(self) -> None:
        self._ranks.clear()

    def marked(self, rank: int, marks: Iterable[tuple[int, int]]) -> None:
        """Takes (step, when) of each mark, in order."""
        found = self._ranks.setdefault(rank, _Rank())
        for step, at_us in marks:
            if found.marks and at_us > found.marks[-1]:
                found.step_us.append(at_us - found.marks[-1])
            found.marks.append(at_us)
            found.step = step

    def entered(self, rank: int, collectives: Iterable[tuple[str, int, int, int]]) -> None:
        """Takes (group, number, when, how long or -1) of the collectives that the rank entered last before its newest
        mark, oldest first."""
        found = self._ranks.setdefault(rank, _Rank())
        newest = list(collectives)[-_KEPT_ARRIVALS:]
        found.entered = {(group, number): (at_us, took_us) for group, number, at_us, took_us in newest}
        found.known_us = (newest[0][2], found.marks[-1]) if newest and found.marks else (0, 0)

    def settle(self) -> None:
        """Works out what ranks waited, of the steps since the last time. Steps of which that is not known are left."""
        last = dict(self._last_arrivals())
        for rank in self._ranks.values():
            known_from, known_to = rank.known_us
            for before, at_us in pairwise(rank.marks):
                if max(known_from, rank.settled_us) <= before < at_us <= known_to:
                    own_us = _own_us(rank, before, at_us, last)
                    if own_us > 0:
                        rank.own_us.append(own_us)
            rank.settled_us = known_to

    def rows(self, places: Mapping[int, tuple[str, str]]) -> tuple[RankSteps, ...]:
        """Returns every rank that marked two steps. ``places``: node and GPU by rank."""
        known = {n: r for n, r in sorted(self._ranks.items()) if r.step_us}
        owns = {n: median(r.own_us) / 1000 for n, r in known.items() if len(r.own_us) >= MIN_STEPS}
        steps = {n: median(r.step_us) / 1000 for n, r in known.items()}
        compared = owns if known and owns.keys() == known.keys() and len(owns) >= len(places) else steps
        middle = median_low(compared.values()) if compared else 0.0
        return tuple(
            RankSteps(
                rank=number,
                node_id=places.get(number, ("", ""))[0],
                gpu=places.get(number, ("", ""))[1],
                step=rank.step,
                steps=len(rank.step_us),
                step_ms=round(steps[number], 3),
                own_ms=round(owns[number], 3) if number in owns else None,
                ratio=round(compared[number] / middle, 2) if middle else 0.0,
                slow=_is_slow(compared[number], middle) and len(rank.step_us) >= MIN_STEPS,
            )
            for number, rank in known.items()
        )

    def _last_arrivals(self) -> Iterator[tuple[Key, int]]:
        """When the last rank entered each collective; only of those that all of the group's ranks tell of."""
        members: dict[str, set[int]] = {}
        arrivals: dict[Key, dict[int, int]] = {}
        for number, rank in self._ranks.items():
            for key, (at_us, _) in rank.entered.items():
                members.setdefault(key[0], set()).add(number)
                arrivals.setdefault(key, {})[number] = at_us
        for key, by_rank in arrivals.items():
            if by_rank.keys() == members[key[0]]:
                yield key, max(by_rank.values())


def _own_us(rank: _Rank, begun_us: int, ended_us: int, last: Mapping[Key, int]) -> int:
    """Returns the step's time less its longest wait; 0 where a wait is not known."""
    longest = 0
    for key, (at_us, took_us) in rank.entered.items():
        if begun_us < at_us <= ended_us:
            if took_us < 0 and key not in last:
                return 0
            longest = max(longest, took_us if took_us >= 0 else last[key] - at_us)
    return ended_us - begun_us - longest


def _is_slow(time_ms: float, middle_ms: float) -> bool:
    return bool(middle_ms) and time_ms >= SLOW_RATIO * middle_ms and time_ms - middle_ms >= MIN_EXCESS_MS


def slow_text(rows: Iterable[RankSteps]) -> str:
    """Returns who is slow, for people; empty where nobody is."""
    slow = [row for row in rows if row.slow]
    if not slow:
        return ""
    worst = max(slow, key=lambda row: row.ratio)
    own = "of its own" if worst.own_ms is not None else "by itself"
    time_ms = worst.own_ms if worst.own_ms is not None else worst.step_ms
    where = f"rank {worst.rank} on {worst.node_id}" + (f", {worst.gpu}," if worst.gpu else "")
    who = (
        f"{where} is slow" if len(slow) == 1 else f"{ranks_text([r.rank for r in slow])} are slow, most of all {where}"
    )
    return f"{who}: {time_ms:.3g} ms {own} a step, {worst.ratio:.2g} x the median"


def rows_to_json(rows: Iterable[RankSteps]) -> list[dict[str, Any]]:
    """Returns JSON values."""
    return [asdict(row) for row in rows]


def rows_from_json(values: object) -> tuple[RankSteps, ...]:
    """Reads what `rows_to_json` wrote. Raises TypeError on anything else."""
    if not isinstance(values, list):
        raise TypeError(f"rows of steps are a list, not {type(values).__name__}")
    return tuple(RankSteps(**value) for value in values)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
