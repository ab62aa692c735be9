"""One epoll, a few named deadlines, and a wake-up for dead children. Single-threaded; it knows nothing of gangs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from types import FrameType

from phalanx.core.clock import Clock

READ = select.EPOLLIN
WRITE = select.EPOLLOUT


class Loop:
    """Callbacks by descriptor and by deadline. Deadlines are monotonic milliseconds, one per name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._first: set[int] = set()
        self._timers: dict[str, tuple[int, Callable[[], None]]] = {}
        self._due_ms = 0
        """No deadline is earlier; after `cancel` it may be too early, which costs one idle turn."""

    def watch(self, fd: int, callback: Callable[[int], None], *, first: bool = False) -> None:
        """Calls ``callback(events)`` when ``fd`` is readable. Those ``first`` are served before others of one turn."""
        self._callbacks[fd] = callback
        if first:
            self._first.add(fd)
        self._epoll.register(fd, READ)

    def want_write(self, fd: int, wanted: bool) -> None:
        if fd in self._callbacks:
            self._epoll.modify(fd, READ | WRITE if wanted else READ)

    def unwatch(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._first.discard(fd)
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def at(self, name: str, deadline_ms: int, callback: Callable[[], None]) -> None:
        """Sets the deadline ``name``, in place of an earlier one."""
        if not self._timers or deadline_ms < self._due_ms:
            self._due_ms = deadline_ms
        self._timers[name] = (deadline_ms, callback)

    def cancel(self, name: str) -> None:
        self._timers.pop(name, None)

    def turn(self) -> None:
        """Waits for the next event or deadline and serves what is due."""
        events = self._epoll.poll(self._wait_s())
        if len(events) > 1 and self._first:
            events.sort(key=lambda e: e[0] not in self._first)
        for fd, mask in events:
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback(mask)
        if self._timers and self._clock.monotonic_ms() >= self._due_ms:
            self._fire()

    def close(self) -> None:
        self._epoll.close()

    def _wait_s(self) -> float:
        if not self._timers:
            return -1
        return max(0, self._due_ms - self._clock.monotonic_ms()) / 1000

    def _fire(self) -> None:
        now = self._clock.monotonic_ms()
        due = [name for name, (deadline, _) in self._timers.items() if deadline <= now]
        for name in due:
            timer = self._timers.get(name)
            if timer is not None and timer[0] <= now:
                del self._timers[name]
                timer[1]()
        self._due_ms = min((deadline for deadline, _ in self._timers.values()), default=0)


def signals_to(loop: Loop, on_child: Callable[[], None], on_term: Callable[[], None]) -> None:
    """Turns SIGCHLD and SIGTERM into callbacks of the loop; a terminal's signals are ignored."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def woken(_: int) -> None:
        numbers = os.read(reading, 4096)
        if signal.SIGCHLD in numbers:
            on_child()
        if signal.SIGTERM in numbers:
            on_term()

    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, _noted)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    loop.watch(reading, woken)


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has already carried the number."""
    del number, frame
