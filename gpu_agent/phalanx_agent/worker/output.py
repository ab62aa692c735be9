"""The pipes that a rank's standard output and error end in, whatever user code does to descriptors 1 and 2."""

from __future__ import annotations

import contextlib
import os
import select
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Output:
    """``boundary``: bytes that the keeper looks for, of less than PIPE_BUF, so that they are written at once."""

    fds: tuple[int, ...]
    boundary: bytes

    def mark_boundary(self) -> None:
        """What is written from now on belongs to the next call. Waits for room, as user code that writes does."""
        for fd in self.fds:
            with contextlib.suppress(OSError):  # user code closed it: nothing more comes that way
                self._write(fd)

    def _write(self, fd: int) -> None:
        while True:
            try:
                os.write(fd, self.boundary)
            except BlockingIOError:  # user code made it non-blocking
                select.select([], [fd], [])
            else:
                return
