"""Time, passed in. The one file that may ask the operating system what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time for every decision and duration; wall time for display, prices and schedules only."""

    def monotonic_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class SystemClock:
    """The operating system's clocks."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that moves only when told, for tests and simulations."""

    def __init__(self, *, monotonic_ms: int = 0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def advance(self, ms: int) -> None:
        """Moves both clocks forward."""
        self._monotonic_ms += ms
        self._wall_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Moves the wall clock alone, as an operator or a bad NTP server would."""
        self._wall_ms += ms
