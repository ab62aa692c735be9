"""In which order calls that wait are looked at: account by account, and each user's calls by time and priority."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import islice

from phalanx.core.spec import FunctionSpec
from phalanx.policy import Path
from phalanx_control.scheduler.accounts import Accounts, Standing
from phalanx_control.state import ordered
from phalanx_control.state.model import Call, State


@dataclass(slots=True)
class _Line:
    """The calls of one user to one function."""

    of: tuple[str, str, str]
    path: Path
    spec: FunctionSpec
    rest: Iterator[ordered.Key]


def in_turn(
    state: State, accounts: Accounts, *, per_line: int, hopeless: Container[tuple[str, ...]] = ()
) -> Iterator[Call]:
    """Yields queued calls, whoever has the least standing first, at most ``per_line`` of each user and function.

    What the accounts hold may grow meanwhile: each call is looked at again when it would be the next. Functions of
    workspaces, or of users there, that have become ``hopeless`` are passed over from then on.
    """
    heap: list[_Entry] = []
    for function_id, users in state.lines.items():
        function = state.functions[function_id]
        for user, tree in users.items():
            path = accounts.policy.path_of(function.owner.workspace, user)
            of = (function_id, function.owner.workspace, user)
            line = _Line(of, path, function.spec, islice(ordered.in_order(tree), per_line))
            heap += _head(line, accounts)
    heapq.heapify(heap)
    while heap:
        standing, key, line = heap[0]
        if line.of in hopeless or line.of[:2] in hopeless:
            heapq.heappop(heap)
            continue
        now = accounts.standing(line.path, line.spec)
        if now > standing:
            heapq.heapreplace(heap, (now, key, line))
            continue
        yield state.calls[key[1]]
        following = _head(line, accounts)
        if following:
            heapq.heapreplace(heap, following[0])
        else:
            heapq.heappop(heap)


_Entry = tuple[Standing, ordered.Key, _Line]


def _head(line: _Line, accounts: Accounts) -> list[_Entry]:
    """Returns the line's next call; none when there are no more."""
    key = next(line.rest, None)
    return [] if key is None else [(accounts.standing(line.path, line.spec), key, line)]
