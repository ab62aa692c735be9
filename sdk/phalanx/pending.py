"""One call that waits at a gang's connection: for its outcome, and where it is a stream for its next item."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from phalanx.core.frames import NO_ID, Frame

Callback = Callable[["Pending"], None]


class Pending:
    """``done`` and then either ``frame``, or ``lost``: the connection ended. ``ready``: there is something to look at.

    The connection owns all of it but ``items``, from which the reader of a stream takes.
    """

    __slots__ = (
        "callback",
        "done",
        "event",
        "frame",
        "id",
        "items",
        "lost",
        "reads",
        "ready",
        "sent",
        "slot",
        "started_ms",
        "straight",
    )

    def __init__(self, raw_id: bytes = NO_ID, started_ms: int = 0) -> None:
        self.id = raw_id
        self.started_ms = started_ms
        self.done = False
        self.ready = False
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
        self.items: deque[Frame] | None = None
        """What has come of a stream and has not been taken."""

    def wake(self) -> Callback | None:
        """There is something to look at: tells whoever waits, and returns whom to call back. Under the state lock."""
        self.ready = True
        callback, self.callback = self.callback, None
        if self.event is not None:
            self.event.set()
        return callback

    def take(self, state: threading.Lock) -> Frame | None:
        """Returns the next item that has come; None where there is none yet, or where the stream has ended."""
        assert self.items is not None
        if not self.items:
            with state:
                if not self.items:
                    self.ready = self.done
                    return None
        return self.items.popleft()
