"""`.stream`: a generator function's items, as its gang makes them, for ``for`` and ``async for``.

The call begins when the first item is asked for: at a warm gang directly, otherwise through the control plane, which
says when and where it runs; then its items are fetched there. A stream has one reader and is never run twice: a
connection that is lost in the middle ends it with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator
from typing import Any, Generic, NoReturn, Self, TypeVar

from phalanx import aio
from phalanx.client import is_terminal
from phalanx.core.errors import ConnectionFailedError, NotFoundError, OutcomeUnknownError
from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.serialization import Packed
from phalanx.core.states import CallState
from phalanx.core.views import CallView
from phalanx.dataplane import GangConnection
from phalanx.definition import Definition, Target
from phalanx.giving_up import STOPS, AtExit, break_off, cancel_behind
from phalanx.live_output import SHORT_MS, Showing, display
from phalanx.outcomes import error_of_frame, error_of_view, value_of_body, value_of_frame
from phalanx.pending import Pending
from phalanx.runner import RECOVER_MS, STOP_LOOK_MS, Flight, Runner
from phalanx.runner import current as current_runner
from phalanx.waiting import Waiting, line_for

T = TypeVar("T")

CREDIT_BYTES = 4 << 20
_WINDOW = 16
_PAUSE_S = 0.1


class StreamCall:
    """One stream's call, from its beginning to its end. What may block says so."""

    def __init__(self, definition: Definition, packed: Packed) -> None:
        self.raw_id = new_raw_id()
        self.call_id = id_text("c", self.raw_id)
        self.over = False
        self.left = False
        self.value: Any = None
        self.taken = 0
        self._definition = definition
        self._packed = packed
        self._runner: Runner | None = None
        self._target: Target | None = None
        self._flight: Flight | None = None
        self._submitted = False
        self._pause = threading.Event()
        self._showing: Showing | None = None
        self._unsaid = 0
        self._unsaid_bytes = 0

    # ---- beginning ----

    @property
    def begun(self) -> bool:
        return self._flight is not None

    def begin(self) -> None:
        """Blocks until items may come. Raises what ended the call before."""
        self._runner = runner = current_runner()
        self._target = target = self._definition.target(runner.client)
        target.refuse_plain()
        _BEGUN.add(self)
        if runner.shows_output:
            self._showing = Showing(runner.client, self.call_id, display())
            self._showing.begin(after_ms=SHORT_MS)
        with self._shown_to_its_end():
            route = runner.route(target)
            if route is None:
                self._begin_durably(runner, target)
            else:
                self._flies(target, route, self._packed)

    @contextlib.contextmanager
    def _shown_to_its_end(self) -> Generator[None]:
        """Where the stream ends inside, waits until what its ranks printed is shown."""
        try:
            yield
        except Exception:
            self.over = True
            raise
        finally:
            if self.over and self._showing is not None:
                self._showing.end()

    def _begin_durably(self, runner: Runner, target: Target) -> None:
        runner.submit(target, self.raw_id, self._packed, stream=True)
        self._submitted = True
        if self.left:
            self.leave()
            return
        until_ms = 0
        while True:
            view = self._until_running(runner)
            if is_terminal(view) or self.left:
                self._end_as(runner, view)
                return
            route = runner.route_to(target, self.call_id)
            if route is not None:
                self._flies(target, route, None)
                return
            now = runner.clock.monotonic_ms()
            until_ms = until_ms or now + RECOVER_MS
            if now > until_ms:
                runner.client.cancel(self.call_id)
                raise ConnectionFailedError(
                    f"the agent that runs stream {self.call_id} is not reachable from here; the call was cancelled",
                    hint="items come from the gang's agent directly: open its data port to this machine",
                )
            self._pause.wait(_PAUSE_S)

    def _until_running(self, runner: Runner) -> CallView:
        line = line_for(self.call_id, runner.clock)
        with line or contextlib.nullcontext():
            view = CallView(call_id=self.call_id)
            while not self.left:
                for view in runner.client.watch(self.call_id, until_ms=_look_again_ms(runner, line)):
                    _show(runner, line, view)
                    if is_terminal(view) or view.state == CallState.RUNNING:
                        return view
                _show(runner, line, view)
            return view

    def _flies(self, target: Target, route: GangConnection, packed: Packed | None) -> None:
        pending = route.stream(self.raw_id, packed, target.timeout_ms)
        self._flight = Flight(target, self.raw_id, self._packed, route, pending)
        if self.left:
            self.leave()

    # ---- items ----

    @property
    def pending(self) -> Pending:
        assert self._flight is not None
        return self._flight.pending

    @property
    def connection(self) -> GangConnection:
        assert self._flight is not None
        return self._flight.connection

    def next_frame(self) -> Frame | None:
        """Returns an item that has come."""
        return self.connection.next_item(self.pending)

    @property
    def at_end(self) -> bool:
        """No further item comes from where they came. `finish` says what that means."""
        pending = self.pending
        return pending.done and not pending.items

    def take(self, frame: Frame) -> Any:
        """Returns the item's value, and tells the gang now and then how far its reader is."""
        if int(frame.meta.get("n", 0)) != self.taken:
            raise OutcomeUnknownError(
                f"item {frame.meta.get('n')} came where item {self.taken} was due", call_id=self.call_id, attempt=1
            )
        self.taken += 1
        self._unsaid += 1
        self._unsaid_bytes += len(frame.body)
        if self._unsaid * 2 >= int(frame.meta.get("window", _WINDOW)) or self._unsaid_bytes >= CREDIT_BYTES:
            self._unsaid = self._unsaid_bytes = 0
            self.connection.say(Frame(Kind.CREDIT, self.raw_id, {"taken": self.taken}))
        return value_of_frame(frame, "all" if "parts" in frame.meta else "rank0")

    # ---- ends ----

    @property
    def told(self) -> bool:
        """The outcome is here: `finish` does not block."""
        frame = self.pending.frame
        return self._showing is None and frame is not None and frame.kind in (Kind.RESULT, Kind.FAILURE)

    def finish(self) -> bool:
        """True at the end; False where it goes on, because it began elsewhere. Raises what ended it. May block."""
        with self._shown_to_its_end():
            return self._finished()

    def _finished(self) -> bool:
        flight, runner = self._flight, self._runner
        assert flight is not None
        assert runner is not None
        if self.left:
            return self._ended()
        frame = flight.pending.frame
        if frame is None:
            return self._lost(runner, flight)
        if frame.kind is Kind.RESULT:
            self.value = value_of_frame(frame, flight.target.returns)
            return self._ended()
        if frame.kind is Kind.FAILURE:
            raise error_of_frame(frame, self.call_id)
        if frame.kind is Kind.BUSY:
            runner.note_busy(flight, frame)
            self._begin_durably(runner, flight.target)
            return self.over
        self._end_as(runner, runner.await_end(self.call_id))
        return True

    def _ended(self) -> bool:
        self.over = True
        return True

    def _end_as(self, runner: Runner, view: CallView) -> None:
        """It has ended without an outcome from the gang."""
        self.over = True
        if self.left:
            return
        if view.state != CallState.SUCCEEDED:
            raise error_of_view(view)
        body = runner.client.get_blob(view.result.blob) if view.result.blob else view.result.data
        self.value = value_of_body(body, self._target.returns if self._target is not None else "")

    def _lost(self, runner: Runner, flight: Flight) -> bool:
        if not self.taken and not self._submitted:
            answer = runner.ask_agent(flight) if flight.pending.sent else None
            if not flight.pending.sent or (answer is not None and answer.meta.get("never_ran")):
                self._begin_durably(runner, flight.target)
                return self.over
        came = "1 item" if self.taken == 1 else f"{self.taken} items"
        raise OutcomeUnknownError(
            f"the connection to the gang of {flight.target.name} was lost after {came} had come; what it made "
            f"after that is not known, and the stream was not run again",
            call_id=self.call_id,
            attempt=1,
            hint="call it again if running it twice does no harm",
        )

    def leave(self) -> None:
        """The reader wants no more: the generator is closed where it stands. Does not wait for that."""
        self.left = True
        if self._showing is not None:
            self._showing.leave()
        flight = self._flight
        if flight is None:
            if self._submitted and self._runner is not None:
                self._runner.client.cancel(self.call_id)
            return
        pending, connection = flight.pending, flight.connection
        if pending.done or not connection.open:
            return
        connection.cancel(self.raw_id, reason="closed")
        waits = pending.callback

        def discard(pending: Pending) -> None:
            while connection.next_item(pending) is not None:
                pass
            if not pending.done:
                connection.when_done(pending, discard)

        connection.when_done(pending, discard)
        if waits is not None:
            waits(pending)

    def break_off(self) -> str:
        """The same for a wait that was interrupted. Returns the state that the call then is in."""
        self.leave()
        if self._flight is not None:
            return CallState.CANCELLING
        try:
            return self._runner.client.cancel(self.call_id).state if self._runner is not None else ""
        except NotFoundError:
            return ""


