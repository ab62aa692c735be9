"""Which preemptible gangs give way to a call: those whose own calls would stand behind it without them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phalanx.core.spec import FunctionSpec
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.scheduler.accounts import Accounts, Standing
from phalanx_control.scheduler.room import Rooms
from phalanx_control.state import queries
from phalanx_control.state.amounts import standing_of
from phalanx_control.state.model import Call, Gang, State


class _Lost(NamedTuple):
    """What ends with a gang: ``gpu_ms`` of work. ``since_ms``: when the first of its calls counts as submitted."""

    gpu_ms: float
    since_ms: int
    spec: FunctionSpec
    alike: object
    """Gangs of which this is the same stand and fall together."""


class Yielding:
    """Answers for one pass; what ends with each gang is looked up when first asked for."""

    def __init__(self, draft: Draft, rooms: Rooms, accounts: Accounts) -> None:
        self._draft = draft
        self._rooms = rooms
        self._accounts = accounts
        self._at_stake: dict[str, _Lost] | None = None

    def victims(self, call: Call) -> dict[str, float]:
        """Returns the gangs that must give way to the call, and the GPU milliseconds of work that end with each."""
        found: dict[str, float] = {}
        pairs: dict[object, tuple[Standing, Standing] | None] = {}
        own_ms = standing_of(self._draft.state, call)
        for gang_id, lost in self._known().items():
            gang = self._draft.state.gangs[gang_id]
            if gang.state not in queries.WARM or not gang.calls:
                continue
            if lost.alike not in pairs:
                with self._accounts.without([(gang, lost.spec)]):
                    pairs[lost.alike] = self._pair(gang, lost.spec, call)
            pair = pairs[lost.alike]
            if pair is not None and (pair[0], lost.since_ms) > (pair[1], own_ms):
                found[gang_id] = lost.gpu_ms
        return found

    def all_of(self, leaving: Sequence[Gang], call: Call) -> bool:
        """Says whether the call still stands before those that end for it when all of them have: else they, together,
        would take back what was taken from each. Idle gangs have nobody to wait.
        """
        state = self._draft.state
        busy = [(gang, self._draft.spec(gang.function_id)) for gang in leaving if gang.calls]
        own_ms = standing_of(state, call)
        with self._accounts.without(busy):
            for gang, spec in busy:
                pair = self._pair(gang, spec, call)
                if pair is None or (pair[0], _since_ms(state, gang)) <= (pair[1], own_ms):
                    return False
        return True

    def _pair(self, gang: Gang, spec: FunctionSpec, call: Call) -> tuple[Standing, Standing] | None:
        """Returns how the next gang of that account and one for the call would stand; None where that account would
        have less than it is guaranteed.
        """
        accounts = self._accounts
        if call.owner.workspace != gang.owner.workspace and accounts.is_undercut(gang.owner):
            return None
        mine = accounts.standing(accounts.path(call.owner), self._draft.spec(call.function_id))
        return accounts.standing(accounts.path(gang.owner), spec), mine

    def _known(self) -> dict[str, _Lost]:
        """Returns what ends with each gang that may give way and has run for long enough, as when first asked."""
        if self._at_stake is None:
            state, now_ms = self._draft.state, self._draft.now.log_ms
            youngest_ms = now_ms - self._accounts.policy.min_runtime_s * 1000
            known = ((state.gangs[gang_id], gpus) for gang_id, gpus in self._rooms.preemptible.items())
            old = ((gang, gpus) for gang, gpus in known if gang.created_ms <= youngest_ms and gang.calls)
            self._at_stake = {gang.id: _lost(state, gang, gpus, now_ms) for gang, gpus in old}
        return self._at_stake


def _lost(state: State, gang: Gang, gpus: float, now_ms: int) -> _Lost:
    began = [state.calls[call_id].started_ms for call_id in gang.calls]
    gpu_ms = gpus * (now_ms - min((ms for ms in began if ms), default=now_ms))
    alike = (gang.owner, gang.function_id, gpus)
    return _Lost(gpu_ms, _since_ms(state, gang), state.functions[gang.function_id].spec, alike)


def _since_ms(state: State, gang: Gang) -> int:
    return min(standing_of(state, state.calls[call_id]) for call_id in gang.calls)
