"""Says on standard error why a call that is waited for does not run yet: one line, kept up to date.

On a terminal the line is rewritten in place and erased in the end. Elsewhere each change is a line, and only a long
wait is worth one, unless PHALANX_PROGRESS=1 asks for it. One call at a time is shown, however many are waited for. Asks
nobody for anything itself.
"""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import Self, TextIO

from phalanx.core.clock import Clock
from phalanx.core.states import CallState
from phalanx.core.views import CallView

PATIENCE_MS = 2000
"""Calls that run within this time are not worth a line."""
PATIENCE_UNSEEN_MS = 15_000
"""The same where nobody looks, as in a job's log: there a line stays for ever."""
_ERASE_LINE = "\r\x1b[2K"
_NARROW = 80
_LINE = threading.Lock()
"""Held by whoever shows a line."""


def patience_ms(stream: TextIO | None) -> int | None:
    """Returns after how long ``stream`` gets a line; None for never. PHALANX_PROGRESS decides where it is 0 or 1."""
    said = os.environ.get("PHALANX_PROGRESS", "")
    if stream is None or said == "0":
        return None
    if said:
        return PATIENCE_MS
    if os.environ.get("PHALANX_QUIET"):
        return None
    return PATIENCE_MS if stream.isatty() and not os.environ.get("CI") else PATIENCE_UNSEEN_MS


class Waiting:
    """The line of one call, while it is waited for. Use as a context."""

    def __init__(self, call_id: str, clock: Clock, stream: TextIO, *, patience_ms: int = PATIENCE_MS) -> None:
        self.until_ms = clock.monotonic_ms() + patience_ms
        """Before this nothing is worth a line."""
        self._call_id = call_id
        self._clock = clock
        self._stream = stream
        self._in_place = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._since_ms = clock.monotonic_ms()
        self._shown = ""
        self._holds_line = False

    def see(self, view: CallView) -> None:
        """Shows what ``view`` says, unless it is what stands there already."""
        words = words_of(view)
        if words == self._shown or not (words or self._holds_line):
            return
        if not self._holds_line and not _LINE.acquire(blocking=False):
            return
        self._holds_line = True
        self._shown = words
        if words:
            self._show(f"phalanx: call {self._call_id} {words}")
        else:
            self._end(f"phalanx: call {self._call_id} started after {self._waited_s()} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holds_line:
            self._end("")

    def _waited_s(self) -> int:
        return (self._clock.monotonic_ms() - self._since_ms) // 1000

    def _show(self, text: str) -> None:
        if not self._in_place:
            self._write(f"{text}\n")
            return
        width = _width(self._stream)
        self._write(_ERASE_LINE + (text if len(text) < width else f"{text[: width - 2]}…"))

    def _end(self, text: str) -> None:
        """Gives the line up; ``text`` is the last one where lines stay."""
        if self._in_place:
            self._write(_ERASE_LINE)
        elif text:
            self._write(f"{text}\n")
        self._holds_line = False
        _LINE.release()

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # it was closed, or cannot write this: the call matters more
            return


def words_of(view: CallView) -> str:
    """Returns what a call waits for; empty once it runs or has ended."""
    if not view.state:
        return "waiting: the control plane has not answered yet"
    state = CallState(view.state)
    if state is CallState.RUNNING or state.terminal:
        return ""
    if state is CallState.CANCELLING:
        return "being cancelled: its ranks have their grace"
    if state is CallState.ASSIGNED and view.world_size and view.ready_ranks < view.world_size:
        return f"starting: {view.ready_ranks} of {view.world_size} ranks are ready"
    reason = view.reason or "it is about to start"
    said = f"waiting {reason[6:]}" if reason.startswith("waits ") else f"waiting: {reason}"
    return said + (f"; position {view.queue_position}" if view.queue_position else "")


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _NARROW
    except (OSError, ValueError):
        return _NARROW


def line_for(call_id: str, clock: Clock) -> Waiting | None:
    """Returns the line of a call on standard error; None where none is wanted."""
    stream = sys.stderr
    patience = patience_ms(stream)
    return Waiting(call_id, clock, stream, patience_ms=patience) if patience is not None else None
