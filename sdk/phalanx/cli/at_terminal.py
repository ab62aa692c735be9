"""The person's end of a terminal at a rank: keyboard and screen on one side, frames on the other.

It decides nothing about what is shown: bytes pass as they are, for they are a terminal's own.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import termios
import tty
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from types import FrameType

from phalanx.terminal import Terminal

_STDIN, _STDOUT = 0, 1
_READ_BYTES = 4096
_QUIET_MS = 500
"""Whoever types from a file has typed all of it: what is still said within this time is shown."""


@dataclass(slots=True)
class Seat:
    """``lines``: the keyboard is read in lines, Ctrl-C is passed on as such, and the end of the input leaves the
    terminal; otherwise every key goes to the other side. ``note`` shows a line of gpuctl's own."""

    terminal: Terminal
    lines: bool
    note: Callable[[str], None]
    _wake: int = -1
    _interrupted: bool = False
    _resized: bool = False
    _typing: bool = True
    _person: bool = field(default_factory=lambda: os.isatty(_STDIN))

    def sit(self) -> bool:
        """Returns when the other side ends the terminal, or with True when this one leaves it."""
        with self._signals() as woken, self._keys():
            if not self.lines:
                self._resize()  # it may have changed since the terminal was asked for
            self._write(self.terminal.shown)
            while self.terminal.ended is None:
                if not self._turn(woken):
                    return True
        return False

    def _turn(self, woken: int) -> bool:
        poll = select.poll()
        poll.register(self.terminal.stream.fileno(), select.POLLIN)
        poll.register(woken, select.POLLIN)
        if self._typing and self.terminal.room >= _READ_BYTES:
            poll.register(_STDIN, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if self._typing or not self.lines else _QUIET_MS)}
        if woken in ready:
            os.read(woken, 64)
            self._signalled()
        if self.terminal.stream.fileno() in ready:
            self._write(self.terminal.receive())
        if _STDIN in ready:
            return self._type()
        return bool(ready) or self._typing or not self.lines

    def _type(self) -> bool:
        data = os.read(_STDIN, _READ_BYTES)
        if data:
            self.terminal.type(data)
        elif self.lines and self._person:
            return False
        else:
            self._typing = False
            if not self.lines:
                self.terminal.type(b"\x04")
        return True

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(_STDOUT, left) :]
        self.terminal.taken(len(data))
        while self.terminal.notes:
            self.note(self.terminal.notes.pop(0))

    def _signalled(self) -> None:
        if self._interrupted:
            self._interrupted = False
            self.terminal.interrupt()
        if self._resized:
            self._resized = False
            self._resize()

    def _resize(self) -> None:
        size = window()
        self.terminal.resize(size.lines, size.columns)

    @contextlib.contextmanager
    def _keys(self) -> Generator[None]:
        """Without lines every key goes through, Ctrl-C included."""
        if self.lines or not self._person:
            yield
            return
        before = termios.tcgetattr(_STDIN)
        tty.setraw(_STDIN, termios.TCSADRAIN)  # what was typed ahead is kept
        try:
            yield
        finally:
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)

    @contextlib.contextmanager
    def _signals(self) -> Generator[int]:
        """Ctrl-C and the window's size, noted by handlers and served by the loop."""
        reading, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        numbers = (signal.SIGINT, signal.SIGWINCH) if self.lines else (signal.SIGWINCH,)
        before = {number: signal.signal(number, self._noted) for number in numbers}
        try:
            yield reading
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reading)
            os.close(self._wake)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT:
            self._interrupted = True
        else:
            self._resized = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")


def window() -> os.terminal_size:
    """Returns the size of the terminal that is typed at, whatever COLUMNS says: programs there draw for it."""
    try:
        return os.get_terminal_size(_STDIN)
    except OSError:
        return shutil.get_terminal_size()
