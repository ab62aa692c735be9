"""Wakes those who watch calls. One reader of the controller's changes serves every watcher.

A watcher is woken when its call, or the gang that runs it, appears in a durable batch. What changed it finds out by
looking at the state again, so a wake-up too many does no harm and one that is merged with another loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager

from phalanx_control.service.ports import ControllerPort
from phalanx_control.state.events import AnyEvent, Events
from phalanx_control.state.model import State


class ChangeHub:
    """Spreads the controller's changes by subject: a call id, a gang id, a node id."""

    def __init__(self, controller: ControllerPort) -> None:
        self._controller = controller
        self._watchers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    async def run(self) -> None:
        """Reads changes until cancelled. A change without events says that some were missed: everybody looks."""
        async for before, events, after in self._controller.changes():
            subjects = subjects_of(events, before, after) if events else set(self._watchers)
            for subject in subjects:
                for watcher in self._watchers.get(subject, ()):
                    watcher.set()

    @contextmanager
    def watching(self, subject: str) -> Generator[asyncio.Event]:
        """Gives an event that is set at each change of ``subject``; whoever waits clears it."""
        event = asyncio.Event()
        self._watchers[subject].add(event)
        try:
            yield event
        finally:
            self._watchers[subject].discard(event)
            if not self._watchers[subject]:
                del self._watchers[subject]


def subjects_of(events: Events, before: State, after: State) -> set[str]:
    """Returns the ids of calls, gangs and nodes that a batch is about, the calls of its gangs included."""
    found: set[str] = set()
    for event in events:
        found |= _named(event)
    for gang_id in [subject for subject in found if subject in before.gangs or subject in after.gangs]:
        for state in (before, after):
            gang = state.gangs.get(gang_id)
            if gang is not None:
                found |= {gang.for_call, *gang.calls, *(m.member.node_id for m in gang.members)}
    return found - {""}


def _named(event: AnyEvent) -> set[str]:
    found = {str(getattr(event, name, "")) for name in ("call_id", "gang_id", "node_id")}
    found |= set(getattr(event, "call_ids", ()))
    for name in ("call", "gang"):
        found.add(getattr(getattr(event, name, None), "id", ""))
    found.add(getattr(getattr(event, "info", None), "node_id", ""))
    return found
