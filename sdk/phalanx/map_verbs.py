"""What can be done with a function and many inputs, each with its async twin: `map`, `for_each`, `spawn_map`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from phalanx.aio import Results
    from phalanx.core.serialization import Packed
    from phalanx.function import Function
    from phalanx.inputs import Inputs
    from phalanx.map_call import MapCall
    from phalanx.mapping import Mapper
    from phalanx.spending import MaxCost

R = TypeVar("R")

DEFAULT_WINDOW = 64
MAX_FAILURES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ForEachSummary:
    """What became of all inputs. ``failures`` are the first 100; a note on each says which input it was."""

    calls: int
    failed: int
    failures: tuple[Exception, ...] = ()


class Mapping(Generic[R]):
    """Shared by all: how one input becomes arguments, and many of them a map."""

    def __init__(self, function: Function[..., R]) -> None:
        self._function = function

    def pack(self, item: Any) -> Packed:
        """Returns one input as a call's arguments."""
        return self._function.pack((item,), {})

    def mapper(
        self,
        inputs: Inputs,
        *,
        window: int = DEFAULT_WINDOW,
        return_exceptions: bool = False,
        max_cost: MaxCost | None = None,
    ) -> Mapper:
        from phalanx.mapping import Mapper, check_window
        from phalanx.overrides import refuse_key
        from phalanx.spending import Spending

        check_window(window)
        refuse_key(self._function.definition, "a map")
        return Mapper(
            self._function.definition,
            inputs,
            window=window,
            return_exceptions=return_exceptions,
            spending=None if max_cost is None else Spending(max_cost),
        )


class Map(Mapping[R]):
    """Calls the function with each input."""

    def __call__(
        self,
        inputs: Iterable[Any],
        *,
        order: bool = True,
        return_exceptions: bool = False,
        window: int = DEFAULT_WINDOW,
        max_cost: MaxCost | None = None,
    ) -> Iterator[R]:
        """Yields the values lazily, in order unless ``order`` is False.

        At most ``window`` inputs are under way. The first failure, and an error of ``inputs`` itself, is raised and
        cancels what is under way; with ``return_exceptions`` failures of calls are yielded instead.

        max_cost: money, as 2.5 or "2.50" in the price book's currency, or "600 gpu-s". No call is started that might
        take the map past it, if it costs what the dearest call so far did; the first one runs alone. Then, behind the
        last value, CostLimitError is raised: map over its ``remainder`` to go on. What counts is what `Call.cost` says:
        busy time, and the start of gangs. All calls of such a map go through the control plane.
        """
        from phalanx.inputs import Plain

        source = Plain(inputs, self.pack)
        mapper = self.mapper(source, window=window, return_exceptions=return_exceptions, max_cost=max_cost)
        return mapper.results(order=order)

    def aio(
        self,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        order: bool = True,
        return_exceptions: bool = False,
        window: int = DEFAULT_WINDOW,
        max_cost: MaxCost | None = None,
    ) -> Results[R]:
        """The same for ``async for``. An ordinary iterable is iterated on a thread, an async one in the event loop.

        Leaving the loop, `aclose` and cancelling the task cancel what is under way.
        """
        from phalanx.aio import Results
        from phalanx.inputs import inputs_of

        source = inputs_of(inputs, self.pack)
        mapper = self.mapper(source, window=window, return_exceptions=return_exceptions, max_cost=max_cost)
        return Results(mapper.results(order=order), stop=mapper.stop, begin=source.begin)


class StarMap(Map[R]):
    """Calls the function with each input's elements as its arguments."""

    def pack(self, item: Any) -> Packed:
        return self._function.pack(tuple(item), {})


class ForEach(Mapping[R]):
    """Calls the function with each input for what it does, not for its value."""

    def __call__(
        self,
        inputs: Iterable[Any],
        *,
        return_exceptions: bool = False,
        window: int = DEFAULT_WINDOW,
        max_cost: MaxCost | None = None,
    ) -> ForEachSummary:
        """Returns when all calls have ended; values are thrown away.

        The first failure is raised, with a note that says which input it was, and cancels what is under way; with
        ``return_exceptions`` all inputs are run, and the summary holds the failures. max_cost: as for `map`.
        """
        from phalanx.inputs import Plain

        mapper = self.mapper(Plain(inputs, self.pack), window=window, max_cost=max_cost)
        return _run(mapper, return_exceptions)

    async def aio(
        self,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        return_exceptions: bool = False,
        window: int = DEFAULT_WINDOW,
        max_cost: MaxCost | None = None,
    ) -> ForEachSummary:
        from phalanx import aio
        from phalanx.inputs import inputs_of

        source = inputs_of(inputs, self.pack)
        source.begin()
        mapper = self.mapper(source, window=window, max_cost=max_cost)
        return await aio.in_thread(lambda: _run(mapper, return_exceptions), on_cancel=mapper.stop)


class SpawnMap(Mapping[R]):
    """Starts a call for each input; they outlive this process."""

    def __call__(self, inputs: Iterable[Any]) -> MapCall[R]:
        """Returns when all calls are durable; nothing is kept of the inputs. Results: see `MapCall`.

        An error of ``inputs``, or Ctrl-C, is raised with a note that says how to find the calls made so far.
        """
        from phalanx.inputs import Plain

        return self._spawn(Plain(inputs, self.pack), threading.Event())

    async def aio(self, inputs: Iterable[Any] | AsyncIterable[Any]) -> MapCall[R]:
        from phalanx import aio
        from phalanx.inputs import inputs_of

        source = inputs_of(inputs, self.pack)
        source.begin()
        stop = threading.Event()
        return await aio.in_thread(lambda: self._spawn(source, stop), on_cancel=stop.set)

    def _spawn(self, source: Inputs, stop: threading.Event) -> MapCall[R]:
        from phalanx.map_call import Spawning
        from phalanx.runner import current

        runner = current()
        return Spawning(self._function.definition.target(runner.client), source, runner, stop).run()


def _run(mapper: Mapper, return_exceptions: bool) -> ForEachSummary:
    calls, failed = 0, 0
    failures: list[Exception] = []
    for item in mapper.settled(order=False):
        calls += 1
        if item.error is None:
            continue
        error = mapper.failure(item)
        if not return_exceptions or not isinstance(error, Exception):
            raise error
        failed += 1
        failures += [error] if len(failures) < MAX_FAILURES else []
    return ForEachSummary(calls=calls, failed=failed, failures=tuple(failures))
