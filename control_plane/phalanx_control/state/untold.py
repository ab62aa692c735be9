"""Whose ends are to be told, by receiver: each has a line of its own, so that who looks for the next one to tell passes
a receiver at a time, however many wait for it. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from immutables import Map

from phalanx_control.state import ordered
from phalanx_control.state.ordered import Key, Tree


class Untold(msgspec.Struct, frozen=True, gc=False):
    """``lines``: receiver → its calls by the wall time of the next attempt. ``receivers``: by that of the first."""

    lines: Map[str, Tree] = Map()
    receivers: Tree | None = None


def insert(untold: Untold, receiver: str, key: Key) -> Untold:
    """Returns ``untold`` with ``key``, which must not be in it."""
    return _with_line(untold, receiver, ordered.insert(untold.lines.get(receiver), key))


def remove(untold: Untold, receiver: str, key: Key) -> Untold:
    """Returns ``untold`` without ``key``, which must be in it."""
    return _with_line(untold, receiver, ordered.remove(untold.lines[receiver], key))


def build(keys: Iterable[tuple[str, Key]]) -> Untold:
    """Returns what holds ``keys``, each with its receiver, in any order."""
    by_receiver: dict[str, list[Key]] = {}
    for receiver, key in keys:
        by_receiver.setdefault(receiver, []).append(key)
    lines = {receiver: tree for receiver, found in by_receiver.items() if (tree := ordered.build(found)) is not None}
    return Untold(Map(lines), ordered.build((_first_ms(line), receiver) for receiver, line in lines.items()))


def due(untold: Untold, wall_ms: int) -> Iterator[tuple[str, Iterator[str]]]:
    """Yields the receivers that are to be told something now, the longest due first, each with its calls that are."""
    for first_ms, receiver in ordered.in_order(untold.receivers):
        if first_ms > wall_ms:
            return
        yield receiver, _due(untold.lines[receiver], wall_ms)


def _due(line: Tree, wall_ms: int) -> Iterator[str]:
    for next_wall_ms, call_id in ordered.in_order(line):
        if next_wall_ms > wall_ms:
            return
        yield call_id


def _with_line(untold: Untold, receiver: str, line: Tree | None) -> Untold:
    lines, receivers = untold.lines, untold.receivers
    before = lines.get(receiver)
    if before is not None:
        receivers = ordered.remove(receivers, (_first_ms(before), receiver))
    if line is None:
        return Untold(lines.delete(receiver), receivers)
    return Untold(lines.set(receiver, line), ordered.insert(receivers, (_first_ms(line), receiver)))


def _first_ms(line: Tree) -> int:
    return next(ordered.in_order(line))[0]
