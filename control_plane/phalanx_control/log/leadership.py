"""Who leads, and when a standby may try to.

The leader's record holds an epoch, a leader id, a beat that rises every RENEW_EVERY_S and an address. A standby
watches the beat on its own monotonic clock; no key expires, because store time follows a wall clock. Watching only
decides when to *try*: that two processes never both write is the work of the fence in `append.lua` alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.clock import Clock

RENEW_EVERY_S = 0.5
STALE_AFTER_MS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRecord:
    """As it stands in the store. ``leader_id`` is empty before the first leader and after one that resigned."""

    epoch: int = 0
    leader_id: str = ""
    beat: int = 0
    address: str = ""


class LeaderWatch:
    """Says when a leader has been silent for long enough, by the clock of the one who watches."""

    def __init__(self, clock: Clock, *, stale_after_ms: int = STALE_AFTER_MS) -> None:
        self._clock = clock
        self._stale_after_ms = stale_after_ms
        self._seen: LeaderRecord | None = None
        self._since_ms = 0

    def is_gone(self, record: LeaderRecord) -> bool:
        """Takes what was just read; True when nobody leads or the beat has not changed for ``stale_after_ms``."""
        if not record.leader_id:
            return True
        now = self._clock.monotonic_ms()
        if record != self._seen:
            self._seen, self._since_ms = record, now
            return False
        return now - self._since_ms >= self._stale_after_ms

    def forget(self) -> None:
        """The store was out of reach: the leader could not beat either, so its silence proves nothing."""
        self._seen = None
