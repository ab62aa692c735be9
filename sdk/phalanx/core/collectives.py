"""Which rank of a gang is the odd one: from what each rank knows of its last collectives. Pure, and never a guess.

Ranks of one group must enter the same collectives in the same order. So who has not entered the one that the others
wait in is the odd one, and so is who entered another one in its place; but not who waits for somebody else meanwhile.
Where neither side is the smaller, or where some rank is not known, nobody is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from phalanx.core.stacks import Place, ranks_text

_SAME_SIZES = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "reduce_scatter", "_reduce_scatter_base"),
    *("gather", "scatter", "barrier"),
)
"""Operations whose inputs have one size on all ranks, as gloo and NCCL name them; of a scatter, its outputs."""
DEFAULT_GROUP = "0"
"""torch's name of a gang's own group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective as a rank entered it. ``sizes``: of the inputs, in elements; of a scatter, of the outputs."""

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
    stopped: bool = False
    """A signal holds the whole process."""
    entered: dict[str, int] = field(default_factory=dict[str, int])
    completed: dict[str, int] = field(default_factory=dict[str, int])
    members: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """The ranks of each group that it belongs to, as far as it said."""
    last: tuple[Collective, ...] = ()
    places: tuple[Place, ...] = ()

    @property
    def is_known(self) -> bool:
        """Enough is known to compare it: its own record, or at least where it stands."""
        return self.answered or bool(self.places)

    @property
    def waits(self) -> bool:
        """It waits for other ranks: in a collective, or for a message of another kind."""
        if self.replied:
            return False
        inside = bool(self.places) and self.places[0].is_of_collectives
        return inside or any(self.waits_in(group) is not None for group in self.entered)

    def waits_in(self, group: str) -> Collective | None:
        """The collective of ``group`` that it has entered and not completed: by its records, the first; else by the
        counts, which name the one that was completed last, and several at once may be completed in any order.
        """
        if not self.answered or self.replied:
            return None
        known = [c for c in self.last if c.group == group]
        if known:
            return next((c for c in known if not c.done), None)
        seq = self.entered.get(group, 0)
        return Collective(group=group, seq=seq, op="collective") if seq > self.completed.get(group, 0) else None

    def at(self, group: str, seq: int) -> Collective | None:
        return next((c for c in self.last if c.group == group and c.seq == seq), None)

    @property
    def where(self) -> str:
        """``train.py:88`` in the user's own code; empty where it is not known."""
        place = next((p for p in self.places if p.is_users), self.places[0] if self.places else None)
        return place.short if place is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``culprits``: the odd ranks; empty where they cannot be known. ``text``: who stands where. ``what``: what the
    odd ones did, unless they are those that failed. ``alike``: all ranks failed, and in the same collective.
    """

    culprits: tuple[int, ...] = ()
    text: str = ""
    what: str = ""
    alike: bool = False


def compare(states: Sequence[RankState], *, world_size: int) -> Finding:
    """Names the odd ranks of a gang that does not go on."""
    text = describe(states)
    stopped = tuple(s.rank for s in states if s.stopped)
    if stopped:
        return Finding(culprits=stopped, text=text)
    first: dict[str, int] = {}
    for state in states:
        for group in state.entered:
            if (waits := state.waits_in(group)) is not None:
                first[group] = min(waits.seq, first.get(group, waits.seq))
    for group in sorted(first):
        odd = _different(states, group)
        if odd is not None:
            return Finding(culprits=odd, text=text)
    if first:
        return Finding(culprits=_missing(states, first, world_size) or _crossed(states, first, world_size), text=text)
    inside = tuple(s.rank for s in states if not s.replied and (world_size == 1 or not s.waits))
    known = len(states) == world_size and all(s.is_known or s.replied for s in states)
    alone = known and (world_size == 1 or 0 < len(inside) < world_size)
    return Finding(culprits=inside if alone else (), text=text)


def at_fault(
    states: Sequence[RankState], *, failed: Sequence[int], dead: Sequence[int] = (), crashed: Sequence[int] = ()
) -> Finding:
    """Names who made ranks fail in collectives, where none failed otherwise. ``states``: of all ranks of the gang.

    ``failed``: those that raised. ``dead``: those that ended within a collective; they cannot be asked. ``crashed``: of
    these, those that the library did not end by itself. A crash is a rank's own, unless one that has returned left it
    with what only two could do.
    """
    living = [s for s in states if s.rank not in dead]
    text = describe(living)
    if not living or not all(s.is_known for s in living):
        return Finding(text=text)
    for group in sorted({g for s in living for g in s.entered}):
        odd = _different(living, group)
        if odd is not None:
            return Finding(culprits=odd, text=text, what="entered another collective than the other ranks")
    if dead:
        if len(dead) == 1 and dead[0] in crashed and not any(s.replied and not s.failed for s in living):
            return Finding(culprits=tuple(dead), text=text)
        alike = {s.last[-1].text if s.last else None for s in living}
        alone = len(dead) == len(alike) == 1 and len(living) > 1 and None not in alike
        return Finding(culprits=tuple(dead) if alone else (), text=text)
    return _of_failed(living, failed, text)


def _of_failed(states: Sequence[RankState], failed: Sequence[int], text: str) -> Finding:
    """Of ranks that entered the same collectives: who is behind, where it is the few; else the one that failed."""
    first: dict[str, int] = {}
    for state in states:
        for group, count in state.entered.items():
            if state.rank in failed or state.waits_in(group) is not None:
                first[group] = min(count, first.get(group, count))
    world_size = len(states)
    behind = _missing(states, first, world_size)
    returned = {s.rank for s in states if s.replied and not s.failed}
    if behind and (2 * len(behind) < world_size or set(behind) <= {*failed} or {*behind} == returned):
        return Finding(culprits=behind, text=text, what="did not enter the collective that other ranks failed in")
    if not behind and len(failed) == world_size > 1:
        return Finding(text=text, alike=True)
    told = len(failed) == 1 and (not behind or 2 * len(behind) > world_size)
    return Finding(culprits=tuple(failed) if told else (), text=text)


def describe(states: Sequence[RankState]) -> str:
    """Returns who stands where: ``ranks 0,2,3 wait in all_reduce #41, rank 1 is in user code at train.py:88``."""
    found: dict[str, list[int]] = {}
    for state in sorted(states, key=lambda s: s.rank):
        found.setdefault(stands(state), []).append(state.rank)
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


