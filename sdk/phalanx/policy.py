"""Who gets how much of a cell: weights, guarantees and limits of workspaces, their teams and their users. Pure.

    half_life = "24h"                    # how fast past use is forgotten
    min_runtime = "1m"                   # how long a preemptible gang runs at least

    [workspaces.research]
    weight = 2                           # of what is left over, against the others'
    gpus = 64                            # guaranteed; others may borrow them while it does not need them
    limit = 128                          # never more
    teams.nlp = { weight = 3, users = ["ada", "bob"] }
    users.eve = { limit = 8 }

An account is a path: a workspace, within it a team or a user of no team, and within a team a user. Whoever is not named
has weight 1, no guarantee and no limit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from phalanx.core.errors import InvalidSpecError
from phalanx.durations import Duration, from_none, positive

Path = tuple[str, ...]
"""``("research", "@nlp", "ada")``: teams are marked, so that none is taken for a user."""

MAX_POLICY_CHARS = 262_144
_HALF_LIFE_S = 86_400.0
_LONGEST_S = 10 * 365 * 86_400.0
_MOST = 1e9
_MIN_RUNTIME_S = 60.0
_OF_ALL = ("half_life", "min_runtime", "workspaces")
_TERMS = ("weight", "gpus", "limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """``gpus``: guaranteed. ``limit`` 0: none."""

    weight: float = 1
    gpus: float = 0
    limit: float = 0


_UNNAMED = Account()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    half_life_s: float = _HALF_LIFE_S
    min_runtime_s: float = _MIN_RUNTIME_S
    accounts: Mapping[Path, Account] = field(default_factory=dict[Path, Account])
    teams: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """(workspace, user) → team."""

    def path_of(self, workspace: str, user: str) -> Path:
        """Returns the account that a user's calls count for."""
        team = self.teams.get((workspace, user))
        return (workspace, user) if team is None else (workspace, f"@{team}", user)

    def account(self, path: Path) -> Account:
        return self.accounts.get(path, _UNNAMED)

    @property
    def guaranteed(self) -> float:
        """GPUs that are guaranteed to workspaces, together."""
        return sum(account.gpus for path, account in self.accounts.items() if len(path) == 1)


@lru_cache(maxsize=16)
def policy_from_json(text: str) -> Policy:
    """Reads a policy; an empty text is the one that nobody has set. Raises InvalidSpecError naming what is wrong."""
    if len(text) > MAX_POLICY_CHARS:
        raise InvalidSpecError(f"the policy has {len(text):,} characters: give at most {MAX_POLICY_CHARS:,}")
    if not text:
        return Policy()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise InvalidSpecError(f"the policy is no JSON: {e}") from e
    return policy_of(data)


def policy_of(data: object) -> Policy:
    """Reads a policy from parsed TOML or JSON. Raises InvalidSpecError naming the account, the value and the rule."""
    top = _table("policy", data, _OF_ALL)
    workspaces = _table("workspaces", top.get("workspaces", {}))
    accounts: dict[Path, Account] = {}
    teams: dict[tuple[str, str], str] = {}
    for name, value in workspaces.items():
        _read_workspace(name, value, accounts, teams)
    _check_sums(accounts)
    return Policy(
        half_life_s=_half_life(positive("half_life", _duration(top, "half_life", _HALF_LIFE_S))),
        min_runtime_s=from_none("min_runtime", _duration(top, "min_runtime", _MIN_RUNTIME_S)),
        accounts=accounts,
        teams=teams,
    )


def only_of(text: str, workspace: str) -> str:
    """Returns a policy with what it says of one workspace alone."""
    data = json.loads(text)
    own = {name: terms for name, terms in data.get("workspaces", {}).items() if name == workspace}
    return json.dumps({**data, "workspaces": own}, sort_keys=True, separators=(",", ":"))


def shown(path: Path) -> str:
    """Returns an account as people read it: ``research/@nlp/ada``."""
    return "/".join(path) or "everybody"


