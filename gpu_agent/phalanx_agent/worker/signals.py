"""SIGTERM in a rank: an exception in the user's code on the main thread, or the end of an idle rank.

One flag and one handler; nothing else of the platform interrupts user code. A user's own handler replaces it for the
duration of the call.
"""

from __future__ import annotations

import asyncio
import signal
from enum import Enum
from types import FrameType
from typing import Any

from phalanx.context import CancelledSignal


class StopIdleError(BaseException):
    """Raised while no user code runs: begin no other call, leave the loop. Its text says why; "": it was asked to."""


WORDS = "SIGTERM: the call was cancelled, its time limit passed, or somebody else sent it"
"""What user code is told: only the keeper knows whether it asked."""


class Where(Enum):
    """What the main thread does now, which decides what SIGTERM means."""

    PLATFORM = 0
    IDLE = 1
    USER = 2


class Stop:
    """The stop request of one rank. ``requested`` stays set once it is."""

    def __init__(self) -> None:
        self.requested = False
        self.told = False
        """User code has been interrupted, once."""
        self.where = Where.PLATFORM
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def idle(self) -> None:
        """From here on a request ends the wait. Raises StopIdleError if there already was one."""
        self.where = Where.IDLE
        if self.requested:
            raise StopIdleError

    def user(self) -> None:
        """From here on a request interrupts user code. Raises StopIdleError if there already was one."""
        self.where = Where.USER
        if self.requested:
            raise StopIdleError

    def resume_user(self) -> None:
        """User code goes on, in the middle of a call. A request that came meanwhile interrupts it now."""
        self.where = Where.USER
        if self.requested and not self.told:
            self._interrupt()

    def cancels_task(self, loop: asyncio.AbstractEventLoop | None, task: asyncio.Task[Any] | None) -> None:
        """While a coroutine runs, the request cancels its task instead."""
        self._loop, self._task = loop, task

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        again, self.requested = self.requested, True
        if self.where is Where.IDLE:
            raise StopIdleError
        if self.where is Where.USER and not again:
            self._interrupt()

    def _interrupt(self) -> None:
        self.told = True
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        else:
            raise CancelledSignal(WORDS)
