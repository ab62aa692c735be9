"""A lane: the straight way between this process and the gang's keeper, past the agent that takes the calls in.

A pair of sockets, of which the agent passes one end on. In come whole RESULT frames, out go calls that nothing else is
under way with. Where its other end goes away, because the gang has no lanes or ends, or its agent is another one, the
main connection serves alone.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Sequence

from phalanx.core.frames import Assembler, Frame, FrameError
from phalanx.core.sockets import Part

_READ_BYTES = 128 * 1024
_LOOK_AGAIN_MS = 1000
"""Another thread may have closed the connection just before the wait began."""


class Lane:
    """One thread at a time waits and reads here, for the main connection as well."""

    def __init__(self, main_fd: int) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._theirs: socket.socket | None = theirs
        self._ours.setblocking(False)
        self._fd = self._ours.fileno()
        self._assembler = Assembler()
        self._poll = select.poll()
        self._poll.register(main_fd, select.POLLIN)
        self._poll.register(self._fd, select.POLLIN)
        self.open = True

    def send(self, parts: Sequence[Part]) -> bool:
        """Sends small frames, or nothing and returns False. Raises OSError where only a part has gone."""
        try:
            sent = self._ours.sendmsg(parts)
        except OSError:
            return False
        if sent != sum(map(len, parts)):
            raise OSError("a part of a frame was sent over the lane")
        return True

    @property
    def other_end(self) -> int:
        """The descriptor to send away."""
        assert self._theirs is not None
        return self._theirs.fileno()

    def sent(self) -> None:
        """The other end has left: this process keeps none of it."""
        if self._theirs is not None:
            self._theirs.close()
            self._theirs = None

    def wait_readable(self, timeout_s: float) -> bool:
        """Says whether something came, here or over the main connection, within ``timeout_s``."""
        return bool(self._poll.poll(timeout_s * 1000))

    def receive(self) -> list[Frame] | None:
        """Waits until something has come. Returns the frames of this lane; None: the main connection has something."""
        while self.open:
            came = [fd for fd, _events in self._poll.poll(_LOOK_AGAIN_MS)]
            if self._fd in came:  # first: the end of the main connection must not hide what is here already
                return self._read()
            if came:
                return None
        return None

    def close(self) -> None:
        self.sent()
        self.open = False
        self._ours.close()

    def _read(self) -> list[Frame]:
        with contextlib.suppress(OSError, FrameError):
            data = self._ours.recv(_READ_BYTES)
            if data:
                return self._assembler.feed(data)
        self._poll.unregister(self._fd)
        self.open = False
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        return []
