"""Threads of the SDK for what may wait: a bounded number, shared by everything in the process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

MAX_THREADS = 256


class Workers:
    """Daemon threads that take jobs; made when all others are at work, up to a limit. They never keep the process."""

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._limit = limit
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def run(self, job: Callable[[], None]) -> None:
        """Runs ``job``, which must not raise, soon."""
        with self._lock:
            make = self._idle <= self._jobs.qsize() and self._threads < self._limit
            self._threads += make
        self._jobs.put(job)
        if make:
            threading.Thread(target=self._work, name="phalanx-worker", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            job = self._jobs.get()
            with self._lock:
                self._idle -= 1
            job()


class _Process:
    workers = Workers()


def workers() -> Workers:
    return _Process.workers
