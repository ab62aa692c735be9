"""What becomes of calls when their waiting is broken off: they are cancelled, within a bound, and it is said.

A call that only an interrupted wait wants must not run on unnoticed. Nothing here decides which calls those are.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from phalanx.core.clock import SystemClock
from phalanx.core.errors import PhalanxError
from phalanx.core.states import CallState
from phalanx.workers import workers

T = TypeVar("T")

STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends a wait from outside, in the thread that waits."""
CANCEL_WITHIN_S = 2.0
_LOOK_AGAIN_S = 0.3
_NOTICE_S = 0.1
"""A Ctrl-C that comes just before a wait begins is noticed when it ends."""
_SHOWN = 3
_OPEN = "it may run on"

Cancel = Callable[[], str]
"""Asks for one call's end, and returns the state that it then is in; "" where nobody knows it."""


def break_off(error: BaseException, calls: dict[str, Cancel]) -> None:
    """Cancels ``calls``, by id, and notes on ``error`` what happened to each. Waits two seconds at most.

    Another Ctrl-C meanwhile ends the waiting at once.
    """
    if not calls:
        return
    became = dict.fromkeys(calls, f"{_OPEN}, its end was not confirmed within {CANCEL_WITHIN_S:g} s")
    try:
        _say(f"phalanx: cancelling {_named(list(calls))}")
        _cancel_all(calls, became)
    except KeyboardInterrupt:
        by_hand = [call_id for call_id, words in became.items() if words.startswith(_OPEN)]
        _say(f"phalanx: not waiting for that; by hand: gpuctl cancel {' '.join(by_hand[:_SHOWN])}")
    for call_id, words in list(became.items())[:_SHOWN]:
        by_hand = f"; gpuctl cancel {call_id}" if words.startswith(_OPEN) else ""
        error.add_note(f"call {call_id}: {words}{by_hand}")
    if len(became) > _SHOWN:
        error.add_note(f"… and {len(became) - _SHOWN} more calls")


def goes_on(error: BaseException, call_id: str) -> None:
    """Notes on ``error`` that a call which outlives this process by design was not touched."""
    error.add_note(f"call {call_id} goes on; gpuctl cancel {call_id}")


def cancel_behind(cancel: Callable[[], object]) -> None:
    """Cancels on a thread, for a wait that must end at once; the process waits for it when it ends, two seconds.

    Does nothing while the interpreter is being taken down, when no thread begins any more.
    """
    if sys.is_finalizing():
        return
    _Behind.add()

    def job() -> None:
        try:
            cancel()
        except Exception:  # noqa: BLE001, S110  a cancellation that cannot be delivered has nobody to tell
            pass
        finally:
            _Behind.remove()

    workers().run(job)


class _Behind:
    """Cancellations under way that nobody waits for yet."""

    pid = 0
    count = 0
    changed = threading.Condition()

    @classmethod
    def add(cls) -> None:
        if cls.pid != os.getpid():
            cls.pid, cls.count, cls.changed = os.getpid(), 0, threading.Condition()
            atexit.register(cls.wait, cls.pid)
        with cls.changed:
            cls.count += 1

    @classmethod
    def remove(cls) -> None:
        with cls.changed:
            cls.count -= 1
            cls.changed.notify_all()

    @classmethod
    def wait(cls, pid: int) -> None:
        if pid == os.getpid():
            with cls.changed:
                cls.changed.wait_for(lambda: cls.count == 0, CANCEL_WITHIN_S)


class AtExit(Generic[T]):
    """Objects that this process still has when it ends are given to ``end`` then, while threads can begin.

    Cancellations that ``end`` leaves behind are waited for. A forked child has none of its parent's.
    """

    def __init__(self, end: Callable[[list[T]], None]) -> None:
        self._end = end
        self._pid = 0
        self._held: weakref.WeakSet[T] = weakref.WeakSet()

    def add(self, each: T) -> None:
        if self._pid != os.getpid():
            self._pid, self._held = os.getpid(), weakref.WeakSet()
            atexit.register(self._at_exit, self._pid)
        self._held.add(each)

    def _at_exit(self, pid: int) -> None:
        if pid == os.getpid():
            self._end(list(self._held))
            _Behind.wait(pid)


def _job(call_id: str, cancel: Cancel, told: queue.SimpleQueue[tuple[str, str]]) -> Callable[[], None]:
    def job() -> None:
        try:
            words = _words(_cancel_until_known(cancel))
        except PhalanxError as e:
            words = f"{_OPEN}, cancelling failed: {e}"
        except Exception as e:  # noqa: BLE001  a thread's boundary: it is noted on the error
            words = f"{_OPEN}, cancelling failed: {type(e).__name__}: {e}"
        told.put((call_id, words))

    return job


def _cancel_until_known(cancel: Cancel) -> str:
    """A submission that was broken off may still arrive: a call that nobody knows is looked for again."""
    pause = threading.Event()
    for _ in range(4):
        state = cancel()
        if state:
            return state
        pause.wait(_LOOK_AGAIN_S)
    return ""


def _cancel_all(calls: dict[str, Cancel], became: dict[str, str]) -> None:
    """Fills ``became`` with what is told in time."""
    told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for call_id, cancel in calls.items():
        workers().run(_job(call_id, cancel, told))
    clock = SystemClock()
    until_ms = clock.monotonic_ms() + round(CANCEL_WITHIN_S * 1000)
    left = len(calls)
    while left and clock.monotonic_ms() < until_ms:
        with contextlib.suppress(queue.Empty):
            call_id, became_of_it = told.get(timeout=_NOTICE_S)
            became[call_id] = became_of_it
            left -= 1


def _words(state: str) -> str:
    if not state:
        return "it had not been accepted"
    if state == CallState.CANCELLED:
        return "cancelled"
    if CallState(state).terminal:
        return f"it had already ended: {state}"
    return "its cancellation is accepted; its ranks are being ended"


def _named(call_ids: Sequence[str]) -> str:
    if len(call_ids) == 1:
        return f"call {call_ids[0]}"
    more = "" if len(call_ids) <= _SHOWN else ", …"
    return f"{len(call_ids)} calls: {', '.join(call_ids[:_SHOWN])}{more}"


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return
