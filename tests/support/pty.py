"""A program at a terminal of its own, typed at as a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from types import TracebackType
from typing import Self

PATIENCE_S = 20.0


class AtTerminal:
    """Runs ``argv``; `until` waits for what it shows. Leaving the context ends it."""

    def __init__(self, argv: list[str], env: dict[str, str], *, rows: int = 24, columns: int = 80) -> None:
        self.text = ""
        self._seen = 0
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            _resize(0, rows, columns)
            os.execvpe(argv[0], argv, env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    def resize(self, rows: int, columns: int) -> None:
        _resize(self._fd, rows, columns)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, pattern: str, *, within_s: float = PATIENCE_S) -> re.Match[str]:
        """Returns the next match behind the last one. Fails, with all that was shown, when it does not come."""
        deadline = time.monotonic() + within_s
        while (found := re.compile(pattern).search(self.text, self._seen)) is None:
            left = deadline - time.monotonic()
            assert left > 0, f"not shown in time: {pattern!r}; shown: {self.text}"
            assert self._read(left) or re.search(pattern, self.text[self._seen :]), f"{pattern!r}: {self.text}"
        self._seen = found.end()
        return found

    def exit_code(self, *, within_s: float = PATIENCE_S) -> int:
        """Waits for its end."""
        deadline = time.monotonic() + within_s
        while self._read(deadline - time.monotonic()):
            assert time.monotonic() < deadline, f"it goes on: {self.text}"
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def _read(self, timeout_s: float) -> bool:
        """Returns False at the end."""
        if not select.select([self._fd], [], [], max(0, timeout_s))[0]:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.text += data.decode("utf-8", "replace")
        return bool(data)


def _resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
