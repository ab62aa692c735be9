"""What the page shows, as JSON-able fields by key, and how it changed since the last look.

Only what a durable change touched, and gangs that are alive, is drawn again: looking twice a second costs next to
nothing on a quiet cell. The model holds every workspace's calls and gangs, each with its owner; who sees what is
decided when it is sent (`page_messages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from phalanx.core.messages import Body
from phalanx.core.views import CallView
from phalanx_control.service.queries import Pictures
from phalanx_control.state.model import Call, State

MAX_LIVE_CALLS = 2000
MAX_ENDED_CALLS = 200
LOOKS_PER_NODES = 4
"""Nodes without a gang move only in when they were last heard."""
CALLS, GANGS, NODES = "calls", "gangs", "nodes"
Key = tuple[str, str]
"""Kind and id."""


@dataclass(frozen=True, slots=True)
class Item:
    """One call, gang or node as the page shows it; nodes have no workspace."""

    workspace: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """``fields`` that differ from before; None when the item has left the page."""

    key: Key
    workspace: str
    fields: dict[str, Any] | None


class PageModel:
    """The page's picture of one state."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures
        self.items: dict[Key, Item] = {}
        self.version = 0
        self._looks = 0

    def look(self, state: State, touched: Iterable[str] | None) -> list[Change]:
        """Draws again what was ``touched`` (ids of calls, gangs and nodes; None: everything) and what is alive.

        Returns the differences, in no particular order.
        """
        keys = set(_everything(state)) | set(self.items) if touched is None else set(self._keys(state, touched))
        keys |= set(_alive(state))
        self._looks += 1
        if self._looks % LOOKS_PER_NODES == 0:
            keys |= {(NODES, node_id) for node_id in state.nodes}
        changes = [change for key in keys if (change := self._draw(state, key)) is not None]
        changes += self._forget_old_calls()
        self.version += bool(changes)
        return changes

    def _keys(self, state: State, ids: Iterable[str]) -> Iterator[Key]:
        for subject in ids:
            for kind, records in ((CALLS, state.calls), (GANGS, state.gangs), (NODES, state.nodes)):
                if subject in records or (kind, subject) in self.items:
                    yield kind, subject

    def _draw(self, state: State, key: Key) -> Change | None:
        before, after = self.items.get(key), self._item(state, key)
        if after is None:
            if before is None:
                return None
            del self.items[key]
            return Change(key, before.workspace, None)
        if before is None and key[0] == CALLS and len(self.items) >= MAX_LIVE_CALLS + MAX_ENDED_CALLS:
            return None
        self.items[key] = after
        old = before.fields if before else {}
        fields = {name: value for name, value in after.fields.items() if name not in old or old[name] != value}
        return Change(key, after.workspace, fields) if fields or before is None else None

    def _item(self, state: State, key: Key) -> Item | None:
        kind, subject = key
        if kind == CALLS and (call := state.calls.get(subject)) is not None:
            return Item(call.owner.workspace, plain(shown_call(self._pictures.call(state, call))))
        if kind == GANGS and (gang := state.gangs.get(subject)) is not None:
            return Item(gang.owner.workspace, plain(self._pictures.gang(state, gang)))
        if kind == NODES and (node := state.nodes.get(subject)) is not None:
            return Item("", plain(self._pictures.node(state, node)))
        return None

    def _forget_old_calls(self) -> list[Change]:
        ended = [
            (item.fields["ended_ms"], key)
            for key, item in self.items.items()
            if key[0] == CALLS and item.fields["ended_ms"]
        ]
        if len(ended) <= 2 * MAX_ENDED_CALLS:
            return []
        old = [key for _, key in sorted(ended)[:-MAX_ENDED_CALLS]]
        return [Change(key, self.items.pop(key).workspace, None) for key in old]


def shown_call(view: CallView) -> CallView:
    """Returns the view without bytes: the page shows sizes and texts."""
    error = replace(view.error, pickled=b"")
    return replace(view, result=Body(blob=view.result.blob, size=view.result.size), error=error)


def plain(view: Any) -> dict[str, Any]:
    """Returns a view as JSON types."""
    return msgspec.to_builtins(view)


def _everything(state: State) -> Iterator[Key]:
    yield from ((NODES, node_id) for node_id in state.nodes)
    yield from ((GANGS, gang_id) for gang_id in state.gangs)
    ended = sorted((call for call in state.calls.values() if call.state.terminal), key=_age)[-MAX_ENDED_CALLS:]
    live = sorted((call for call in state.calls.values() if not call.state.terminal), key=_age)[-MAX_LIVE_CALLS:]
    yield from ((CALLS, call.id) for call in (*ended, *live))


def _age(call: Call) -> tuple[int, str]:
    return max(call.submitted_wall_ms, call.ended_wall_ms), call.id


def _alive(state: State) -> Iterator[Key]:
    """Gangs, the calls they run and the nodes they are on: these move with fast facts."""
    for gang in state.gangs.values():
        yield GANGS, gang.id
        yield from ((CALLS, call_id) for call_id in {gang.for_call, *gang.calls} if call_id)
        yield from ((NODES, member.member.node_id) for member in gang.members)
