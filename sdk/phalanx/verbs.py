"""What can be done with a function, each with its async twin: ``f.remote(...)`` and ``await f.remote.aio(...)``.

Verbs over many inputs are in `phalanx.map_verbs`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from phalanx.core.ids import new_raw_id

if TYPE_CHECKING:
    from phalanx.call import Call
    from phalanx.function import Function
    from phalanx.streaming import AsyncItems, Items

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Remote(Generic[P, R_co]):
    """Runs the function on a gang and returns its value."""

    def __init__(self, function: Function[P, Any]) -> None:
        self._function = function

    @overload
    def __call__(self: Remote[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Waits for the end. Raises what the function raised; TypeError where the arguments do not fit."""
        packed = self._function.pack(args, kwargs)
        from phalanx.runner import current

        runner = current()
        return runner.run(self._function.definition.target(runner.client), new_raw_id(), packed)

    @overload
    async def aio(self: Remote[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    async def aio(self, *args: Any, **kwargs: Any) -> Any:
        """The same without blocking; cancelling the task cancels the call."""
        packed = self._function.pack(args, kwargs)
        from phalanx import aio

        return await aio.remote(self._function.definition, packed)


class StreamVerb(Generic[P, R_co]):
    """Calls a generator function and hands out its items as they are made."""

    def __init__(self, function: Function[P, Any]) -> None:
        self._function = function

    def __call__(
        self: StreamVerb[P, Iterable[T]] | StreamVerb[P, AsyncIterable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Items[T]:
        """Returns an iterator; the call begins when its first item is asked for.

        Raises InvalidSpecError for what is no generator function, TypeError where the arguments do not fit.
        """
        from phalanx.streaming import Items, StreamCall

        packed = self._function.pack(args, kwargs, stream=True)
        return Items(StreamCall(self._function.definition, packed))

    def aio(
        self: StreamVerb[P, Iterable[T]] | StreamVerb[P, AsyncIterable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncItems[T]:
        """The same for ``async for``."""
        from phalanx.streaming import AsyncItems, StreamCall

        packed = self._function.pack(args, kwargs, stream=True)
        return AsyncItems(StreamCall(self._function.definition, packed))


class Spawn(Generic[P, R_co]):
    """Starts a call that outlives this process."""

    def __init__(self, function: Function[P, Any]) -> None:
        self._function = function

    @overload
    def __call__(self: Spawn[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns when the call is durable."""
        return self._start(args, kwargs)

    @overload
    async def aio(self: Spawn[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]: ...

    @overload
    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]: ...

    async def aio(self, *args: Any, **kwargs: Any) -> Any:
        from phalanx import aio

        return await aio.in_thread(lambda: self._start(args, kwargs))

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R_co]:
        packed = self._function.pack(args, kwargs)
        from phalanx.call import Call
        from phalanx.runner import current

        runner = current()
        target = self._function.definition.target(runner.client)
        return Call(runner.submit(target, new_raw_id(), packed), returns=target.returns)


class Local(Generic[P, R]):
    """Runs the function in this process."""

    def __init__(self, function: Function[P, R]) -> None:
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function.run_here(*args, **kwargs)

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs it on a thread of asyncio's own; an async function in this event loop."""
        import asyncio
        import inspect

        value: Any = await asyncio.to_thread(self._function.run_here, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value