def _read_workspace(name: str, value: object, accounts: dict[Path, Account], teams: dict[tuple[str, str], str]) -> None:
    where = f"workspaces.{name}"
    table = _table(where, value, (*_TERMS, "teams", "users"))
    accounts[name,] = _account(where, table)
    for team, given in _table(f"{where}.teams", table.get("teams", {})).items():
        of_team = _table(f"{where}.teams.{team}", given, (*_TERMS, "users"))
        accounts[name, f"@{team}"] = _account(f"{where}.teams.{team}", of_team)
        for user, terms in _users(f"{where}.teams.{team}", of_team.get("users", {})):
            if (name, user) in teams:
                raise InvalidSpecError(f"{where}: user {user} is in teams {teams[name, user]} and {team}: keep one")
            teams[name, user] = team
            accounts[name, f"@{team}", user] = terms
    for user, terms in _users(where, table.get("users", {})):
        if (name, user) in teams:
            raise InvalidSpecError(f"{where}.users.{user}: is in team {teams[name, user]}: give its terms there")
        accounts[name, user] = terms


def _users(where: str, value: object) -> Iterator[tuple[str, Account]]:
    """A list of names, or a table of names and their terms."""
    if isinstance(value, list):
        for user in cast("list[object]", value):
            if not isinstance(user, str):
                raise InvalidSpecError(f"{where}.users: {user!r} is no name")
            _check_name(f"{where}.users", user)
            yield user, _UNNAMED
        return
    for user, given in _table(f"{where}.users", value).items():
        yield user, _account(f"{where}.users.{user}", _table(f"{where}.users.{user}", given, _TERMS))


def _account(where: str, table: Mapping[str, object]) -> Account:
    weight, gpus, limit = (_number(where, table, name) for name in _TERMS)
    if "weight" in table and weight <= 0:
        raise InvalidSpecError(f"{where}.weight={weight:g}: give more than 0")
    if limit and gpus > limit:
        raise InvalidSpecError(f"{where}: gpus={gpus:g} are guaranteed, and limit={limit:g} is less: give as many")
    return Account(weight=weight if "weight" in table else 1, gpus=gpus, limit=limit)


def _check_sums(accounts: Mapping[Path, Account]) -> None:
    """Nobody can guarantee more than is guaranteed to it."""
    totals: Counter[Path] = Counter()
    for inner, part in accounts.items():
        totals[inner[:-1]] += part.gpus  # pyright: ignore[reportArgumentType]
    for path, account in accounts.items():
        total = totals[path]
        if total > account.gpus and total:
            raise InvalidSpecError(
                f"{shown(path)}: its parts are guaranteed {total:g} GPUs, itself gpus={account.gpus:g}: "
                f"give it as many, or them fewer"
            )


def _table(where: str, value: object, known: tuple[str, ...] = ()) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidSpecError(f"{where} is {value!r:.80}: give a table")
    table = cast("Mapping[str, object]", value)
    for name in table:
        if known and name not in known:
            raise InvalidSpecError(f"{where} has an unknown key {name!r}: use {', '.join(known)}")
        _check_name(where, name)
    return table


def _check_name(where: str, name: str) -> None:
    if not name or "/" in name or name.startswith("@") or not name.isprintable():
        raise InvalidSpecError(f"{where} has a name {name!r}: give one without slashes that does not begin with @")


def _half_life(value: float) -> float:
    if not 1 <= value <= _LONGEST_S:
        raise InvalidSpecError(f"half_life={value:g}: give 1 second to 10 years")
    return value


def _number(where: str, table: Mapping[str, object], name: str) -> float:
    value = table.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise InvalidSpecError(f"{where}.{name}={value!r}: give a number from 0 on")
    return float(value)


def _duration(table: Mapping[str, object], name: str, default: float) -> Duration:
    return cast("Any", table.get(name, default))
