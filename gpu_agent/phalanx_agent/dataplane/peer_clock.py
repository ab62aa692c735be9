"""How far another node's clock is ahead of this one's, from questions that it answers. No I/O.

An answer was given somewhere between its question and its arrival: the quickest of the last answers says it best, to
within half of its round trip.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from phalanx.core.frames import Frame, Kind

_ANSWERS_KEPT = 16


@dataclass(slots=True)
class PeerClock:
    _answers: deque[tuple[int, int]] = field(default_factory=lambda: deque[tuple[int, int]](maxlen=_ANSWERS_KEPT))
    """Round trip and how far ahead, in nanoseconds."""

    def question(self) -> Frame:
        """Returns what to ask the other node's agent."""
        return Frame(Kind.PING, time.time_ns().to_bytes(16, "big"))

    def answered(self, frame: Frame) -> None:
        """Takes the PONG in."""
        asked, now = int.from_bytes(frame.id, "big"), time.time_ns()
        told = int(frame.meta.get("wall_ns") or 0)
        if told and asked <= now:
            self._answers.append((now - asked, told - (asked + now) // 2))

    @property
    def ahead_us(self) -> int:
        """0 before the first answer."""
        return min(self._answers)[1] // 1000 if self._answers else 0
