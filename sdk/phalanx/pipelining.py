"""The same act for many items, some at a time, on the SDK's threads: results in order, or as they come."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeVar

from phalanx.workers import workers

T = TypeVar("T")
U = TypeVar("U")

WIDTH = 32


class Job(Generic[T, U]):
    """``item`` with what became of it."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._value: list[U] = []

    def run(self, act: Callable[[T], U]) -> None:
        try:
            self._value.append(act(self.item))
        except BaseException as e:  # noqa: BLE001  a thread's boundary: it is raised where the result is asked for
            self.error = e

    def result(self) -> U:
        """Returns what the act returned, or raises what it raised."""
        if self.error is not None:
            raise self.error
        return self._value[0]


def pipelined(
    items: Iterable[T], act: Callable[[T], U], *, width: int = WIDTH, order: bool = True
) -> Generator[Job[T, U]]:
    """Yields one job per item once it is done. Items are taken lazily, at most ``width`` ahead of what was yielded."""
    in_order: deque[Job[T, U]] = deque()
    ended: queue.SimpleQueue[Job[T, U]] = queue.SimpleQueue()

    def start(job: Job[T, U]) -> None:
        def work() -> None:
            job.run(act)
            job.done.set()
            if not order:
                ended.put(job)

        in_order.append(job)
        workers().run(work)

    def finished() -> Job[T, U]:
        job = in_order[0] if order else ended.get()
        job.done.wait()
        in_order.remove(job)
        return job

    for item in items:
        start(Job(item))
        if len(in_order) >= width:
            yield finished()
    while in_order:
        yield finished()
