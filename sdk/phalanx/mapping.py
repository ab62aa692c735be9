"""`map`: many calls under way at once, over one gang connection where there is one.

Inputs are taken one by one, at most ``window`` ahead of what was yielded, and not for long while results may be there.
Direct calls are written together and their replies read together by the consuming thread. A gang of short calls that
says BUSY is given fewer at a time; calls that would really wait, and all while no gang is warm, go the durable way on
threads, few at first, where they may start further gangs. So do all calls of a map whose cost is limited: the control
plane meters each of them.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections import deque
from collections.abc import Generator
from functools import partial
from typing import Any

from phalanx.core.clock import SystemClock
from phalanx.core.errors import CallCancelledError, CostLimitError, InvalidSpecError, PhalanxError
from phalanx.core.ids import id_text
from phalanx.core.views import CallView
from phalanx.definition import Definition, Target
from phalanx.giving_up import CANCEL_WITHIN_S, AtExit, Cancel, break_off, cancel_behind
from phalanx.inputs import Inputs
from phalanx.live_output import AT_ONCE, ShownCalls
from phalanx.map_items import Item, busy_ms_of, has_outcome, is_short
from phalanx.pacing import Pace, Ramp
from phalanx.pending import Pending
from phalanx.runner import Flight, Runner, current
from phalanx.spending import Spending
from phalanx.workers import workers

_LOOK_S = 0.25
_LOOK_FOR_INPUTS_S = 0.02
"""Between two looks for inputs that are not there yet."""
_FILL_MS = 50
"""So long inputs are taken before results are looked for."""


class Mapper:
    """Use once: `results` or `settled`. ``spending`` limits what the calls may cost."""

    def __init__(
        self,
        definition: Definition,
        inputs: Inputs,
        *,
        window: int,
        return_exceptions: bool = False,
        spending: Spending | None = None,
    ) -> None:
        self._definition = definition
        self._inputs = inputs
        self._window = window
        self._return_exceptions = return_exceptions
        self._spending = spending
        self._taken = 0
        self._prepared: tuple[Runner, Target] | None = None
        self._shown: ShownCalls | None = None
        self._under_way: dict[Item, None] = {}
        self._in_order: deque[Item] = deque()
        self._finished: queue.SimpleQueue[Item] | None = None
        self._stopped = False
        self._clock = SystemClock()
        self._pace = Pace(window)
        self._ramp = Ramp(self._clock.monotonic_ms())
        self._direct: deque[Item] = deque()
        self._durable: deque[Item] = deque()

    def results(self, *, order: bool) -> Generator[Any]:
        """Yields values, and with ``return_exceptions`` failures; raises the first failure otherwise."""
        with contextlib.closing(self.settled(order=order)) as items:
            for item in items:
                yield self._outcome(item)

    def settled(self, *, order: bool) -> Generator[Item]:
        """Yields the inputs' items as they end, or in the inputs' order. Left early, it cancels what is under way."""
        _BEGUN.add(self)
        if not order:
            self._finished = queue.SimpleQueue()
        try:
            while self._has_next():
                item = self._next_finished(self._finished) if self._finished is not None else self._next_in_order()
                self._settle(item)
                yield item
                del item
            if self._shown is not None:
                self._shown.end()
        except (KeyboardInterrupt, SystemExit) as e:
            self._break_off(e)
            raise
        finally:
            self._inputs.close()
            self._cancel_rest()

    def stop(self) -> None:
        """Ends it from another thread than the one that waits, which then cancels what is under way."""
        self._stopped = True

    # ---- starting ----

    def _has_next(self) -> bool:
        """Returns whether something is under way, waiting for inputs where that is all there is to do.

        Raises CostLimitError when nothing more may be started although there are inputs.
        """
        while True:
            self._go_on()
            if self._under_way:
                return True
            more = self._inputs.peek()
            if more is False:
                return False
            if more and self._spending is not None and not self._spending.may_start():
                raise self._limit_reached(self._spending)
            self._inputs.wait(_LOOK_S)

    def _go_on(self) -> None:
        """Sends what is held, and takes inputs up to the window, for a moment at most."""
        if self._stopped:
            raise CallCancelledError("the map was left while it waited")
        until_ms = self._clock.monotonic_ms() + _FILL_MS
        self._send_held()
        while self._may_take():
            self._take()
            self._send_held()
            if self._clock.monotonic_ms() >= until_ms:
                break
        self._show_output()

    def _show_output(self) -> None:
        """Of the calls that are waited for longest, where it is wanted."""
        if self._shown is not None:
            for item in itertools.islice(self._under_way, AT_ONCE):
                if not item.held:
                    self._shown.see(item.raw_id, id_text("c", item.raw_id), item.number)

    def _may_take(self) -> bool:
        if len(self._under_way) >= self._window or not self._inputs.peek():
            return False
        return self._spending is None or self._spending.may_start()

    def _take(self) -> None:
        try:
            item = Item(self._inputs.take(), self._taken)
        except Exception as e:
            e.add_note(_which(self._taken))
            raise
        self._taken += 1
        self._under_way[item] = None
        self._durable.append(item)
        if self._finished is None:
            self._in_order.append(item)
        if self._spending is not None:
            self._spending.started()

    def _limit_reached(self, spending: Spending) -> CostLimitError:
        return CostLimitError(
            f"the map stopped after {self._taken} inputs: {spending.words()} are spent, another call might pass that",
            remainder=self._inputs.rest(),
            spent=spending.spent,
            hint="the inputs that were not run are in .remainder: map over it to go on",
        )

    def _send_held(self) -> None:
        """Sends what waits here, as far as pace and ramp allow. A warm gang takes what has not been there yet."""
        if not self._durable and not self._direct:
            return
        runner, target = self._prepare()
        while self._durable:
            item = self._durable[0]
            route = runner.route(target) if item.flight is None and self._spending is None else None
            if route is not None:
                item.flight = Flight(target, item.raw_id, item.packed, route)
                self._direct.append(self._durable.popleft())
            elif self._ramp.may_start(self._clock.monotonic_ms()):
                self._start_durable(self._durable.popleft())
            else:
                break
        while self._direct and self._pace.may_send():
            self._send(self._direct.popleft())

    def _send(self, item: Item) -> None:
        flight = item.flight
        assert flight is not None
        item.held = False
        answered = partial(self._answered, item, flight)
        flight.pending = flight.connection.call(
            item.raw_id,
            item.packed,
            flush=False,
            short=self._pace.short,
            callback=answered,
            timeout_ms=flight.target.timeout_ms,
        )

    def _answered(self, item: Item, flight: Flight, pending: Pending) -> None:
        """On whichever thread reads: a call that found no room waits again, one that lost its gang is looked after."""
        ok = has_outcome(pending)
        others = self._pace.answered(ok=ok, busy_ms=busy_ms_of(pending))
        flight.pending = pending
        if ok:
            self._tell(item)
        elif pending.lost:
            self._start_durable(item, ramped=False)
        else:
            item.held = True
            (self._direct if others and is_short(pending) else self._durable).append(item)

    def _start_durable(self, item: Item, *, ramped: bool = True) -> None:
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
            if self._spending is not None:
                self._spending.ended(_view_or_none(runner, item))
            if ramped:
                self._ramp.ended(self._clock.monotonic_ms())
            item.done.set()
            self._tell(item)

        workers().run(job)

    def _tell(self, item: Item) -> None:
        if self._finished is not None:
            self._finished.put(item)

    def _prepare(self) -> tuple[Runner, Target]:
        if self._prepared is None:
            runner = current()
            target = self._definition.target(runner.client)
            target.refuse_stream()
            self._prepared = (runner, target)
            if runner.shows_output:
                self._shown = ShownCalls(runner.client)
        return self._prepared

    # ---- ending ----

    def _next_in_order(self) -> Item:
        item = self._in_order.popleft()
        while not item.ended:
            waited_for = self._oldest_flying(item)
            if waited_for is not None:
                until_ms = self._clock.monotonic_ms() + round(self._patience_s() * 1000)
                waited_for.connection.wait(waited_for.pending, until_ms=until_ms)
            else:
                with self._reading():
                    item.done.wait(self._patience_s())
            if not item.ended:
                self._go_on()
        return item

    def _next_finished(self, finished: queue.SimpleQueue[Item]) -> Item:
        while True:
            with self._reading(), contextlib.suppress(queue.Empty):
                return finished.get(timeout=self._patience_s())
            self._go_on()

    def _patience_s(self) -> float:
        """How long to wait for results before inputs are looked for again."""
        full = len(self._under_way) >= self._window or self._inputs.over
        return _LOOK_S if full else _LOOK_FOR_INPUTS_S

    def _oldest_flying(self, item: Item) -> Flight | None:
        """Returns the item's own flight; while the item is held here, that of the oldest call at the gang."""
        for each in (item, *self._under_way) if item.held else (item,):
            flight = each.flight
            if flight is not None and not each.held and not flight.pending.done:
                return flight
        return None

    def _settle(self, item: Item) -> None:
        """Takes the item, which is done, off the list of those under way."""
        flight = item.flight
        if flight is not None and has_outcome(flight.pending):
            try:
                item.value = self._prepare()[0].settle(flight)
            except Exception as e:  # noqa: BLE001  it is raised again where the item is yielded
                item.error = e
        del self._under_way[item]
        if self._shown is not None:
            self._shown.ended(item.raw_id)

    def failure(self, item: Item) -> BaseException:
        """Returns what a failed item's call ended with, saying which input it was."""
        assert item.error is not None
        item.error.add_note(_which(item.number))
        return item.error

    def _outcome(self, item: Item) -> Any:
        if item.error is None:
            return item.value
        error = self.failure(item)
        if self._return_exceptions and isinstance(error, Exception):
            return error
        raise error

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

    def cancel_at_exit(self, done: threading.Event) -> None:
        """Cancels what is under way; ``done`` is set then."""
        self.stop()
        cancels = list(self._take_rest().values())

        def job() -> None:
            _cancel_all(cancels)
            done.set()

        if cancels:
            workers().run(job)
        else:
            done.set()

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


def _end_all(mappers: list[Mapper]) -> None:
    """What a map that is never left has under way ends with the process."""
    ended = [threading.Event() for _ in mappers]
    for mapper, event in zip(mappers, ended, strict=True):
        mapper.cancel_at_exit(event)
    clock = SystemClock()
    until_ms = clock.monotonic_ms() + round(CANCEL_WITHIN_S * 1000)
    for event in ended:
        event.wait(max(0, until_ms - clock.monotonic_ms()) / 1000)


_BEGUN = AtExit(_end_all)


def check_window(window: int) -> None:
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpecError(f"window={window!r}: give a whole number from 1 on")


def _which(number: int) -> str:
    return f"this was input {number} of the map, counted from 0"


def _view_or_none(runner: Runner, item: Item) -> CallView | None:
    try:
        return runner.client.get_call(id_text("c", item.raw_id))
    except PhalanxError:
        return None


def _cancel_all(cancels: list[Cancel]) -> None:
    for cancel in cancels:
        with contextlib.suppress(PhalanxError):
            cancel()
