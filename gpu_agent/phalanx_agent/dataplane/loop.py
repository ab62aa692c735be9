"""The data plane's event loop: epoll, a heap of timers, and a way in for other threads. It knows nothing of frames.

One thread runs it. Everything registered here must never block; a handler that raises OSError has its descriptor's
owner told through the handler itself, so handlers catch their own.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
Handler = Callable[[int], None]

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
_IDLE_S = 5.0


def now_ns() -> int:
    """Monotonic nanoseconds, for measuring and for deadlines inside this process only."""
    return time.monotonic_ns()


class Loop:
    """Calls handlers when their descriptors are ready. Only ``post`` and ``ask`` may be used from other threads."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, READ)
        self._running = True
        self._thread_id = 0

    def register(self, fd: int, handler: Handler, events: int = READ) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Forgets ``fd``; must come before it is closed."""
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Runs ``action`` once, after ``delay_ms``. There is no cancelling: actions look whether they still matter."""
        self._timer_count += 1
        heapq.heappush(self._timers, (now_ns() + int(delay_ms * 1e6), self._timer_count, action))

    def post(self, action: Callable[[], None]) -> None:
        """Runs ``action`` on the loop's thread soon; from any thread."""
        self._posted.append(action)
        if threading.get_ident() != self._thread_id:
            os.eventfd_write(self._wake, 1)

    def ask(self, question: Callable[[], T]) -> Future[T]:
        """Runs ``question`` on the loop's thread and returns its answer as a future; from any thread."""
        future: Future[T] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(question())
            except Exception as e:  # noqa: BLE001 - the asker gets it
                future.set_exception(e)

        self.post(answer)
        return future

    def stop(self) -> None:
        """Ends ``run`` after the present round; from any thread."""
        self.post(self._halt)

    def run(self) -> None:
        """Runs until ``stop``."""
        self._thread_id = threading.get_ident()
        handlers = self._handlers
        while self._running:
            for fd, events in self._epoll.poll(self._wait_s()):
                if fd == self._wake:
                    self._drain_wake()
                    continue
                handler = handlers.get(fd)
                if handler is not None:
                    handler(events)
            if self._posted:
                self._run_posted()
            if self._timers:
                self._run_timers()

    def close(self) -> None:
        """Releases what the loop itself holds; registered descriptors belong to their owners."""
        self._epoll.close()
        os.close(self._wake)

    def _halt(self) -> None:
        self._running = False

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _wait_s(self) -> float:
        if self._posted:
            return 0
        if not self._timers:
            return _IDLE_S
        return min(_IDLE_S, max(0.0, (self._timers[0][0] - now_ns()) / 1e9))

    def _run_posted(self) -> None:
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def _run_timers(self) -> None:
        now = now_ns()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
