"""Whose turn it is, and who may have how much: shares of the cell by workspace, team and user. Pure.

Who stays within the guarantee of its workspace goes first, then whoever gives way to nobody, then preemptible calls. Of
each of them, the account whose dominant share of the cell, what it holds now and what it held on average before, is the
least for its weight: workspaces first, within them teams, within them users. A gang gives way only to calls that would
go before its own, so that nobody takes back what was taken.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from phalanx.core.errors import UnschedulableError
from phalanx.core.spec import FunctionSpec
from phalanx.policy import Path, Policy, policy_from_json, shown
from phalanx_control.scheduler.fleet import picture_of
from phalanx_control.scheduler.room import Rooms
from phalanx_control.scheduler.words import count_gpus
from phalanx_control.state.amounts import Amount, asked_by, held_by, remembered
from phalanx_control.state.model import Gang, Owner, State, Usage

Standing = tuple[tuple[int, float], ...]
"""Its class, then for a workspace and what is below it: whether it goes beyond its guarantee, and share over weight."""

_DIGITS = 9
"""Shares are told apart to so many places: how they were added up makes no difference."""
_ROOT: Path = ()


class Accounts:
    """The accounts of one pass, written on as gangs are given places."""

    def __init__(self, state: State, rooms: Rooms, now_ms: int) -> None:
        self.policy: Policy = policy_from_json(state.policy)
        self.total = rooms.total
        self._held: dict[Path, Amount] = {}
        self._firm: dict[Path, float] = {}
        self._past: dict[Path, Amount] = {}
        self._scores: dict[Path, float] = {}
        """Shares over weights, until the account holds something else."""
        for (workspace, user), holding in rooms.users.items():
            path = self.policy.path_of(workspace, user)
            self._add(path, holding.amount, holding.firm_gpus)
            if state.policy:
                self._add_past(path, holding.average(rooms.memory, now_ms))
        for name, usage in state.usage.items():
            self._add_past(self.policy.path_of(*name.split("\x1f")), self._average(usage, rooms, now_ms))

    def path(self, owner: Owner) -> Path:
        return self.policy.path_of(owner.workspace, owner.user)

    def held(self, path: Path) -> Amount:
        return self._held.get(path, Amount())

    def share(self, path: Path) -> tuple[float, float]:
        """Returns the account's dominant share of the cell: now, and on average before."""
        return self._dominant(self.held(path)), self._dominant(self._past.get(path, Amount()))

    def standing(self, path: Path, spec: FunctionSpec) -> Standing:
        """Orders calls of different users: what the next gang of the function makes of the account."""
        inner = tuple(self._standing(each, spec.resources.gpus) for each in _inward(path))
        return (1 + spec.preemptible if inner[0][0] else 0, 0.0), *inner

    def hold(self, gang: Gang, spec: FunctionSpec) -> None:
        """A gang has got its place."""
        self._take(gang, spec, 1)

    def expect(self, path: Path, spec: FunctionSpec) -> None:
        """Counts a gang of the function as if it had its place."""
        asked = asked_by(spec)
        self._add(path, asked, 0 if spec.preemptible else asked.gpus)

    def limited(self, path: Path, asked: Amount) -> Path | None:
        """Returns the account, the innermost first, whose limit forbids that it has as much more; None: none does."""
        for inner in reversed(list(_inward(path))):
            limit = self.policy.account(inner).limit
            if limit and asked.gpus and self.held(inner).gpus + asked.gpus > limit:
                return inner
        return None

    def over(self, path: Path, asked: Amount) -> float:
        """Returns by how much the account, or one above it, would be beyond its limit with so much more."""
        limits = ((self.policy.account(inner).limit, self.held(inner).gpus) for inner in _inward(path))
        return max((held + asked.gpus - limit for limit, held in limits if limit), default=0)

    def most_gpus(self, path: Path, spec: FunctionSpec) -> int | None:
        """Returns how many GPUs an elastic gang may have, for all of its accounts' limits and others' guarantees; None:
        any number.
        """
        limits = [(self.policy.account(inner).limit, inner) for inner in _inward(path)]
        left = [limit - self.held(inner).gpus for limit, inner in limits if limit]
        if not spec.preemptible and self.policy.guaranteed:
            left.append(self._not_promised(path[:1]) + self.policy.account(path[:1]).gpus - self._firm_of(path[:1]))
        return max(0, math.floor(min(left) + 1e-9)) if left else None

    def why_limited(self, path: Path, asked: Amount) -> str:
        account, held = self.policy.account(path), self.held(path)
        return f"needs {count_gpus(asked.gpus)}; {shown(path)} holds {held.gpus:g} and may have {account.limit:g}"

    def takes_guaranteed(self, path: Path, spec: FunctionSpec) -> str:
        """Returns why a gang that gives way to nobody may not have what others are guaranteed; "" where it may.

        Beyond the guarantees there is a rest for all; whatever else is lent must come back when it is asked for.
        """
        asked = asked_by(spec).gpus
        if spec.preemptible or not asked or not self.policy.guaranteed:
            return ""
        workspace = path[:1]
        own = self._beyond(workspace, asked)
        if not own or own <= self._not_promised(workspace) + 1e-9:
            return ""
        return (
            f"needs {count_gpus(asked)}; what is left beyond the guarantee of {shown(workspace)} is guaranteed to "
            f"others, who lend it to preemptible functions only"
        )

    @contextmanager
    def without(self, leaving: Sequence[tuple[Gang, FunctionSpec]]) -> Generator[None]:
        """Inside, the accounts stand as if these gangs had ended."""
        for gang, spec in leaving:
            self._take(gang, spec, -1)
        try:
            yield
        finally:
            for gang, spec in leaving:
                self._take(gang, spec, 1)

    def is_undercut(self, owner: Owner) -> bool:
        """Says whether the owner's workspace holds less than it is guaranteed."""
        workspace = self.path(owner)[:1]
        return self.held(workspace).gpus < self.policy.account(workspace).gpus

    def known(self) -> list[Path]:
        """Returns every account that is named, or holds or held something, outermost first."""
        return sorted({*self._held, *self._past, *self.policy.accounts} - {_ROOT})

    # ---- sums ----

    def _take(self, gang: Gang, spec: FunctionSpec, sign: int) -> None:
        held = held_by(gang, spec)
        firm = 0 if spec.preemptible else sign * held.gpus
        self._add(self.path(gang.owner), Amount().plus(held, times=sign), firm)

    def _standing(self, path: Path, asked: float) -> tuple[int, float]:
        score = self._scores.get(path)
        if score is None:
            now, before = self.share(path)
            score = self._scores[path] = round((now + before) / self.policy.account(path).weight, _DIGITS)
        guaranteed = self.policy.account(path).gpus
        return int(not guaranteed or self.held(path).gpus + asked > guaranteed), score

    def _beyond(self, workspace: Path, more: float) -> float:
        return max(0, self._firm_of(workspace) + more - self.policy.account(workspace).gpus)

    def _firm_of(self, workspace: Path) -> float:
        return self._firm.get(workspace, 0)

    def _not_promised(self, workspace: Path) -> float:
        """Returns what a workspace may have beyond its guarantee: what nobody is guaranteed and no other has."""
        others = (each for each in self._held if len(each) == 1 and each != workspace)
        return self.total.gpus - self.policy.guaranteed - sum(self._beyond(each, 0) for each in others)

    def _dominant(self, amount: Amount) -> float:
        return max((part / whole for part, whole in zip(amount, self.total, strict=True) if whole), default=0)

    def _average(self, usage: Usage, rooms: Rooms, now_ms: int) -> Amount:
        half_life_ms = rooms.memory.half_life_ms
        return Amount().plus(remembered(usage, now_ms=now_ms, half_life_ms=half_life_ms), times=_PER / half_life_ms)

    def _add(self, path: Path, amount: Amount, firm: float) -> None:
        for inner in _inward(path):
            self._scores.pop(inner, None)
            self._held[inner] = self.held(inner).plus(amount)
            self._firm[inner] = self._firm.get(inner, 0) + firm

    def _add_past(self, path: Path, amount: Amount) -> None:
        for inner in _inward(path):
            self._past[inner] = self._past.get(inner, Amount()).plus(amount)


