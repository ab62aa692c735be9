"""`phalanx.gather`: waits for several calls at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any

from phalanx.call import Call
from phalanx.core.errors import PhalanxError
from phalanx.giving_up import STOPS, cancel_behind
from phalanx.pipelining import pipelined

WATCHED = 64
"""Calls that are looked at at the same time; further ones when these end."""


class Gather:
    """``phalanx.gather(*calls)`` and ``await phalanx.gather.aio(*calls_or_awaitables)``."""

    def __call__(self, *calls: Call[Any], return_exceptions: bool = False, cancel_others: bool = False) -> list[Any]:
        """Returns the calls' values in the order of the arguments, when all have ended.

        As with `asyncio.gather`, the first failure is raised at once, with the call's id in a note, and the others go
        on; with ``cancel_others`` they are cancelled. With ``return_exceptions`` all are waited for, and failures stand
        in the list. Ctrl-C leaves the calls running.
        """
        for number, call in enumerate(calls):
            if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance]
                _close(calls)
                raise TypeError(f"argument {number} of gather is a {type(call).__name__}: give calls, as f.spawn makes")
        stop = threading.Event()
        values: list[Any] = [None] * len(calls)
        try:
            for job in pipelined(enumerate(calls), partial(_numbered, stop), width=WATCHED, order=False):
                number, call = job.item
                error = _with_note(job.error, call.id)
                if error is not None and not (return_exceptions and isinstance(error, Exception)):
                    raise error
                values[number] = job.result() if error is None else error
        except STOPS as e:
            e.add_note(f"{len(calls)} calls go on that were gathered; cancel them with gpuctl cancel")
            raise
        except BaseException:
            if cancel_others:
                cancel_behind(partial(_cancel, calls))
            raise
        finally:
            stop.set()
        return values

    async def aio(
        self, *calls: Call[Any] | Awaitable[Any], return_exceptions: bool = False, cancel_others: bool = False
    ) -> list[Any]:
        """The same without blocking; coroutines such as ``f.remote.aio(1)`` may stand among the calls.

        Cancelling it stops the waiting for calls, and cancels coroutines.
        """
        tasks = [asyncio.ensure_future(_value(each)) for each in calls]
        try:
            return await asyncio.gather(*tasks, return_exceptions=return_exceptions)
        except Exception:
            if cancel_others:
                for task in tasks:
                    task.cancel()
                cancel_behind(partial(_cancel, [each for each in calls if isinstance(each, Call)]))
            raise


gather = Gather()


async def _value(each: Call[Any] | Awaitable[Any]) -> Any:
    if not isinstance(each, Call):
        return await each
    try:
        return await each.get.aio()
    except Exception as e:
        _with_note(e, each.id)
        raise


def _numbered(stop: threading.Event, item: tuple[int, Call[Any]]) -> Any:
    return item[1].get.until(stop)


def _with_note(error: BaseException | None, call_id: str) -> BaseException | None:
    if error is not None:
        error.add_note(f"this was call {call_id}")
    return error


def _cancel(calls: Iterable[Call[Any]]) -> None:
    for call in calls:
        try:
            call.cancel(wait=False)
        except PhalanxError:  # nobody is left to tell; the failure that led here is what counts
            continue


def _close(calls: Iterable[object]) -> None:
    """Coroutines that were given by mistake are not left to complain that nobody awaited them."""
    for each in calls:
        if asyncio.iscoroutine(each):
            each.close()
