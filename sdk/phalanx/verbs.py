"""What can be done with a function, each with its async twin: ``f.remote(...)`` and ``await f.remote.aio(...)``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from phalanx.core.ids import new_raw_id

if TYPE_CHECKING:
    from phalanx.call import Call
    from phalanx.function import Function
    from phalanx.mapping import Mapper

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_WINDOW = 64


def _results(mapper: Mapper, order: bool) -> Generator[Any]:
    return mapper.ordered() if order else mapper.as_they_come()


class Remote(Generic[P, R]):
    """Runs the function on a gang and returns its value."""

    def __init__(self, function: Function[P, R]) -> None:
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Waits for the end. Raises what the function raised; TypeError where the arguments do not fit."""
        packed = self._function.pack(args, kwargs)
        from phalanx.runner import current

        runner = current()
        return runner.run(self._function.definition.target(runner.client), new_raw_id(), packed)

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same without blocking; cancelling the task cancels the call."""
        packed = self._function.pack(args, kwargs)
        from phalanx import aio

        return await aio.remote(self._function.definition, packed)


class Spawn(Generic[P, R]):
    """Starts a call that outlives this process."""

    def __init__(self, function: Function[P, R]) -> None:
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Returns when the call is durable."""
        return self._start(args, kwargs)

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        from phalanx import aio

        return await aio.in_thread(lambda: self._start(args, kwargs))

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        packed = self._function.pack(args, kwargs)
        from phalanx.call import Call
        from phalanx.runner import current

        runner = current()
        target = self._function.definition.target(runner.client)
        return Call(runner.submit(target, new_raw_id(), packed), returns=target.returns)


class _Mapping(Generic[R]):
    """Shared by `map` and `starmap`: how one input becomes arguments."""

    def __init__(self, function: Function[..., R]) -> None:
        self._function = function

    def _arguments(self, item: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def _mapper(self, inputs: Iterable[Any], return_exceptions: bool, window: int) -> Mapper:
        from phalanx.mapping import Mapper, check_window

        check_window(window)
        items = iter(inputs)
        packed = (self._function.pack(self._arguments(item), {}) for item in items)
        return Mapper(self._function.definition, packed, window=window, return_exceptions=return_exceptions)

    async def _results_aio(self, mapper: Mapper, order: bool) -> AsyncIterator[R]:
        from phalanx import aio

        results = _results(mapper, order)
        ended = object()
        try:
            while True:
                result: Any = await aio.in_thread(lambda: next(results, ended))
                if result is ended:
                    return
                yield result
        finally:
            mapper.stop()
            aio.close_behind(results)


class Map(_Mapping[R]):
    """Calls the function with each input."""

    def __call__(
        self,
        inputs: Iterable[Any],
        *,
        order: bool = True,
        return_exceptions: bool = False,
        window: int = DEFAULT_WINDOW,
    ) -> Iterator[R]:
        """Yields the values lazily, in order unless ``order`` is False.

        At most ``window`` inputs are under way. The first failure, and an error of ``inputs`` itself, is raised and
        cancels what is under way; with ``return_exceptions`` failures of calls are yielded instead.
        """
        return _results(self._mapper(inputs, return_exceptions, window), order)

    def aio(
        self,
        inputs: Iterable[Any],
        *,
        order: bool = True,
        return_exceptions: bool = False,
        window: int = DEFAULT_WINDOW,
    ) -> AsyncIterator[R]:
        return self._results_aio(self._mapper(inputs, return_exceptions, window), order)

    def _arguments(self, item: Any) -> tuple[Any, ...]:
        return (item,)


class StarMap(Map[R]):
    """Calls the function with each input's elements as its arguments."""

    def _arguments(self, item: Any) -> tuple[Any, ...]:
        return tuple(item)


class Local(Generic[P, R]):
    """Runs the function in this process."""

    def __init__(self, function: Function[P, R]) -> None:
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function.run_here(*args, **kwargs)

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs it on a thread of asyncio's own."""
        import asyncio

        return await asyncio.to_thread(self._function.run_here, *args, **kwargs)