_PER = 0.6931471805599453
"""ln 2: what is remembered over a half-life's weight is an average."""


def _inward(path: Path) -> Iterator[Path]:
    """Yields the workspace, then what is below it."""
    for length in range(1, len(path) + 1):
        yield path[:length]


def ensure_allowed(state: State, spec: FunctionSpec, owner: Owner) -> None:
    """Raises UnschedulableError where an account may never have as much as one gang: it would wait for ever."""
    policy, asked = policy_from_json(state.policy), spec.resources.gpus
    asks = f"{spec.name} asks for {count_gpus(asked)}"
    for path in _inward(policy.path_of(owner.workspace, owner.user)):
        limit = policy.account(path).limit
        if limit and asked > limit:
            raise UnschedulableError(
                f"{asks}; {shown(path)} may have {limit:g} at most",
                hint="ask for fewer, or an admin for another limit (gpuctl policy show)",
            )
    if spec.preemptible or not policy.guaranteed or not state.nodes:
        return
    known = sum(len(room.node.info.gpus) for room in picture_of(state).values() if not room.played)
    most = policy.account((owner.workspace,)).gpus + max(0, known - policy.guaranteed)
    if asked > most:
        raise UnschedulableError(
            f"{asks}; {owner.workspace} may have {most:g} for good, the rest is guaranteed to others and lent",
            hint="with preemptible=True it may use what is lent, and gives way when its owners need it",
        )
