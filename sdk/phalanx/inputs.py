"""Where a map's inputs come from: an iterable, or an async one that is asked in its own event loop.

One input is looked at ahead and none is ever lost: what was not taken is what `rest` gives back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Protocol

from phalanx.core.errors import CallCancelledError, InvalidSpecError
from phalanx.core.serialization import Packed

Pack = Callable[[Any], Packed]
_NONE = object()


class Inputs(Protocol):
    """Used by one thread at a time, besides `begin` and `close`. ``over``: the end was seen."""

    over: bool

    def begin(self) -> None:
        """Called where the results are asked for, before anything else."""
        ...

    def peek(self) -> bool | None:
        """Says whether there is another input; None: it is not known yet. Raises what the inputs raise."""
        ...

    def take(self) -> Packed:
        """Returns the input that was seen, as a call's arguments."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Waits until `peek` may know more."""
        ...

    def rest(self) -> Any:
        """Returns what was not taken: an iterator of the same kind as the inputs."""
        ...

    def close(self) -> None:
        """Nothing is asked for any more."""
        ...


class Plain:
    """An ordinary iterable."""

    def __init__(self, inputs: Iterable[Any], pack: Pack) -> None:
        if hasattr(inputs, "__aiter__"):
            raise InvalidSpecError(
                f"the inputs are {_indefinite(inputs)}, which only an event loop can ask", hint="use .aio(...)"
            )
        self._items = iter(inputs)
        self._pack = pack
        self._seen: Any = _NONE
        self.over = False

    def begin(self) -> None:
        """Needs no preparation."""

    def peek(self) -> bool:
        if self._seen is _NONE and not self.over:
            self._seen = next(self._items, _NONE)
            self.over = self._seen is _NONE
        return not self.over

    def take(self) -> Packed:
        seen, self._seen = self._seen, _NONE
        return self._pack(seen)

    def wait(self, timeout_s: float) -> None:
        """Has nothing to wait for."""

    def rest(self) -> Iterator[Any]:
        return self._items if self._seen is _NONE else itertools.chain((self._seen,), self._items)

    def close(self) -> None:
        """Inputs are closed by whoever made them."""


class FromLoop:
    """An async iterable. Each input is asked for in the event loop of whoever asks for results."""

    def __init__(self, inputs: AsyncIterable[Any], pack: Pack) -> None:
        self._items = aiter(inputs)
        self._pack = pack
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: concurrent.futures.Future[Any] | None = None
        self.over = False

    def begin(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()

    def peek(self) -> bool | None:
        if self.over:
            return False
        if self._asked is None:
            self._asked = self._ask()
        if not self._asked.done():
            return None
        try:
            self.over = self._asked.result() is _NONE
        except BaseException:
            self.over = True
            raise
        return not self.over

    def take(self) -> Packed:
        asked, self._asked = self._asked, None
        assert asked is not None
        return self._pack(asked.result())

    def wait(self, timeout_s: float) -> None:
        if self._asked is not None:
            concurrent.futures.wait((self._asked,), timeout_s)

    async def rest(self) -> AsyncIterator[Any]:
        asked, self._asked = self._asked, None
        if asked is not None and not self.over:
            yield await asyncio.wrap_future(asked)
        async for item in self._items:
            yield item

    def close(self) -> None:
        asked = self._asked
        if asked is not None and not asked.done() and self._loop is not None and not self._loop.is_closed():
            asked.cancel()

    def _ask(self) -> concurrent.futures.Future[Any]:
        assert self._loop is not None
        asking = _next(self._items)
        try:
            return asyncio.run_coroutine_threadsafe(asking, self._loop)
        except RuntimeError as e:
            asking.close()
            raise CallCancelledError("the event loop that the inputs come from has ended") from e


def inputs_of(inputs: Iterable[Any] | AsyncIterable[Any], pack: Pack) -> Inputs:
    """Returns the inputs of a map whose results are asked for in an event loop."""
    if isinstance(inputs, AsyncIterable):
        return FromLoop(inputs, pack)  # pyright: ignore[reportUnknownArgumentType]
    return Plain(inputs, pack)


async def _next(items: AsyncIterator[Any]) -> Any:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return _NONE


def _indefinite(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
