"""The admission queue of one gang: who is next, and who must go the durable way. No I/O, no clock.

Fair per client: one call of each in turn. Direct and offered calls stand in the same queue; a client is the user of an
offered call, or the connection of a direct one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from phalanx.core.frames import SENT_AHEAD, SHORT_CALL_MS
from phalanx_agent.dataplane.calls import CallRecord

WINDOW = 256
"""Calls that a gang takes in at most: queued and in flight."""
MAX_WAIT_MS = 500.0
"""A direct call that would wait longer goes the durable way, where it can start another gang."""
MAX_QUEUED_BYTES = 512 << 20
_SMOOTHING = 0.2


class AdmissionQueue:
    """Calls that wait, and what is known of how long calls take."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[CallRecord]] = OrderedDict()
        self._count = 0
        self._bytes = 0
        self.mean_ms: float | None = None
        self.draining = False

    def __len__(self) -> int:
        return self._count

    def push(self, record: CallRecord) -> None:
        self._lanes.setdefault(record.queue_key, deque()).append(record)
        self._count += 1
        self._bytes += record.body_bytes

    def pop(self) -> CallRecord | None:
        """Takes the next call: the oldest of the client whose turn it is."""
        if not self._lanes:
            return None
        key, lane = next(iter(self._lanes.items()))
        record = lane.popleft()
        if lane:
            self._lanes.move_to_end(key)
        else:
            del self._lanes[key]
        self._uncount(record)
        return record

    def remove(self, record: CallRecord) -> bool:
        """Takes out one call that waits; False where it does not."""
        lane = self._lanes.get(record.queue_key)
        if lane is None or record not in lane:
            return False
        lane.remove(record)
        if not lane:
            del self._lanes[record.queue_key]
        self._uncount(record)
        return True

    def take_if(self, wanted: Callable[[CallRecord], bool]) -> list[CallRecord]:
        """Takes out every call that ``wanted`` says yes to."""
        chosen = [r for lane in self._lanes.values() for r in lane if wanted(r)]
        for record in chosen:
            self.remove(record)
        return chosen

    def measured(self, busy_ms: float) -> None:
        """Learns from one finished call."""
        if self.mean_ms is None:
            self.mean_ms = busy_ms
        else:
            self.mean_ms += _SMOOTHING * (busy_ms - self.mean_ms)

    def may_enter(self, *, in_flight: int, head_age_ms: float, body_bytes: int) -> bool:
        """Says whether a direct call may join. ``head_age_ms``: how long the running call has run already."""
        if self.draining or self._bytes + body_bytes > MAX_QUEUED_BYTES:
            return False
        return self._count + in_flight < self.window(head_age_ms)

    def window(self, head_age_ms: float = 0.0) -> int:
        """Calls that fit without waiting over MAX_WAIT_MS; at least one."""
        mean = max(self.mean_ms or 0.0, head_age_ms)
        if mean * WINDOW <= MAX_WAIT_MS:
            return WINDOW
        return max(1, int(MAX_WAIT_MS / mean))

    @property
    def send_ahead(self) -> int:
        """How many calls may be at the keeper at once: several where they are short."""
        short = self.mean_ms is not None and self.mean_ms < SHORT_CALL_MS
        return SENT_AHEAD if short else 1

    def _uncount(self, record: CallRecord) -> None:
        self._count -= 1
        self._bytes -= record.body_bytes


def retry_ms(depth: int, mean_ms: float | None) -> int:
    """Returns when a BUSY client may ask again: when about half of the queue should be gone."""
    return int(min(5000.0, max(20.0, depth * (mean_ms or 100.0) / 2)))
