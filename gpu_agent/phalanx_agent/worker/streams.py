"""A stream in a rank: the user's generator is asked for one item at a time, and only while its reader has room.

A single rank may be WINDOW_ITEMS items or WINDOW_BYTES ahead, whichever is reached first. A reader that leaves is a
GeneratorExit in the user's code, at the yield where it stands. The ranks of a gang must leave at the same item, or one
would wait for ever in a collective: each goes on to the end of the window, which all know alike, and so it is a small
one.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from types import GeneratorType
from typing import Any

from phalanx.context import CancelledSignal
from phalanx.core.errors import InvalidSpecError
from phalanx.core.frames import Frame, Kind
from phalanx.core.serialization import Packed, pack
from phalanx_agent.keeper.bodies import MEMFD_BYTES, NO_SLOT, into_memory
from phalanx_agent.worker.link import Link
from phalanx_agent.worker.signals import Stop, Where

WINDOW_ITEMS = 16
WINDOW_ITEMS_OF_GANGS = 2
WINDOW_BYTES = 8 << 20


class Window:
    """How much has been made and not been taken yet. Pure. ``held``: nothing may be made before the first credit."""

    def __init__(self, items: int, *, held: bool) -> None:
        self.made = 0
        self.items = items
        self._held = held
        self._sizes: deque[int] = deque()
        self._bytes = 0

    @property
    def room(self) -> bool:
        """One more item may be made, of whatever size."""
        return not self._held and len(self._sizes) < self.items and self._bytes < WINDOW_BYTES

    @property
    def end(self) -> int:
        """How many items may have been made by now, here or on another rank."""
        return 0 if self._held else self.made - len(self._sizes) + self.items

    def add(self, nbytes: int) -> None:
        self.made += 1
        self._sizes.append(nbytes)
        self._bytes += nbytes

    def credited(self, taken: int) -> None:
        """The reader has taken so many items in all. An older credit changes nothing."""
        self._held = False
        while self._sizes and self.made - len(self._sizes) < taken:
            self._bytes -= self._sizes.popleft()


class Flow:
    """The way of one stream's items to the keeper. ``sends``: this rank's values are wanted, not only its steps."""

    def __init__(self, link: Link, stop: Stop, frame: Frame, *, sends: bool, alone: bool) -> None:
        self.closed = False
        """The reader has left, and nothing more is made."""
        self.window = Window(WINDOW_ITEMS if alone else WINDOW_ITEMS_OF_GANGS, held=bool(frame.meta.get("held")))
        self.released: list[int] = []
        """Slots of results' memory that came back meanwhile."""
        self._last: int | None = None
        """The reader has left: so many items are made in all."""
        self._link = link
        self._stop = stop
        self._call = frame.id
        self._sends = sends
        self._alone = alone
        self._pid = os.getpid()
        self._poll = select.poll()
        self._poll.register(link.fileno(), select.POLLIN)

    # ---- room ----

    def wait(self) -> bool:
        """Waits until the reader has room; False when it has left. Raises CancelledSignal when the call is to end."""
        self._look()
        while not self._decided:
            self._poll.poll()
            self._look()
        return not self.closed

    async def wait_in_loop(self) -> bool:
        """The same, while the user's other tasks go on."""
        self._look()
        while not self._decided:
            await _readable(self._link.fileno())
            self._look()
        return not self.closed

    @property
    def _decided(self) -> bool:
        """Whether to make another item. Where the reader has left it is not asked for room."""
        if self._last is None:
            return self.window.room
        self.closed = self.window.made >= self._last
        return True

    def _look(self) -> None:
        """Reads what has come. A request to end that comes meanwhile is heard afterwards: frames stay whole."""
        if not self._link.has_frames and not self._poll.poll(0):
            return
        self._stop.where = Where.PLATFORM
        for frame in self._link.receive_all():
            if frame.kind is Kind.CREDIT and frame.id == self._call:
                self.window.credited(int(frame.meta.get("taken", 0)))
            elif frame.kind is Kind.CANCEL and frame.id == self._call and self._last is None:
                self._last = self.window.made if self._alone else self.window.end
            elif frame.kind is Kind.RELEASE:
                self.released += frame.meta.get("slots", [])
        self._stop.resume_user()

    # ---- items ----

    def send(self, item: Any) -> None:
        """Sends one item whole, whatever asks for the end meanwhile. A forked child that comes back here ends."""
        if os.getpid() != self._pid:
            os._exit(0)
        self._stop.where = Where.PLATFORM
        try:
            if self._sends and self._last is None:
                self._send(pack(item, what="item"))
            else:
                self.window.add(0)
        finally:
            self._stop.resume_user()

    def _send(self, packed: Packed) -> None:
        meta: dict[str, Any] = {"n": self.window.made}
        if not self._alone:
            meta["window"] = self.window.items
        self.window.add(packed.nbytes)
        if not self.window.room:
            meta["full"] = True
        if packed.nbytes < MEMFD_BYTES:
            self._link.send(Frame(Kind.ITEM, self._call, meta, packed.tobytes()))
            return
        fd = into_memory(packed.parts)
        meta["fds"] = [{"size": packed.nbytes, "slot": NO_SLOT}]
        self._link.send(Frame(Kind.ITEM, self._call, meta, fds=[fd]))
        os.close(fd)


def run(flow: Flow, made: object, run_coroutine: Callable[[Any], Any], *, name: str) -> Any:
    """Sends what the generator ``made`` yields, and returns what it returns; None where its reader has left.

    Raises what it raises, and InvalidSpecError for what is no generator.
    """
    if isinstance(made, AsyncIterator):
        return run_coroutine(_run_asynchronous(flow, made))
    if isinstance(made, Iterator):
        return _run(flow, made)
    raise InvalidSpecError(
        f"{name} is taken for a generator function, as what it wraps is one, but it returned {type(made).__name__}",
        hint="leave functools.wraps out, or return what the wrapped function returns",
    )


def _run(flow: Flow, items: Iterator[Any]) -> Any:
    try:
        while flow.wait():
            try:
                item = next(items)
            except StopIteration as e:
                return e.value
            flow.send(item)
            del item
    except CancelledSignal as e:
        _throw(items, e)
        raise
    finally:
        _close(items)
    return None


def _throw(items: Iterator[Any], signal: CancelledSignal) -> None:
    """Tells a generator that stands at a yield; one that the signal met in its own code has heard it."""
    if isinstance(items, GeneratorType) and items.gi_frame is not None:  # pyright: ignore[reportUnnecessaryComparison]
        try:
            items.throw(signal)
        except StopIteration:
            return


def _close(items: Iterator[Any]) -> None:
    if isinstance(items, Generator):
        items.close()


async def _run_asynchronous(flow: Flow, items: AsyncIterator[Any]) -> None:
    try:
        while await flow.wait_in_loop():
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
            flow.send(item)
            del item
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    came = loop.create_future()
    loop.add_reader(fd, lambda: came.done() or came.set_result(None))
    try:
        await came
    finally:
        loop.remove_reader(fd)
