"""One stream's items from several sources, ranks or nodes, put together: each as soon as every source has it. Pure."""

from __future__ import annotations

from phalanx.core.frames import Frame
from phalanx.core.sockets import close_fds


class Merging:
    """``sources`` are numbered from 0. Each sends its items in order, and then says how many there were."""

    def __init__(self, sources: int) -> None:
        self._sources = sources
        self._waiting: dict[int, dict[int, Frame]] = {}
        self._counts: dict[int, int] = {}
        self._ended: dict[int, int] = {}

    def add(self, source: int, frame: Frame) -> list[Frame] | None:
        """Takes one source's item; returns all sources' frames of it, in order, when it was the last."""
        number = int(frame.meta.get("n", 0))
        if number != self._counts.get(source, 0):
            close_fds(frame.fds)
            return None
        self._counts[source] = number + 1
        of_item = self._waiting.setdefault(number, {})
        of_item[source] = frame
        if len(of_item) < self._sources:
            return None
        del self._waiting[number]
        return [of_item[each] for each in sorted(of_item)]

    def end(self, source: int, count: int) -> None:
        """The source's generator has ended after ``count`` items."""
        self._ended[source] = count

    @property
    def uneven(self) -> str:
        """Says which sources can never come together; empty as long as they can."""
        if not self._ended:
            return ""
        fewest = min(self._ended, key=lambda source: self._ended[source])
        most = max([*self._counts.values(), *self._ended.values()])
        if most <= self._ended[fewest]:
            return ""
        return f"number {fewest} ended after {self._ended[fewest]} items, and another one has made {most}"

    def drop(self) -> None:
        """Lets go of what waits."""
        for of_item in self._waiting.values():
            for frame in of_item.values():
                close_fds(frame.fds)
        self._waiting.clear()
