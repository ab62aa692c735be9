"""One Unix socket of a keeper, seen as frames. It never blocks: what the kernel does not take at once waits here.

Only sockets between processes of this machine: descriptors travel beside the frames. It decides nothing.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence

from phalanx.core.frames import Assembler, Frame, FrameError, chunks, encode_head
from phalanx.core.sockets import ANCILLARY_BYTES, CLOEXEC, Part, close_fds, fds_of, unsent
from phalanx_agent.keeper.loop import WRITE, Loop

READ_BYTES = 64 * 1024


class ChannelClosedError(ConnectionError):
    """The other side is gone, or sent bytes that are not frames."""


class Channel:
    """A non-blocking connection. ``wants_write`` says whether the loop should wait for room."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.open = True
        self._assembler = Assembler()
        self._out: deque[tuple[memoryview, list[int]]] = deque()

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def receive(self) -> list[Frame]:
        """Reads what is there. Raises ChannelClosedError at the end of the stream."""
        try:
            data, fds = receive_some(self.sock)
        except BlockingIOError:
            return []
        except OSError as e:
            raise ChannelClosedError(str(e)) from e
        if not data:
            close_fds(fds)
            raise ChannelClosedError("end of stream")
        try:
            return self._assembler.feed(data, fds)
        except FrameError as e:
            raise ChannelClosedError(str(e)) from e

    def send(self, frame: Frame) -> None:
        """Sends or queues ``frame``; its descriptors stay the caller's. A dead peer is noticed when reading."""
        if not self.open:
            return
        for piece in chunks(frame):
            self._write(piece)

    def send_encoded(self, frames: bytes) -> None:
        """Sends frames that were encoded before, without descriptors, as one write."""
        if self.open and frames:
            self._write_parts([frames], [])

    def flush(self) -> None:
        """Sends what waits, as far as the kernel takes it."""
        while self._out:
            view, fds = self._out[0]
            try:
                sent = _send_parts(self.sock, [view], fds)
            except BlockingIOError:
                return
            except OSError:
                self._drop_queue()
                return
            close_fds(fds)
            if sent < len(view):
                self._out[0] = (view[sent:], [])
                return
            self._out.popleft()

    def close(self) -> None:
        """Closes the socket and every descriptor that waits with it."""
        if self.open:
            self.open = False
            self._drop_queue()
            close_fds(self._assembler.take_fds())
            self.sock.close()

    def _write(self, frame: Frame) -> None:
        self._write_parts([encode_head(frame), frame.body], frame.fds)

    def _write_parts(self, parts: list[Part], fds: list[int]) -> None:
        sent = 0
        if not self._out:
            try:
                sent = _send_parts(self.sock, parts, fds)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
            if sent == sum(map(len, parts)):
                return
        self._queue_rest(parts, sent, fds)

    def _queue_rest(self, parts: Sequence[Part], sent: int, fds: list[int]) -> None:
        held = [os.dup(fd) for fd in fds] if sent == 0 and fds else []
        for part in unsent(parts, sent):
            self._out.append((memoryview(part), held))
            held = []

    def _drop_queue(self) -> None:
        for _, fds in self._out:
            close_fds(fds)
        self._out.clear()


def served(loop: Loop, channel: Channel, events: int) -> list[Frame] | None:
    """Sends what waits where there is room, and returns what came; None: the other side is gone."""
    if events & WRITE:
        channel.flush()
        if not channel.wants_write:
            loop.want_write(channel.fd, False)
    try:
        return channel.receive() if events & ~WRITE else []
    except ChannelClosedError:
        return None


def receive_some(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Returns bytes and the descriptors that came with them."""
    data, ancillary, _, _ = sock.recvmsg(READ_BYTES, ANCILLARY_BYTES, CLOEXEC)
    return data, fds_of(ancillary) if ancillary else []


def _send_parts(sock: socket.socket, parts: Sequence[Part], fds: list[int]) -> int:
    return socket.send_fds(sock, parts, fds) if fds else sock.sendmsg(parts)  # pyright: ignore[reportArgumentType]
