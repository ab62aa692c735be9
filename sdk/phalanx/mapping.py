"""`map`: many calls under way at once, over one gang connection where there is one.

Inputs are taken one by one, at most ``window`` ahead of what was yielded. Direct calls are written together and their
replies read together by the consuming thread. A gang of short calls that says BUSY is given fewer at a time; calls
that would really wait, and all while no gang is warm, go the durable way on threads, few at first, where they may
start further gangs.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

from phalanx.core.clock import SystemClock
from phalanx.core.errors import CallCancelledError, InvalidSpecError, PhalanxError
from phalanx.core.frames import Kind
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.serialization import Packed
from phalanx.dataplane import Pending
from phalanx.definition import Definition, Target
from phalanx.giving_up import Cancel, break_off, cancel_behind
from phalanx.pacing import Pace, Ramp
from phalanx.runner import Flight, Runner, current
from phalanx.workers import workers

SHORT_CALL_MS = 50
"""Calls up to this long are worth waiting for where this map alone keeps the gang busy."""
_LOOK_S = 0.25


class _Item:
    """One input under way, directly or on a thread. ``done`` is for the latter."""

    __slots__ = ("done", "error", "flight", "held", "number", "packed", "raw_id", "stop", "value")

    def __init__(self, packed: Packed, number: int) -> None:
        self.number = number
        self.raw_id = new_raw_id()
        self.packed = packed
        self.flight: Flight | None = None
        self.held = True
        """It waits here: for room at the gang, or for its turn to go the durable way."""
        self.done = threading.Event()
        self.stop = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self.done.is_set() or (self.flight is not None and _has_outcome(self.flight.pending))


class Mapper:
    """Use once: `ordered` or `as_they_come`."""

    def __init__(
        self, definition: Definition, packed: Iterator[Packed], *, window: int, return_exceptions: bool
    ) -> None:
        self._definition = definition
        self._packed = packed
        self._window = window
        self._return_exceptions = return_exceptions
        self._taken = 0
        self._prepared: tuple[Runner, Target] | None = None
        self._under_way: dict[_Item, None] = {}
        self._finished: queue.SimpleQueue[_Item] | None = None
        self._stopped = False
        self._clock = SystemClock()
        self._pace = Pace(window)
        self._ramp = Ramp(self._clock.monotonic_ms())
        self._direct: deque[_Item] = deque()
        self._durable: deque[_Item] = deque()

    def ordered(self) -> Generator[Any]:
        items: deque[_Item] = deque()
        try:
            while self._fill(items):
                head = items.popleft()
                self._await_item(head)
                yield self._outcome(head)
        except (KeyboardInterrupt, SystemExit) as e:
            self._break_off(e)
            raise
        finally:
            self._cancel_rest()

    def as_they_come(self) -> Generator[Any]:
        finished = self._finished = queue.SimpleQueue()
        try:
            while self._fill([]):
                item = self._next_finished(finished)
                self._settle(item)
                yield self._outcome(item)
        except (KeyboardInterrupt, SystemExit) as e:
            self._break_off(e)
            raise
        finally:
            self._cancel_rest()

    def stop(self) -> None:
        """Ends it from another thread than the one that waits, which then cancels what is under way."""
        self._stopped = True

    # ---- starting ----

    def _fill(self, items: deque[_Item] | list[_Item]) -> bool:
        """Starts calls up to the window. Returns False when nothing is under way and nothing is left."""
        while len(self._under_way) < self._window:
            packed = next(self._packed, None)
            if packed is None:
                break
            item = _Item(packed, self._taken)
            self._taken += 1
            self._under_way[item] = None
            self._durable.append(item)
            items.append(item)
            self._send_held()
        return bool(self._under_way)

    def _send_held(self) -> None:
        """Sends what waits here, as far as pace and ramp allow. A warm gang takes what has not been there yet."""
        runner, target = self._prepare()
        while self._durable:
            item = self._durable[0]
            route = runner.route(target) if item.flight is None else None
            if route is not None:
                item.flight = Flight(target, item.raw_id, item.packed, route)
                self._direct.append(self._durable.popleft())
            elif self._ramp.may_start(self._clock.monotonic_ms()):
                self._start_durable(self._durable.popleft())
            else:
                break
        while self._direct and self._pace.may_send():
            self._send(self._direct.popleft())

    def _send(self, item: _Item) -> None:
        flight = item.flight
        assert flight is not None
        item.held = False
        answered = partial(self._answered, item, flight)
        flight.pending = flight.connection.call(item.raw_id, item.packed, flush=False, callback=answered)

    def _answered(self, item: _Item, flight: Flight, pending: Pending) -> None:
        """On whichever thread reads: a call that found no room waits again, one that lost its gang is looked after."""
        ok = _has_outcome(pending)
        others = self._pace.answered(ok=ok)
        flight.pending = pending
        if ok:
            self._tell(item)
        elif pending.lost:
            self._start_durable(item, ramped=False)
        else:
            item.held = True
            (self._direct if others and _is_short(pending) else self._durable).append(item)

    def _start_durable(self, item: _Item, *, ramped: bool = True) -> None:
        runner, target = self._prepare()
        item.held = False

        def job() -> None:
            try:
                if item.flight is None:
                    item.value = runner.durable(target, item.raw_id, item.packed, item.stop)
                else:
                    item.value = runner.settle(item.flight, item.stop)
            except BaseException as e:  # noqa: BLE001  it is raised again where the item is yielded
                item.error = e
            if ramped:
                self._ramp.ended(self._clock.monotonic_ms())
            item.done.set()
            self._tell(item)

        workers().run(job)

    def _tell(self, item: _Item) -> None:
        if self._finished is not None:
            self._finished.put(item)

    def _prepare(self) -> tuple[Runner, Target]:
        if self._prepared is None:
            runner = current()
            self._prepared = (runner, self._definition.target(runner.client))
        return self._prepared

    # ---- ending ----

    def _await_item(self, item: _Item) -> None:
        while not item.ended:
            self._go_on()
            waited_for = self._oldest_flying(item)
            if waited_for is not None:
                until_ms = self._clock.monotonic_ms() + round(_LOOK_S * 1000)
                waited_for.connection.wait(waited_for.pending, until_ms=until_ms)
            else:
                with self._reading():
                    item.done.wait(_LOOK_S)
        self._settle(item)

    def _next_finished(self, finished: queue.SimpleQueue[_Item]) -> _Item:
        while True:
            self._go_on()
            with self._reading(), contextlib.suppress(queue.Empty):
                return finished.get(timeout=_LOOK_S)

    def _go_on(self) -> None:
        if self._stopped:
            raise CallCancelledError("the map was left while it waited")
        self._send_held()

    def _oldest_flying(self, item: _Item) -> Flight | None:
        """Returns the item's own flight; while the item is held here, that of the oldest call at the gang."""
        for each in (item, *self._under_way) if item.held else (item,):
            flight = each.flight
            if flight is not None and not each.held and not flight.pending.done:
                return flight
        return None

    def _settle(self, item: _Item) -> None:
        """Takes the item, which is done, off the list of those under way."""
        flight = item.flight
        if flight is not None and _has_outcome(flight.pending):
            try:
                item.value = self._prepare()[0].settle(flight)
            except Exception as e:  # noqa: BLE001  it is raised again where the item is yielded
                item.error = e
        del self._under_way[item]

    def _outcome(self, item: _Item) -> Any:
        if item.error is None:
            return item.value
        item.error.add_note(f"this was input {item.number} of the map, counted from 0")
        if self._return_exceptions and isinstance(item.error, Exception):
            return item.error
        raise item.error

    @contextlib.contextmanager
    def _reading(self) -> Generator[None]:
        """Inside, what gang connections have to say is read although nobody waits for it."""
        flights = [item.flight for item in self._under_way if item.flight is not None]
        connections = {id(f.connection): f.connection for f in flights if not f.pending.done}
        with contextlib.ExitStack() as stack:
            for connection in connections.values():
                connection.flush()
                stack.enter_context(connection.reading())
            yield

    def _cancel_rest(self) -> None:
        """Nobody waits for what is still under way."""
        cancels = self._take_rest()
        if cancels:
            cancel_behind(lambda: _cancel_all(list(cancels.values())))

    def _break_off(self, error: BaseException) -> None:
        """The program is ending: it hears what became of what is still under way."""
        break_off(error, self._take_rest())

    def _take_rest(self) -> dict[str, Cancel]:
        """Takes what is under way off the list, and returns how to cancel what was sent and has not ended."""
        rest = list(self._under_way)
        self._under_way.clear()
        for item in rest:
            item.stop.set()
        if self._prepared is None:
            return {}
        runner, target = self._prepared
        return {
            id_text("c", item.raw_id): partial(runner.cancel, target, item.raw_id, item.flight)
            for item in rest
            if not item.held and not item.ended
        }


def check_window(window: int) -> None:
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpecError(f"window={window!r}: give a whole number from 1 on")


def _has_outcome(pending: Pending) -> bool:
    frame = pending.frame
    return frame is not None and frame.kind in (Kind.RESULT, Kind.FAILURE)


def _is_short(pending: Pending) -> bool:
    """Says whether a gang that is BUSY will soon have room: ``retry_ms`` is half of what its queue takes."""
    frame = pending.frame
    if frame is None or frame.kind is not Kind.BUSY or frame.meta.get("draining") or not frame.meta.get("depth"):
        return False
    return 2 * int(frame.meta.get("retry_ms") or 0) <= SHORT_CALL_MS * int(frame.meta["depth"])


def _cancel_all(cancels: list[Cancel]) -> None:
    for cancel in cancels:
        with contextlib.suppress(PhalanxError):
            cancel()
