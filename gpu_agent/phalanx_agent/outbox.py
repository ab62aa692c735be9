"""What the agent has said and the control plane has not yet acknowledged: kept in order, said again after a reconnect.

No I/O. Numbers begin at 1 with each agent process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.core.messages import FromAgent


@dataclass(frozen=True, slots=True)
class Entry:
    seq: int
    message: FromAgent
    stored: Callable[[], None] | None


class Outbox:
    """Messages with their numbers, and what to do when each is stored."""

    def __init__(self) -> None:
        self._next = 1
        self._waiting: deque[Entry] = deque()
        self._sent = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: FromAgent, stored: Callable[[], None] | None = None) -> None:
        self._waiting.append(Entry(self._next, message, stored))
        self._next += 1

    def restart(self) -> None:
        """A new session: everything that is not acknowledged is said again."""
        self._sent = 0

    def unsent(self) -> list[Entry]:
        """Returns what this session has not said yet, and counts it as said."""
        entries = [e for e in self._waiting if e.seq > self._sent]
        if entries:
            self._sent = entries[-1].seq
        return entries

    def acknowledge(self, seq: int) -> None:
        """Everything up to ``seq`` is durable at the control plane."""
        while self._waiting and self._waiting[0].seq <= seq:
            entry = self._waiting.popleft()
            if entry.stored is not None:
                entry.stored()
