"""A direct call that waits for its outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable

from phalanx.core.frames import NO_ID, Frame

Callback = Callable[["Pending"], None]


class Pending:
    """One call that waits for its outcome. ``done`` and then either ``frame``, or ``lost``: the connection ended."""

    __slots__ = ("callback", "done", "event", "frame", "id", "lost", "reads", "sent", "slot", "started_ms", "straight")

    def __init__(self, raw_id: bytes = NO_ID, started_ms: int = 0) -> None:
        self.id = raw_id
        self.started_ms = started_ms
        self.done = False
        self.frame: Frame | None = None
        self.lost = False
        self.sent = False
        """The whole CALL or ASK has left: the agent may act on it."""
        self.straight = False
        """It has left over the lane."""
        self.slot = 0
        self.reads = False
        """A thread of the connection reads until this is done."""
        self.event: threading.Event | None = None
        self.callback: Callback | None = None
