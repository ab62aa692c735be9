"""The async twins: awaitables over the same runner, for any number of event loops.

A direct call costs no thread: the gang connection's reader wakes the loop. Everything that may wait for the control
plane runs on one of a bounded number of daemon threads. Cancelling the awaiting task cancels the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Generic, Self, TypeVar

from phalanx.connection import is_connected
from phalanx.core.frames import Kind
from phalanx.core.ids import new_raw_id
from phalanx.core.serialization import Packed
from phalanx.dataplane import GangConnection
from phalanx.definition import Definition, Target
from phalanx.giving_up import STOPS, cancel_behind
from phalanx.live_output import SHORT_MS, Showing, display
from phalanx.pending import Pending
from phalanx.runner import Flight, Runner
from phalanx.runner import current as current_runner
from phalanx.workers import workers

T = TypeVar("T")

_INLINE_BYTES = 64 * 1024


async def in_thread(act: Callable[[], T], *, on_cancel: Callable[[], object] | None = None) -> T:
    """Returns what ``act`` returns on a thread. When the task is cancelled, ``on_cancel`` runs on another one."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def job() -> None:
        try:
            value = act()
        except BaseException as e:  # noqa: BLE001  it is raised again where it is awaited
            _resolve(loop, future, None, e)
        else:
            _resolve(loop, future, value, None)

    workers().run(job)
    return await _cancelling(future, on_cancel)


class Results(Generic[T]):
    """What a map yields, for ``async for``. It may be closed, dropped or shared by several tasks at any time.

    A task that waits for the next value when another one closes it gets CallCancelledError.
    """

    def __init__(
        self, results: Generator[T], *, stop: Callable[[], None], begin: Callable[[], None] = lambda: None
    ) -> None:
        """``stop`` ends a wait inside ``results`` from another thread; ``begin`` is called in the event loop."""
        self._results = results
        self._stop = stop
        self._begin = begin
        self._lock = threading.Lock()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        self._begin()
        ended = object()
        try:
            value = await in_thread(lambda: self._next(ended))
        except BaseException:
            self._close()
            raise
        if value is ended:
            self._closed = True
            raise StopAsyncIteration
        return value

    async def aclose(self) -> None:
        """Cancels what is under way; returns at once."""
        self._close()

    def __del__(self) -> None:
        self._close()

    def _next(self, ended: Any) -> T:
        with self._lock:
            return next(self._results, ended)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stop()
        lock, results = self._lock, self._results

        def close() -> None:
            with lock:
                results.close()

        cancel_behind(close)


async def remote(definition: Definition, packed: Packed) -> Any:
    """Makes the call and returns its value."""
    raw_id = new_raw_id()
    stop = threading.Event()
    found = await _ready(definition)
    if found is not None:
        runner, target = found
        flight = _direct(runner, target, raw_id, packed)
        if flight is not None:
            return await _await_flight(runner, flight)

    def act() -> Any:
        runner = current_runner()
        return runner.run(definition.target(runner.client), raw_id, packed, stop)

    def cancel() -> None:
        stop.set()
        runner = current_runner()
        runner.cancel(definition.target(runner.client), raw_id)

    return await in_thread(act, on_cancel=cancel)


async def _ready(definition: Definition) -> tuple[Runner, Target] | None:
    """Connects on a thread where that was not done before; then says whether the function is registered."""
    runner = await in_thread(current_runner) if not is_connected() else current_runner()
    target = definition.ready(runner.client)
    return None if target is None else (runner, target)


def _direct(runner: Runner, target: Target, raw_id: bytes, packed: Packed) -> Flight | None:
    """Only over a connection that is open, and only what one write takes: nothing here may block the loop."""
    if not target.direct or packed.nbytes > _INLINE_BYTES or runner.open_route(target) is None:
        return None
    return runner.direct(target, raw_id, packed)


async def until_ready(connection: GangConnection, pending: Pending) -> None:
    """Returns when there is something to look at."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    connection.when_done(pending, lambda _pending: _resolve(loop, future, None, None))
    await future


async def _await_flight(runner: Runner, flight: Flight) -> Any:
    try:
        async with _shown(runner, flight):
            await until_ready(flight.connection, flight.pending)
    except (asyncio.CancelledError, *STOPS):
        cancel_behind(lambda: runner.cancel(flight.target, flight.raw_id, flight))
        raise
    frame = flight.pending.frame
    if frame is not None and frame.kind in (Kind.RESULT, Kind.FAILURE):
        return runner.settle(flight)
    stop = threading.Event()

    def cancel() -> None:
        stop.set()
        runner.cancel(flight.target, flight.raw_id)

    return await in_thread(lambda: runner.settle(flight, stop), on_cancel=cancel)


@contextlib.asynccontextmanager
async def _shown(runner: Runner, flight: Flight) -> AsyncGenerator[None]:
    """Inside, what the call's ranks print is shown once it has run for a moment, where that is wanted."""
    if not runner.shows_output:
        yield
        return
    showing = Showing(runner.client, flight.call_id, display())
    timer = asyncio.get_running_loop().call_later(SHORT_MS / 1000, showing.begin)
    try:
        yield
        timer.cancel()
        await in_thread(showing.end)
    finally:
        timer.cancel()
        showing.leave()


async def _cancelling(future: Awaitable[T], on_cancel: Callable[[], object] | None) -> T:
    try:
        return await future
    except (asyncio.CancelledError, *STOPS):
        if on_cancel is not None:
            cancel_behind(on_cancel)
        raise


def _resolve(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def resolve() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError(f"the call raised StopIteration: {error}"))
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(resolve)
