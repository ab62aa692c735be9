"""Between the event loop and threads: what a thread tells in bursts is taken in portions, what blocks is done behind.

So neither a storm of events nor a slow disk keeps the loop from its other work. It knows nothing of GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
PORTION = 64


class Inbox(Generic[T]):
    """Takes items from any thread, in order; ``take`` gets them on the loop, `PORTION` at most in one turn of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[Sequence[T]], None]) -> None:
        self._loop = loop
        self._take = take
        self._guard = threading.Lock()
        self._waiting: deque[T] = deque()
        self._woken = False

    def put(self, item: T) -> None:
        with self._guard:
            self._waiting.append(item)
            if self._woken:
                return
            self._woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        with self._guard:
            portion = tuple(islice(self._waiting, PORTION))
            for _ in portion:
                self._waiting.popleft()
            self._woken = bool(self._waiting)
            if self._woken:
                self._loop.call_soon(self._turn)
        self._take(portion)


class Behind:
    """Does one blocking thing in a thread when it was asked for; once, however often it was asked meanwhile."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """On the loop, or before there is one."""
        self._asked.set()

    async def run(self, work: Callable[[], None]) -> None:
        """For ever; where it is ended, what was asked for last is done before it returns."""
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                await asyncio.to_thread(work)
        finally:
            work()
