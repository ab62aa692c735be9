"""One input of a map under way, and what a gang's answer means for it. No I/O."""

from __future__ import annotations

import threading
from typing import Any

from phalanx.core.frames import Kind
from phalanx.core.ids import new_raw_id
from phalanx.core.serialization import Packed
from phalanx.pending import Pending
from phalanx.runner import Flight

SHORT_CALL_MS = 50
"""Calls up to this long are worth waiting for where this map alone keeps the gang busy."""


class Item:
    """One input under way, directly or on a thread. ``done`` is for the latter."""

    __slots__ = ("done", "error", "flight", "held", "number", "packed", "raw_id", "stop", "value")

    def __init__(self, packed: Packed, number: int) -> None:
        self.number = number
        self.raw_id = new_raw_id()
        self.packed = packed
        self.flight: Flight | None = None
        self.held = True
        """It waits here: for room at the gang, or for its turn to go the durable way."""
        self.done = threading.Event()
        self.stop = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self.done.is_set() or (self.flight is not None and has_outcome(self.flight.pending))


def has_outcome(pending: Pending) -> bool:
    frame = pending.frame
    return frame is not None and frame.kind in (Kind.RESULT, Kind.FAILURE)


def busy_ms_of(pending: Pending) -> int:
    """Returns how long the ranks had the call; 0 where nothing says so."""
    return int(pending.frame.meta.get("busy_ms") or 0) if pending.frame is not None else 0


def is_short(pending: Pending) -> bool:
    """Says whether a gang that is BUSY will soon have room: ``retry_ms`` is half of what its queue takes."""
    frame = pending.frame
    if frame is None or frame.kind is not Kind.BUSY or frame.meta.get("draining") or not frame.meta.get("depth"):
        return False
    return 2 * int(frame.meta.get("retry_ms") or 0) <= SHORT_CALL_MS * int(frame.meta["depth"])
