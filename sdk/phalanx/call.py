"""A durable call, seen from anywhere: its value, state, output, ranks and cost. Every verb has an async twin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from phalanx import aio
from phalanx.client import is_terminal
from phalanx.core.errors import GetTimeoutError, InvalidSpecError
from phalanx.core.ids import id_raw
from phalanx.core.remote_errors import replay_command
from phalanx.core.steps import RankSteps
from phalanx.core.views import CallView, CostView, RankView
from phalanx.durations import Duration, from_none
from phalanx.giving_up import STOPS, goes_on
from phalanx.logs import LogLine, read_logs
from phalanx.ranks_now import steps_now
from phalanx.reports import CallReport, call_report
from phalanx.runner import current

R = TypeVar("R")

MAX_CHILDREN = 1000


class Call(Generic[R]):
    """One invocation. Made by `Function.spawn` and `Call.from_id`."""

    def __init__(self, call_id: str, *, returns: str = "") -> None:
        self.id = call_id
        self._returns = returns
        self._ended: CallView | None = None
        self._get: Get[R] = Get(self)
        self._cancel = Cancel(self)

    @property
    def get(self) -> Get[R]:
        """``get(timeout=None)`` waits and returns the value, or raises what the function raised; ``get.aio`` likewise.

        After ``timeout`` it raises GetTimeoutError, and the call goes on; so it does after Ctrl-C.
        """
        return self._get

    @property
    def cancel(self) -> Cancel:
        """``cancel(wait=True)`` ends the call on all its ranks and returns its view; ``cancel.aio`` likewise.

        Harmless on a call that has ended. Of a call that failed it releases the gang, where that is held.
        """
        return self._cancel

    @property
    def status(self) -> Twin[CallView]:
        """``status()`` returns the call as it is now: state, reason, attempt, ranks, cost; ``status.aio`` likewise."""
        return Twin(self._status)

    @property
    def report(self) -> Twin[CallReport]:
        """``report()`` returns what is known of a call that failed, of all of its ranks; NotFoundError of any other."""
        return Twin(self._report)

    @property
    def steps(self) -> Twin[tuple[RankSteps, ...]]:
        """``steps()`` returns how long the steps of its ranks take while it runs: who is slow, and by how much."""
        return Twin(self._steps)

    @property
    def parent(self) -> Twin[Call[Any] | None]:
        """``parent()`` returns the call from inside which this one was made; None where a program made it."""
        return Twin(self._parent)

    @property
    def children(self) -> Twin[tuple[Call[Any], ...]]:
        """``children()`` returns the calls made from inside this one, in order; of very many the newest 1000."""
        return Twin(self._children)

    @classmethod
    def from_id(cls, call_id: str) -> Call[Any]:
        """Returns the call of that id, of any age that the history goes back to.

        Raises InvalidSpecError for what is no call id. Whether the call exists in this workspace is seen at the first
        question, which raises NotFoundError.
        """
        try:
            id_raw(call_id)
            known = call_id.startswith("c-")
        except ValueError:
            known = False
        if not known:
            raise InvalidSpecError(f"{call_id!r} is not a call id: they look like c-0123…, see `gpuctl ps --all`")
        return Call(call_id)

    def logs(self, follow: bool = False) -> Iterator[LogLine]:
        """Yields the call's output by line, rank and node; with ``follow`` until the call has ended."""
        return read_logs(current().client, self.id, follow=follow)

    @property
    def replay_command(self) -> str:
        """The command line that runs this call again on this machine, with the same code and arguments."""
        return replay_command(self.id)

    def ranks(self) -> tuple[RankView, ...]:
        """Returns the ranks of its gang, with node, GPU, process id and state."""
        return self._status().ranks

    def cost(self) -> CostView:
        """Returns GPU time and money by phase, up to now."""
        costs = current().client.costs(call_id=self.id)
        return costs[0] if costs else CostView(subject=self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.id, self._returns)

    def __repr__(self) -> str:
        return f"<phalanx.Call {self.id}>"

    def _status(self) -> CallView:
        """Of an ended call, too, something still changes: what it costs, until its last counters are in, and whether
        its webhook was told.
        """
        return self._remember(current().client.get_call(self.id))

    def _report(self) -> CallReport:
        """Returns what is known of a call that failed, of all of its ranks; NotFoundError of any other."""
        return call_report(current().client, self.id)

    def _steps(self) -> tuple[RankSteps, ...]:
        """Returns how long the steps of its ranks take while it runs, by rank: who is slow, and by how much."""
        return steps_now(current().client, self.id)

    def _parent(self) -> Call[Any] | None:
        """Returns the call from inside which this one was made; None where a program made it."""
        parent = self._status().parent
        return Call(parent) if parent else None

    def _children(self) -> tuple[Call[Any], ...]:
        """Returns the calls that were made from inside this one, in order; of very many the newest 1000."""
        views = current().client.list_calls(parent=self.id, ended_too=True, limit=MAX_CHILDREN)
        return tuple(Call(view.call_id) for view in reversed(views))

    def wait_for_end(self, timeout_s: float | None, stop: threading.Event | None = None) -> CallView:
        """Returns the terminal view. Raises GetTimeoutError, also soon after ``stop``."""
        if self._ended is not None:
            return self._ended
        runner = current()
        until_ms = None if timeout_s is None else runner.clock.monotonic_ms() + round(timeout_s * 1000)
        view = self._remember(runner.await_end(self.id, until_ms=until_ms, stop=stop))
        if not is_terminal(view):
            state = f"it is {view.state}" + (f": {view.reason}" if view.reason else "") if view.state else "no answer"
            within = "while it was waited for" if timeout_s is None else f"within {timeout_s:g} s"
            raise GetTimeoutError(f"call {self.id} did not end {within}; {state}", hint=f"gpuctl logs -f {self.id}")
        return view

    def value(self, view: CallView) -> R:
        return current().value_of(view, self._returns)

    def _remember(self, view: CallView) -> CallView:
        if is_terminal(view):
            self._ended = view
        return view


