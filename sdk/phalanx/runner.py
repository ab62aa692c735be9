"""How one call is made: directly at a warm gang where there is one, through the control plane otherwise.

Both ways carry the same id. BUSY goes the durable way. When a connection is lost in the middle, what became of the id
is asked, of the control plane and of the agent; nothing is ever sent a second time while it may have run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from phalanx import context
from phalanx.client import Client, is_terminal
from phalanx.connection import connect
from phalanx.core.clock import Clock, SystemClock
from phalanx.core.errors import AuthError, CallCancelledError, ConnectionFailedError, NotFoundError, OutcomeUnknownError
from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import id_text
from phalanx.core.messages import Body, CallTerms
from phalanx.core.serialization import Packed
from phalanx.core.spec import INLINE_BODY_BYTES
from phalanx.core.states import CallState
from phalanx.core.views import CallView, GangAddress
from phalanx.dataplane import GangConnection
from phalanx.definition import Target
from phalanx.giving_up import STOPS, break_off, goes_on
from phalanx.kept_arguments import keep
from phalanx.live_output import SHORT_MS, shown, wants_output
from phalanx.memfds import MemfdPool
from phalanx.outcomes import error_of_frame, error_of_view, value_of_body, value_of_frame
from phalanx.pending import Pending
from phalanx.waiting import line_for

RECOVER_MS = 15_000
"""How long an agent may be away before the outcome of a call that it had is declared unknown."""
LOOK_AGAIN_MS = 50
"""No warm gang was found: until then nobody asks again."""
IDLE_CHECK_MS = 20
CANCEL_ANSWER_MS = 1000
"""How long a gang may take to say what it has of a call that is cancelled; one that runs says nothing yet."""
STOP_LOOK_MS = 5000
"""Between two looks at whether somebody still waits for a call."""
_UNKNOWN_ANSWERS = 3
_ASK_PAUSE_S = 0.3


@dataclass(slots=True, eq=False)
class Flight:
    """A direct call on its way. ``packed`` is kept in case it must go the durable way."""

    target: Target
    raw_id: bytes
    packed: Packed
    connection: GangConnection
    pending: Pending = field(default_factory=Pending)

    @property
    def call_id(self) -> str:
        return id_text("c", self.raw_id)


class Runner:
    """Everything that calls of one client share: gang connections by function, and memory to send from."""

    def __init__(self, client: Client, *, clock: Clock | None = None) -> None:
        self.client = client
        self.pid = os.getpid()
        self.pool = MemfdPool()
        self.clock = clock or SystemClock()
        self.shows_output = wants_output(sys.stderr)
        self._routes: dict[str, GangConnection] = {}
        self._used_ms: dict[str, int] = {}
        self._no_gang_until_ms: dict[str, int] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._pause = threading.Event()
        self._name = f"{socket.gethostname()}/{self.pid}"

    # ---- whole calls ----

    def run(self, target: Target, raw_id: bytes, packed: Packed, stop: threading.Event | None = None) -> Any:
        """Returns the call's value, or raises. ``stop``: somebody cancelled before it was sent.

        Breaking the wait off, as Ctrl-C does, cancels the call; one with an idempotency key goes on.
        """
        flight = None
        try:
            flight = self.direct(target, raw_id, packed)
            if flight is None:
                return self.durable(target, raw_id, packed, stop, show=self.shows_output)
            self._wait(flight)
            return self.settle(flight, stop)
        except STOPS as e:
            if not target.terms.idempotency_key:
                break_off(e, {id_text("c", raw_id): lambda: self.cancel(target, raw_id, flight)})
            raise

    def _wait(self, flight: Flight) -> None:
        if not self.shows_output:
            flight.connection.wait(flight.pending)
        elif not flight.connection.wait(flight.pending, until_ms=self.clock.monotonic_ms() + SHORT_MS):
            with shown(self.client, flight.call_id):
                flight.connection.wait(flight.pending)

    def direct(self, target: Target, raw_id: bytes, packed: Packed) -> Flight | None:
        """Sends the call to a warm gang; None when there is none."""
        target.refuse_stream()
        route = self.route(target)
        if route is None:
            return None
        return Flight(target, raw_id, packed, route, route.call(raw_id, packed, timeout_ms=target.timeout_ms))

    def settle(self, flight: Flight, stop: threading.Event | None = None) -> Any:
        """Returns the value of a direct call that is done, or raises what it ended with."""
        frame = flight.pending.frame
        if frame is None:
            return self._after_loss(flight, stop)
        if frame.kind is Kind.RESULT:
            return value_of_frame(frame, flight.target.returns)
        if frame.kind is Kind.BUSY or (frame.kind is Kind.UNKNOWN and frame.meta.get("never_ran")):
            self.note_busy(flight, frame)
            return self.durable(flight.target, flight.raw_id, flight.packed, stop)
        if frame.kind is Kind.FAILURE:
            keep(flight.call_id, flight.target.function_id, flight.packed)
            raise error_of_frame(frame, flight.call_id)
        return self._recover(flight)

    def durable(
        self, target: Target, raw_id: bytes, packed: Packed, stop: threading.Event | None = None, *, show: bool = False
    ) -> Any:
        """Submits the call, waits for its end, and returns its value or raises. ``show``: what its ranks print, too."""
        if stop is not None and stop.is_set():
            raise CallCancelledError("cancelled before it was sent", call_id=id_text("c", raw_id))
        call_id = self.submit(target, raw_id, packed)
        if target.terms.idempotency_key:
            return self.value_of(self._await_shared(call_id), target.returns)
        if stop is not None and stop.is_set():
            self.client.cancel(call_id)
        with shown(self.client, call_id) if show else contextlib.nullcontext():
            view = self.await_end(call_id)
        self._no_gang_until_ms.pop(target.function_id, None)
        return self.value_of(view, target.returns)

    def submit(self, target: Target, raw_id: bytes, packed: Packed, *, stream: bool = False) -> str:
        """Returns the call's id once the control plane has made it durable: the first one's, where it has a key."""
        if not stream:
            target.refuse_stream()
        call_id = id_text("c", raw_id)
        data = packed.tobytes()
        if len(data) <= INLINE_BODY_BYTES:
            body = Body(data=data, size=len(data))
        else:
            body = Body(blob=self.client.put_blob(data), size=len(data))
        return self.client.submit(
            call_id,
            target.function_id,
            body,
            timeout_ms=target.timeout_ms,
            parent=context.running_call_id(),
            terms=None if target.terms == CallTerms() else target.terms,
        )

    def await_end(self, call_id: str, *, until_ms: int | None = None, stop: threading.Event | None = None) -> CallView:
        """Returns the call's last view: terminal, or as it is at ``until_ms`` (monotonic), or soon after ``stop``.

        A call that does not run after two seconds, or some more where nobody looks, says on standard error why.
        """
        line = line_for(call_id, self.clock)
        if line is None:
            return self._last_view(call_id, until_ms, stop=stop)
        with line:
            if until_ms is not None and until_ms <= line.until_ms:
                return self._last_view(call_id, until_ms, stop=stop)
            view = self._last_view(call_id, line.until_ms, stop=stop)
            if is_terminal(view) or (stop is not None and stop.is_set()):
                return view
            line.see(view)
            return self._last_view(call_id, until_ms, line.see, stop=stop)

    def _await_shared(self, call_id: str) -> CallView:
        """Waits for a call that others may wait for too: it is not this one's to cancel."""
        try:
            return self.await_end(call_id)
        except STOPS as e:
            goes_on(e, call_id)
            raise

    def _last_view(
        self,
        call_id: str,
        until_ms: int | None,
        see: Callable[[CallView], None] = lambda _view: None,
        *,
        stop: threading.Event | None = None,
    ) -> CallView:
        view = CallView(call_id=call_id)
        try:
            while True:
                now = self.clock.monotonic_ms()
                look_ms = until_ms if stop is None else min(until_ms or now + STOP_LOOK_MS, now + STOP_LOOK_MS)
                for view in self.client.watch(call_id, until_ms=look_ms):
                    see(view)
                    if is_terminal(view):
                        return view
                if stop is None or stop.is_set() or look_ms == until_ms:
                    return view
        except ConnectionFailedError as e:
            _raise_with(e, call_id)

    def value_of(self, view: CallView, returns: str) -> Any:
        """Returns an ended call's value, or raises what it ended with."""
        if view.state != CallState.SUCCEEDED:
            raise error_of_view(view)
        body = self.client.get_blob(view.result.blob) if view.result.blob else view.result.data
        return value_of_body(body, returns)

    def cancel(self, target: Target, raw_id: bytes, flight: Flight | None = None) -> str:
        """Asks for the call's end wherever it is. Returns its state then; "" for one that nobody knows, or that has an
        idempotency key, so that others may wait for it.
        """
        if target.terms.idempotency_key:
            return ""
        if flight is not None and flight.connection.open and not flight.pending.done:
            flight.connection.cancel(raw_id)
            if flight.connection.open:
                return CallState.CANCELLING
        try:
            return self.client.cancel(id_text("c", raw_id)).state
        except NotFoundError:
            return self._cancel_at_gang(target, raw_id)

    def _cancel_at_gang(self, target: Target, raw_id: bytes) -> str:
        """For a direct call that is too young for the control plane: its connection may have ended with its wait."""
        route = self.route(target)
        if route is None:
            return ""
        pending = route.ask(raw_id)
        route.cancel(raw_id)
        route.wait(pending, until_ms=self.clock.monotonic_ms() + CANCEL_ANSWER_MS)
        frame = pending.frame
        if frame is not None and frame.kind is Kind.RESULT:
            return CallState.SUCCEEDED
        return CallState.CANCELLING if frame is None or frame.kind is Kind.FAILURE else ""

    # ---- gangs ----

    def route(self, target: Target) -> GangConnection | None:
        """Returns a connection to a warm gang of the function, opening one where a gang is known.

        There is none for a call that is made from inside a call: that one is known to the control plane from the start,
        so that it ends with its caller.
        """
        if not target.direct or context.is_call_running():
            return None
        route = self.open_route(target)
        if route is not None:
            return route
        now = self.clock.monotonic_ms()
        if now < self._no_gang_until_ms.get(target.function_id, 0):
            return None
        with self._locks.setdefault(target.function_id, threading.Lock()):
            route = self.open_route(target) or self._connect(target)
        if route is None:
            self._no_gang_until_ms[target.function_id] = now + LOOK_AGAIN_MS
        return route

    def open_route(self, target: Target) -> GangConnection | None:
        """Returns the connection that is open already; no network round trip."""
        route = self._routes.get(target.function_id)
        if route is None or route.pid != os.getpid():
            return None
        now = self.clock.monotonic_ms()
        if now - self._used_ms.get(target.function_id, 0) > IDLE_CHECK_MS:
            route.notice_end()
        self._used_ms[target.function_id] = now
        return route if route.open else None

    def close(self) -> None:
        for route in self._routes.values():
            route.close()
        self._routes.clear()
        self.pool.close()

    def _connect(self, target: Target) -> GangConnection | None:
        """An agent that is not reachable from here is no error: the durable way remains."""
        return self._open(target, self.client.gang_address(target.function_id))

    def _open(self, target: Target, address: GangAddress) -> GangConnection | None:
        if not address.ticket:
            return None
        try:
            route = GangConnection(address, client=self._name, pool=self.pool, clock=self.clock)
        except (ConnectionFailedError, AuthError):
            return None
        self._routes[target.function_id] = route
        self._used_ms[target.function_id] = self.clock.monotonic_ms()
        return route

    def route_to(self, target: Target, call_id: str) -> GangConnection | None:
        """Returns a connection to the gang that has the call; None while there is none that can be reached."""
        address = self.client.gang_address(target.function_id, call_id)
        route = self.open_route(target)
        if route is not None and address.ticket and route.gang_id == address.gang_id:
            return route
        return self._open(target, address)

    def note_busy(self, flight: Flight, frame: Frame) -> None:
        """A gang that is busy with nothing is ending."""
        if frame.meta.get("draining") or not frame.meta.get("depth"):
            if self._routes.get(flight.target.function_id) is flight.connection:
                del self._routes[flight.target.function_id]
            if not flight.connection.in_flight:
                flight.connection.close()

    # ---- lost connections ----

    def _after_loss(self, flight: Flight, stop: threading.Event | None) -> Any:
        if not flight.pending.sent:
            return self.durable(flight.target, flight.raw_id, flight.packed, stop)
        return self._recover(flight)

    def _recover(self, flight: Flight) -> Any:
        """Finds out what became of a call whose connection was lost after it was sent."""
        try:
            return self._recovered(flight)
        except ConnectionFailedError as e:
            _raise_with(e, flight.call_id)

    def _recovered(self, flight: Flight) -> Any:
        until_ms = self.clock.monotonic_ms() + RECOVER_MS
        unknown = 0
        while self.clock.monotonic_ms() < until_ms and unknown < _UNKNOWN_ANSWERS:
            if self.client.knows(flight.call_id):
                return self.value_of(self.await_end(flight.call_id), flight.target.returns)
            answer = self.ask_agent(flight)
            if answer is not None and answer.kind is Kind.RESULT:
                return value_of_frame(answer, flight.target.returns)
            if answer is not None and answer.kind is Kind.FAILURE:
                raise error_of_frame(answer, flight.call_id)
            if answer is not None and answer.meta.get("never_ran"):
                return self.durable(flight.target, flight.raw_id, flight.packed)
            unknown += answer is not None and answer.kind is Kind.UNKNOWN
            self._pause.wait(_ASK_PAUSE_S)
        raise OutcomeUnknownError(
            f"the connection to the gang of {flight.target.name} was lost, and neither its agent nor the control plane "
            f"knows the call: it may have run",
            call_id=flight.call_id,
            attempt=1,
            hint="call it again if running it twice does no harm, or give the function retries=1",
        )

    def ask_agent(self, flight: Flight) -> Frame | None:
        """Returns the outcome, UNKNOWN or BUSY; None while the gang's agent is not reachable."""
        target, gang_id = flight.target, flight.connection.gang_id
        with self._locks.setdefault(target.function_id, threading.Lock()):
            route = self.open_route(target)
            if route is None or route.gang_id != gang_id:
                address = self.client.gang_address(target.function_id, gang_id=gang_id)
                if not address.ticket:
                    return Frame(Kind.UNKNOWN, flight.raw_id)
                route = self._open(target, address)
        if route is None:
            return None
        pending = route.ask(flight.raw_id)
        route.wait(pending)
        return pending.frame


def _raise_with(error: ConnectionFailedError, call_id: str) -> NoReturn:
    """Raises the error with the call in it, so that whoever reads it can look for the call."""
    if hasattr(error, "call_id") or call_id in str(error):
        raise error
    raise ConnectionFailedError(f"{error}; call {call_id} was waited for", hint=error.hint) from error


class _Process:
    """This process's runner, beside its client."""

    runner: Runner | None = None


def current() -> Runner:
    """Returns the runner of this process's client."""
    client = connect()
    runner = _Process.runner
    if runner is None or runner.client is not client:
        if runner is not None and runner.pid == os.getpid():
            runner.close()
        runner = _Process.runner = Runner(client)
    return runner