def stands(state: RankState) -> str:
    """Returns where one rank stands: ``waits in all_reduce #41``."""
    if not state.alive:
        return "is dead"
    if state.replied:
        how = "has failed" if state.failed else "has returned"
        if state.last:
            inside = state.failed and not state.last[-1].done
            return f"{how} {'in' if inside else 'after'} {state.last[-1].text}"
        seq = max(state.entered.values(), default=0)
        inside = state.failed and seq > max(state.completed.values(), default=0)
        return f"{how} {'in' if inside else 'after'} collective #{seq}" if seq else how
    if state.stopped:
        return f"is stopped by a signal (kill -CONT {state.pid} lets it go on)"
    waits = next((c for g in sorted(state.entered) if (c := state.waits_in(g)) is not None), None)
    if waits is not None:
        return f"waits in {waits.text}"
    at = f" at {state.where}" if state.where else ""
    return f"is in user code{at}" if state.answered or state.places else "does not answer"


def _plural(what: str) -> str:
    first, _, rest = what.partition(" ")
    return f"{ {'waits': 'wait', 'is': 'are', 'has': 'have', 'does': 'do'}[first] } {rest}"


def _different(states: Sequence[RankState], group: str) -> tuple[int, ...] | None:
    """The ranks that entered another collective than most, at the first number where they differ; empty where no side
    is the larger, None where they do not differ.
    """
    numbers = sorted({c.seq for s in states for c in s.last if c.group == group})
    for seq in numbers:
        kinds = {s.rank: c.kind for s in states if (c := s.at(group, seq)) is not None}
        counts = Counter(kinds.values()).most_common()
        if len(counts) > 1:
            most, count = counts[0]
            return tuple(r for r, kind in kinds.items() if kind != most) if count * 2 > len(kinds) else ()
    return None


def _missing(states: Sequence[RankState], first: Mapping[str, int], world_size: int) -> tuple[int, ...]:
    """The ranks that have not entered collective number ``first[group]`` and do not wait for anything themselves, where
    every rank of the gang is known.
    """
    if len(states) < world_size or not all(s.is_known for s in states):
        return ()
    behind: set[int] = set()
    for group, seq in first.items():
        members = _members(states, group, world_size)
        behind |= {s.rank for s in states if s.rank in members and s.entered.get(group, 0) < seq}
    return tuple(s.rank for s in states if s.rank in behind and not s.waits)


def _crossed(states: Sequence[RankState], first: Mapping[str, int], world_size: int) -> tuple[int, ...]:
    """Of ranks that belong to two groups and wait for each other, some in each: the fewer."""
    if len(first) != 2:
        return ()
    one, other = first
    both = _members(states, one, world_size) & _members(states, other, world_size)
    sides = [tuple(s.rank for s in states if s.rank in both and s.waits_in(group) is not None) for group in first]
    fewer, more = sorted(sides, key=len)
    return fewer if len(fewer) < len(more) and not {*fewer} & {*more} else ()


def _members(states: Sequence[RankState], group: str, world_size: int) -> set[int]:
    """The ranks of a group; none where nobody says."""
    said = next((s.members[group] for s in states if group in s.members), ())
    return {*range(world_size)} if group == DEFAULT_GROUP else {*said}
