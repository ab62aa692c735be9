"""Which nodes gangs died on for causes that are not their users', and what that makes of the nodes. Pure.

A single death says little: its call avoids the node in its next attempts, and that is all. Deaths of different calls, a
minute apart or more, make a suspect: two in an hour, and the node is chosen last; three, and it is cordoned. A function
that died on several nodes is no witness: there it may be the function.

Time counts in whole minutes, so that what was found out once holds for all passes of a minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from immutables import Map

from phalanx_control.state.model import Blame, State

WINDOW_MS = 3_600_000
MINUTE_MS = 60_000
"""What happens within a minute has one cause: a reboot ends every gang of a node."""
LAST_AFTER = 2
CORDONED_AFTER = 3
_NO_WITNESS = 3
"""Nodes on which a function died, from which on its deaths are held against none of them."""
_NONE: frozenset[str] = frozenset()
_Blames = Map[str, tuple[Blame, ...]]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """``deaths``: of nodes that are chosen last, what is held against them. ``avoided``: by call, the nodes on which a
    gang died under it.
    """

    deaths: dict[str, tuple[Blame, ...]] = field(default_factory=dict[str, tuple[Blame, ...]])
    avoided: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    @property
    def suspects(self) -> frozenset[str]:
        return frozenset(self.deaths)


class _Last:
    """What was found out last: asked again and again while nothing happens."""

    blames: _Blames = Map()
    minute = -1
    verdicts = Verdicts()


def verdicts(state: State, now_ms: int) -> Verdicts:
    """Returns what the deaths of the last hour say of all nodes."""
    minute = now_ms // MINUTE_MS
    if not state.blames:
        return Verdicts()
    if _Last.blames is not state.blames or _Last.minute != minute:
        _Last.verdicts = _judge(state.blames, minute * MINUTE_MS)
        _Last.blames, _Last.minute = state.blames, minute
    return _Last.verdicts


def held_against(state: State, node_id: str, now_ms: int) -> tuple[Blame, ...]:
    """Returns the deaths that count against one node, at this very moment; at most one of each call and minute."""
    recent = tuple(_recent(state.blames.get(node_id, ()), now_ms))
    if len(_incidents(recent)) < LAST_AFTER:
        return ()
    return _incidents(blame for blame in recent if _is_witness(state.blames, blame.function_id, now_ms))


def deaths_in_words(deaths: tuple[Blame, ...]) -> str:
    """Returns ``2 gangs died here within an hour (g-…, g-…), the last: …``."""
    gangs = ", ".join(blame.gang_id for blame in deaths)
    return f"{len(deaths)} gangs died here within an hour ({gangs}), the last: {deaths[-1].reason}"


def in_words(state: State, node_id: str, now_ms: int) -> str:
    """Returns why a node is chosen last; "" where it is not."""
    deaths = verdicts(state, now_ms).deaths.get(node_id, ())
    return f"chosen last: {deaths_in_words(deaths)}" if deaths else ""


def _judge(blames: _Blames, now_ms: int) -> Verdicts:
    recent = {node_id: tuple(_recent(known, now_ms)) for node_id, known in blames.items()}
    functions: defaultdict[str, set[str]] = defaultdict(set)
    avoided: defaultdict[str, set[str]] = defaultdict(set)
    for node_id, known in recent.items():
        for blame in known:
            functions[blame.function_id].add(node_id)
            avoided[blame.call_id].add(node_id)
    deaths: dict[str, tuple[Blame, ...]] = {}
    for node_id, known in recent.items():
        found = _incidents(blame for blame in known if len(functions[blame.function_id]) < _NO_WITNESS)
        if len(found) >= LAST_AFTER:
            deaths[node_id] = found
    return Verdicts(deaths, {call_id: frozenset(nodes) for call_id, nodes in avoided.items()})


def _recent(known: Iterable[Blame], now_ms: int) -> Iterator[Blame]:
    return (blame for blame in known if now_ms - blame.at_ms < WINDOW_MS)


def _incidents(known: Iterable[Blame]) -> tuple[Blame, ...]:
    found: list[Blame] = []
    for blame in known:
        if not any(blame.call_id == other.call_id or blame.at_ms - other.at_ms < MINUTE_MS for other in found):
            found.append(blame)
    return tuple(found)


def _is_witness(blames: _Blames, function_id: str, now_ms: int) -> bool:
    nodes = 0
    for known in blames.values():
        nodes += any(blame.function_id == function_id for blame in _recent(known, now_ms))
        if nodes >= _NO_WITNESS:
            return False
    return True
