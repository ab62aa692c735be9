"""How fast `map` may go: how many calls at one gang, and how many at once through the control plane. No I/O."""

from __future__ import annotations

import threading

from phalanx.core.frames import SENT_AHEAD, SHORT_CALL_MS

GROW_AFTER_MS = 1000
_SMOOTHING = 0.2


class Pace:
    """How many calls of a map may be at the gang: fewer after BUSY, slowly more again. Thread-safe.

    Of short calls, as many as its keeper takes at once keep it busy; of others, more show that more gangs are needed.
    """

    def __init__(self, window: int) -> None:
        self._lock = threading.Lock()
        self._window = window
        self._limit = float(window)
        self._flying = 0
        self._mean_ms = 0.0

    @property
    def short(self) -> bool:
        """Calls take a few milliseconds, as far as is known."""
        return self._mean_ms < SHORT_CALL_MS

    def may_send(self) -> bool:
        """Counts one call as sent, where there is room for it."""
        with self._lock:
            limit = min(self._limit, SENT_AHEAD) if self.short else self._limit
            room = self._flying < max(1, int(limit))
            self._flying += room
            return room

    def answered(self, *, ok: bool, busy_ms: int = 0) -> int:
        """Counts one call as answered. Returns how many others are at the gang."""
        with self._lock:
            self._flying -= 1
            self._mean_ms += _SMOOTHING * (busy_ms - self._mean_ms) if ok else 0
            if ok:
                self._limit = min(float(self._window), self._limit + 1 / self._limit)
            elif self._flying:
                self._limit = min(self._limit, float(self._flying))
            return self._flying


class Ramp:
    """How many durable calls of a map may be open: one at first, twice as many with each that ends, and each second.

    Every durable call may start a gang of its own. Short calls are better served by the first gang once it is warm;
    long ones reach the whole window within seconds. Thread-safe.
    """

    def __init__(self, now_ms: int) -> None:
        self._lock = threading.Lock()
        self._limit = 1
        self._open = 0
        self._grown_ms = now_ms

    def may_start(self, now_ms: int) -> bool:
        """Counts one call as started, where there is room for it."""
        with self._lock:
            if now_ms - self._grown_ms >= GROW_AFTER_MS:
                self._grow(now_ms)
            room = self._open < self._limit
            self._open += room
            return room

    def ended(self, now_ms: int) -> None:
        with self._lock:
            self._open -= 1
            self._grow(now_ms)

    def _grow(self, now_ms: int) -> None:
        self._limit = min(self._limit * 2, 1 << 20)
        self._grown_ms = now_ms
