"""Which idle warm gangs must go so that a waiting gang fits: the longest idle first, and only if that is enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from phalanx.core.states import GangState
from phalanx_control.scheduler.fit import find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import Rooms
from phalanx_control.state.model import Gang, State

MOST_TRIED = 256
"""Idle gangs that are considered at most: a pass must stay short in a cell of thousands."""


def gangs_to_drain(
    state: State, need: Need, rooms: Rooms, idle_ms: Mapping[str, int], *, barred: frozenset[str]
) -> tuple[Gang, ...] | None:
    """Returns the gangs to let go, none when those that already end are enough, or None when no set is enough.

    ``rooms`` is written on in between and is left as it was.
    """
    ending = [g for g in state.gangs.values() if g.state is GangState.DRAINING]
    imagined = _Imagined(state, need, rooms, barred)
    imagined.end(ending)
    idle = [] if imagined.fits() else _idle(state, need, idle_ms)
    chosen = _enough(imagined, idle)
    imagined.undo()
    return chosen


@dataclass(slots=True)
class _Imagined:
    """The picture without gangs that are imagined to have ended."""

    state: State
    need: Need
    rooms: Rooms
    barred: frozenset[str]
    ended: list[Gang] = field(default_factory=list[Gang])

    def fits(self) -> bool:
        return find_place(self.need, self.rooms, barred=self.barred) is not None

    def end(self, gangs: Iterable[Gang]) -> None:
        for gang in gangs:
            self.rooms.take_out(gang.id)
            self.ended.append(gang)

    def revive(self, gang: Gang) -> None:
        self.rooms.put(gang, self.state.functions[gang.function_id].spec)
        self.ended.remove(gang)

    def undo(self) -> None:
        for gang in self.ended:
            self.rooms.put(gang, self.state.functions[gang.function_id].spec)


def _enough(imagined: _Imagined, idle: list[Gang]) -> tuple[Gang, ...] | None:
    """Ends one after the other until the waiting gang fits, then revives each that was not in the way."""
    chosen: list[Gang] = []
    for gang in idle:
        imagined.end((gang,))
        chosen.append(gang)
        if imagined.fits():
            break
    if not imagined.fits():
        return None
    for gang in reversed(chosen[:-1]):
        imagined.revive(gang)
        if imagined.fits():
            chosen.remove(gang)
        else:
            imagined.end((gang,))
    return tuple(chosen)


def _idle(state: State, need: Need, idle_ms: Mapping[str, int]) -> list[Gang]:
    """Warm gangs with nothing in flight that hold what the waiting one could use, the longest idle first."""
    known = (state.gangs[gang_id] for gang_id in idle_ms if gang_id in state.gangs)
    found = [g for g in known if g.state is GangState.READY and not g.calls and _could_help(g, need)]
    return sorted(found, key=lambda g: (-idle_ms[g.id], g.fence))[:MOST_TRIED]


def _could_help(gang: Gang, need: Need) -> bool:
    return any(m.member.gpus for m in gang.members) or not need.spec.resources.gpus
