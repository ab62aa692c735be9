"""Terminals at the ranks of one gang on this node, on their way through the agent: who has which open.

Passes bytes on and keeps none: both ends see to it that little is under way. A client that goes closes its terminals.
"""

from __future__ import annotations

from typing import Protocol

from phalanx.core.frames import Frame, Kind
from phalanx_agent.dataplane.links import KeeperLink

KINDS = (Kind.TERMINAL, Kind.REFUSED, Kind.SHOWN, Kind.CLOSED)


class Person(Protocol):
    """The connection of whoever sits there."""

    def send(self, frame: Frame) -> None: ...


class Terminals:
    """Of one gang. An id is its client's choice, and nobody else's frames reach it."""

    def __init__(self, keeper: KeeperLink) -> None:
        self._keeper = keeper
        self._people: dict[bytes, Person] = {}

    def open(self, frame: Frame, person: Person, *, user: str) -> None:
        """Asks the keeper for a terminal; its answer goes to ``person``."""
        if frame.id in self._people:
            return
        self._people[frame.id] = person
        wanted = {name: value for name, value in frame.meta.items() if name != "ticket"}
        self._keeper.send(Frame(Kind.TERMINAL, frame.id, {**wanted, "user": user}))

    def typed(self, frame: Frame, person: Person) -> None:
        """TYPED or CLOSED, of whoever opened it."""
        if self._people.get(frame.id) is not person:
            return
        if frame.kind is Kind.CLOSED:
            del self._people[frame.id]
        self._keeper.send(Frame(frame.kind, frame.id, frame.meta, frame.body))

    def said(self, frame: Frame) -> bool:
        """Says whether the keeper's frame was for a terminal."""
        person = self._people.get(frame.id)
        if person is None:
            return frame.kind is not Kind.REFUSED and frame.kind in KINDS
        if frame.kind in (Kind.CLOSED, Kind.REFUSED):
            del self._people[frame.id]
        person.send(frame)
        return True

    def gone(self, person: Person) -> None:
        for terminal in [t for t, p in self._people.items() if p is person]:
            del self._people[terminal]
            self._keeper.send(Frame(Kind.CLOSED, terminal))

    def end(self) -> None:
        """The keeper is gone, and with it all terminals."""
        for terminal, person in self._people.items():
            person.send(Frame(Kind.CLOSED, terminal, {"reason": "the gang has ended"}))
        self._people.clear()
