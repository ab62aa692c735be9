"""Which rank of a gang is the odd one: from what each rank knows of its last collectives. Pure, and never a guess.

Ranks of one group must enter the same collectives in the same order. So who has not entered the one that the others
wait in is the odd one, and so is who entered another one in its place. Where neither side is the smaller, or where
some rank is not known, nobody is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from phalanx.core.stacks import Place, ranks_text

_SAME_SIZES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier", "allreduce")
"""Operations whose inputs have one size on all ranks."""
DEFAULT_GROUP = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective as a rank entered it. ``sizes``: of the inputs, in elements."""

    group: str = DEFAULT_GROUP
    seq: int = 0
    op: str = ""
    sizes: str = ""
    dtypes: str = ""
    done: bool = False

    @property
    def text(self) -> str:
        return f"{self.op} #{self.seq}" + (f" of {self.sizes} {self.dtypes}".rstrip() if self.sizes else "")

    @property
    def kind(self) -> tuple[str, str]:
        """What must be the same on all ranks."""
        return self.op, f"{self.sizes} {self.dtypes}" if self.op in _SAME_SIZES else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank at one moment. ``entered`` and ``completed`` count by group; ``answered``: it said so just now."""

    rank: int
    node_id: str = ""
    pid: int = 0
    alive: bool = True
    replied: bool = False
    """It has returned from the function, or raised."""
    failed: bool = False
    answered: bool = False
    entered: dict[str, int] = field(default_factory=dict[str, int])
    completed: dict[str, int] = field(default_factory=dict[str, int])
    last: tuple[Collective, ...] = ()
    places: tuple[Place, ...] = ()

    def waits_in(self, group: str) -> Collective | None:
        """The collective of ``group`` that it has entered and not completed."""
        if not self.answered or self.replied or self.entered.get(group, 0) <= self.completed.get(group, 0):
            return None
        seq = self.entered[group]
        return self.at(group, seq) or Collective(group=group, seq=seq, op="collective")

    def at(self, group: str, seq: int) -> Collective | None:
        return next((c for c in self.last if c.group == group and c.seq == seq), None)

    @property
    def where(self) -> str:
        """``train.py:88`` in the user's own code; empty where it is not known."""
        place = next((p for p in self.places if p.is_users), self.places[0] if self.places else None)
        return place.short if place is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``culprits``: the odd ranks; empty where they cannot be known. ``text``: who stands where."""

    culprits: tuple[int, ...] = ()
    text: str = ""


def compare(states: Sequence[RankState], *, world_size: int) -> Finding:
    """Names the odd ranks of a gang that does not go on."""
    groups = sorted({g for s in states for g in s.entered if s.waits_in(g) is not None})
    text = describe(states)
    for group in groups:
        odd = _different(states, group) or _behind(states, group, world_size)
        if odd:
            return Finding(culprits=odd, text=text)
    if groups:
        return Finding(text=text)
    inside = tuple(s.rank for s in states if not s.replied)
    known = len(states) == world_size and all(s.answered or s.replied or s.places for s in states)
    alone = known and (world_size == 1 or 0 < len(inside) < world_size)
    return Finding(culprits=inside if alone else (), text=text)


def mismatched(states: Sequence[RankState], *, dead: int = -1) -> tuple[int, ...]:
    """Returns who entered another collective than the rest. ``dead``: a rank that ended for it and cannot be asked."""
    groups = sorted({g for s in states for g in s.entered})
    for group in groups:
        odd = _different(states, group)
        if odd:
            return odd
    living = [s for s in states if s.rank != dead and s.last]
    same = {s.last[-1].kind for s in living}
    return (dead,) if dead >= 0 and len(living) >= 2 and len(same) == 1 else ()


def describe(states: Sequence[RankState]) -> str:
    """Returns who stands where: ``ranks 0,2,3 wait in all_reduce #41, rank 1 is in user code at train.py:88``."""
    found: dict[str, list[int]] = {}
    for state in sorted(states, key=lambda s: s.rank):
        found.setdefault(_stands(state), []).append(state.rank)
    return ", ".join(
        f"{ranks_text(ranks)} {what if len(ranks) == 1 else _plural(what)}" for what, ranks in found.items()
    )


def to_dict(state: RankState) -> dict[str, Any]:
    """Returns JSON values. Places travel as [file, line, function]."""
    value = asdict(state)
    value["places"] = [[p.file, p.line, p.function] for p in state.places]
    return value


def from_dict(value: dict[str, Any]) -> RankState:
    """Reads what `to_dict` wrote. Raises TypeError, KeyError or ValueError on anything else."""
    last = tuple(Collective(**c) for c in value["last"])
    places = tuple(Place(str(f), int(n), str(w)) for f, n, w in value["places"])
    rest: dict[str, Any] = {k: v for k, v in value.items() if k not in ("last", "places")}
    return RankState(**rest, last=last, places=places)


def _stands(state: RankState) -> str:
    if not state.alive:
        return "is dead"
    if state.replied:
        seq = max(state.entered.values(), default=0)
        how = "failed" if state.failed else "returned"
        return f"has {how} after collective #{seq}" if seq else f"has {how}"
    waits = next((c for g in sorted(state.entered) if (c := state.waits_in(g)) is not None), None)
    if waits is not None:
        return f"waits in {waits.text}"
    at = f" at {state.where}" if state.where else ""
    return f"is in user code{at}" if state.answered or state.places else "does not answer"


def _plural(what: str) -> str:
    first, _, rest = what.partition(" ")
    return f"{ {'waits': 'wait', 'is': 'are', 'has': 'have', 'does': 'do'}[first] } {rest}"


def _different(states: Sequence[RankState], group: str) -> tuple[int, ...]:
    """The ranks that entered another collective than most, at the first number where they differ."""
    numbers = sorted({c.seq for s in states for c in s.last if c.group == group})
    for seq in numbers:
        kinds = {s.rank: c.kind for s in states if (c := s.at(group, seq)) is not None}
        counts = Counter(kinds.values()).most_common()
        if len(counts) > 1:
            most, count = counts[0]
            return tuple(r for r, kind in kinds.items() if kind != most) if count * 2 > len(kinds) else ()
    return ()


def _behind(states: Sequence[RankState], group: str, world_size: int) -> tuple[int, ...]:
    """The ranks that have not entered what others wait in, where every rank of the gang is known."""
    waiting = [c.seq for s in states if (c := s.waits_in(group)) is not None]
    if not waiting or len(states) < world_size or any(not s.answered and not s.places for s in states):
        return ()
    first = min(waiting)
    return tuple(s.rank for s in states if s.entered.get(group, 0) < first)