def _leave_all(calls: list[StreamCall]) -> None:
    for call in [c for c in calls if not c.over and not c.left]:
        call.left = True
        cancel_behind(call.leave)


_BEGUN = AtExit(_leave_all)


class _Items(Generic[T]):
    """What both kinds have. ``value``: what the generator returned, once its last item has been taken."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call

    @property
    def call_id(self) -> str:
        return self._call.call_id

    @property
    def value(self) -> Any:
        """What the generator returned; None before its end."""
        return self._call.value

    def __del__(self) -> None:
        self._leave()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a stream has one reader, where it was begun, and cannot travel: "
            f"send its items, or its call_id ({self.call_id})"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.call_id}, {self._call.taken} taken>"

    def _leave(self) -> None:
        """On another thread: this may be the garbage collector's moment, in the middle of anything."""
        call = self._call
        if not call.over and not call.left:
            call.left = True
            cancel_behind(call.leave)


class Items(_Items[T]):
    """An iterator over a stream. Leaving the loop, `close` or dropping it closes the generator in the gang."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Waits for the next item. Raises what the generator raised, after all items before it."""
        call = self._call
        if call.over or call.left:
            raise StopIteration
        try:
            return self._next()
        except STOPS as e:
            break_off(e, {call.call_id: call.break_off})
            raise
        except BaseException:
            call.over = True
            raise

    def close(self) -> None:
        """Leaves the stream; the generator gets GeneratorExit at its yield. Does not wait for that. Harmless again."""
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _next(self) -> T:
        call = self._call
        if not call.begun:
            call.begin()
        while not call.over and call.begun:
            frame = call.next_frame()
            if frame is not None:
                return call.take(frame)
            if not call.at_end:
                call.connection.wait(call.pending)
            elif call.finish():
                break
        raise StopIteration


