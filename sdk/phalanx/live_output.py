"""What the ranks of a call print, shown on standard error where the call is waited for, as `gpuctl run` shows it.

Wanted where standard error is a terminal, or with PHALANX_LOGS=1; never with PHALANX_LOGS=0, in CI or inside a gang. A
call that ends within a moment costs nothing for it and shows nothing: no one else knows of it who could say what it
wrote. Standard output stays the program's own. On a terminal a progress bar is one line that is rewritten. Asks for
output only; decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Generator
from typing import TextIO

from phalanx.client import Client
from phalanx.connection import IN_A_GANG
from phalanx.core.clock import SystemClock
from phalanx.core.errors import PhalanxError
from phalanx.log_lines import LogLine
from phalanx.logs import CallLogs
from phalanx.terminal_text import harmless
from phalanx.workers import workers

SHORT_MS = 300
"""Calls that end within this time are not worth a look; from 200 ms on a call is known to the control plane."""
DRAIN_S = 2.0
"""How long the output of an ended call may take to arrive."""
AT_ONCE = 8
"""Calls of this process whose output is shown at the same time; further ones that run beside them are not followed."""
_KNOWN_LOOKS = 10
_KNOWN_PAUSE_S = 0.1
_ERASE_LINE = "\r\x1b[2K"


def wants_output(stream: TextIO | None) -> bool:
    """Says whether the output of calls that are waited for is to be shown on ``stream``."""
    said = os.environ.get("PHALANX_LOGS", "")
    if said or stream is None:
        return said not in ("", "0") and stream is not None
    if any(os.environ.get(name) for name in ("CI", "PHALANX_QUIET", IN_A_GANG)):
        return False
    return stream.isatty()


class Display:
    """Whole lines of several calls on one stream, above the present state of a progress bar. Thread-safe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._lock = threading.Lock()
        self._passing = False

    @property
    def rewrites(self) -> bool:
        return self._terminal

    def show(self, prefix: str, line: LogLine) -> None:
        text = f"[{prefix}r{line.rank}] {harmless(line.text, colours=self._terminal)}"
        with self._lock:
            erase = _ERASE_LINE if self._passing else ""
            self._passing = line.passing
            self._stream.write(erase + (_fitted(text) if line.passing else f"{text}\n"))
            self._stream.flush()

    def clear(self) -> None:
        """Takes the state of a progress bar away."""
        with self._lock:
            if self._passing:
                self._stream.write(_ERASE_LINE)
                self._stream.flush()
            self._passing = False


class Showing:
    """Follows one call on a thread, from `begin` to `end`. ``prefix`` tells calls apart that are shown side by side."""

    def __init__(self, client: Client, call_id: str, display: Display, *, prefix: str = "") -> None:
        self._logs = CallLogs(client, call_id, passing=display.rewrites)
        self._display = display
        self._prefix = prefix
        self._begun = False
        self._lasted = False
        self._left = threading.Event()
        self._drained = threading.Event()

    def begin(self, *, after_ms: int = 0) -> bool:
        """False, and nothing is shown, where enough others are. ``after_ms``: a call that is shorter is not shown."""
        self._begun = _Process.places.acquire(blocking=False)
        if not self._begun:
            return False
        workers().run(lambda: self._follow(after_ms))
        return True

    def leave(self) -> None:
        """The call has ended, or is not waited for any more."""
        self._left.set()

    def end(self, within_s: float = DRAIN_S) -> None:
        """Waits until all is shown that the call wrote, for so long at most; not for a call that was too short."""
        if not self._lasted:
            self._left.set()
        if self._begun:
            self._drained.wait(within_s)
        self._left.set()

    @property
    def drained(self) -> bool:
        return self._drained.is_set()

    def _follow(self, after_ms: int) -> None:
        try:
            self._lasted = not (after_ms and self._left.wait(after_ms / 1000))
            if self._lasted and self._is_known():
                for line in self._logs.live():
                    self._display.show(self._prefix, line)
        except (PhalanxError, OSError, ValueError):  # the call's outcome matters, not what could not be shown of it
            pass
        finally:
            _Process.places.release()
            self._display.clear()
            self._drained.set()

    def _is_known(self) -> bool:
        """A direct call is told to the control plane about now."""
        for _ in range(_KNOWN_LOOKS):
            if self._logs.client.knows(self._logs.call_id):
                return True
            self._left.wait(_KNOWN_PAUSE_S)
        return False


@contextlib.contextmanager
def shown(client: Client, call_id: str) -> Generator[None]:
    """Inside, the call is waited for, and what its ranks print is shown; what is on its way still is on leaving."""
    showing = Showing(client, call_id, display())
    showing.begin()
    try:
        yield
    except Exception:
        showing.end()
        raise
    else:
        showing.end()
    finally:
        showing.leave()


class ShownCalls:
    """Calls under way side by side, as those of a map: the first few that last are shown. For one thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._clock = SystemClock()
        self._seen_ms: dict[bytes, int] = {}
        self._showing: dict[bytes, Showing] = {}

    def see(self, raw_id: bytes, call_id: str, number: int) -> None:
        """The call is under way. It is shown once it has been so for a moment."""
        if raw_id in self._showing:
            return
        since_ms = self._seen_ms.setdefault(raw_id, self._clock.monotonic_ms())
        if self._clock.monotonic_ms() - since_ms < SHORT_MS:
            return
        showing = Showing(self._client, call_id, display(), prefix=f"{number} ")
        if showing.begin():
            self._showing[raw_id] = showing

    def ended(self, raw_id: bytes) -> None:
        self._seen_ms.pop(raw_id, None)
        if raw_id in self._showing:
            self._showing[raw_id].leave()
            for known in [each for each, showing in self._showing.items() if showing.drained]:
                del self._showing[known]

    def end(self) -> None:
        """Waits for what is still on its way."""
        until_ms = self._clock.monotonic_ms() + round(DRAIN_S * 1000)
        for showing in self._showing.values():
            showing.end(max(0, until_ms - self._clock.monotonic_ms()) / 1000)


class _Process:
    places = threading.BoundedSemaphore(AT_ONCE)
    display: Display | None = None


def display() -> Display:
    """Returns this process's display, on what is standard error now."""
    found = _Process.display
    if found is None or found._stream is not sys.stderr:  # pyright: ignore[reportPrivateUsage]
        found = _Process.display = Display(sys.stderr)
    return found


def _fitted(text: str) -> str:
    width = shutil.get_terminal_size().columns - 1
    return text if len(text) <= width else f"{text[: width - 1]}…"