class Twin(Generic[R]):
    """A question without arguments, and its async twin."""

    def __init__(self, ask: Callable[[], R]) -> None:
        self._ask = ask

    def __call__(self) -> R:
        return self._ask()

    async def aio(self) -> R:
        return await aio.in_thread(self._ask)


class Get(Generic[R]):
    """Waits for the value."""

    def __init__(self, call: Call[R]) -> None:
        self._call = call

    def __call__(self, timeout: Duration | None = None) -> R:
        """Returns the value, or raises what the function raised.

        After ``timeout`` raises GetTimeoutError, and the call goes on; so it does after Ctrl-C.
        """
        timeout_s = None if timeout is None else from_none("timeout", timeout)
        try:
            view = self._call.wait_for_end(timeout_s)
        except STOPS as e:
            goes_on(e, self._call.id)
            raise
        return self._call.value(view)

    async def aio(self, timeout: Duration | None = None) -> R:
        """Cancelling the task stops the waiting, not the call."""
        stop = threading.Event()
        return await aio.in_thread(lambda: self.until(stop, timeout), on_cancel=stop.set)

    def until(self, stop: threading.Event, timeout: Duration | None = None) -> R:
        """The same on a thread, which gives up soon after ``stop``: nobody wants the value any more."""
        timeout_s = None if timeout is None else from_none("timeout", timeout)
        return self._call.value(self._call.wait_for_end(timeout_s, stop))


class Cancel:
    """Ends the call."""

    def __init__(self, call: Call[Any]) -> None:
        self._call = call

    def __call__(self, *, wait: bool = True) -> CallView:
        """Returns when the call's processes are gone; at once with ``wait`` False. Harmless on an ended call.

        Calls that were made from inside it and still run or wait are cancelled as well.
        """
        view = current().client.cancel(self._call.id)
        return self._call.wait_for_end(None) if wait and not is_terminal(view) else view

    async def aio(self, *, wait: bool = True) -> CallView:
        return await aio.in_thread(lambda: self(wait=wait))


def _again(call_id: str, returns: str) -> Call[Any]:
    return Call(call_id, returns=returns)