class AsyncItems(_Items[T]):
    """The same for ``async for``. Any task may close it; one that waits then finds the end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Cancelling the task that waits leaves the stream."""
        call = self._call
        if call.over or call.left:
            raise StopAsyncIteration
        try:
            return await self._next()
        except (asyncio.CancelledError, *STOPS):
            self._leave()
            raise
        except BaseException:
            call.over = True
            raise

    async def aclose(self) -> None:
        """Leaves the stream, as `Items.close` does."""
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._leave()

    async def _next(self) -> T:
        call = self._call
        if not call.begun:
            await aio.in_thread(call.begin)
        while not call.over and not call.left and call.begun:
            frame = call.next_frame()
            if frame is not None:
                return call.take(frame)
            if not call.at_end:
                await aio.until_ready(call.connection, call.pending)
            elif call.finish() if call.told else await aio.in_thread(call.finish):
                break
        raise StopAsyncIteration


def _look_again_ms(runner: Runner, line: Waiting | None) -> int:
    now = runner.clock.monotonic_ms()
    return line.until_ms if line is not None and line.until_ms > now else now + STOP_LOOK_MS


def _show(runner: Runner, line: Waiting | None, view: CallView) -> None:
    if line is not None and runner.clock.monotonic_ms() >= line.until_ms:
        line.see(view)
