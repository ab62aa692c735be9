"""One Unix socket of a keeper, seen as frames. It never blocks: what the kernel does not take at once waits here.

Only sockets between processes of this machine: descriptors travel beside the frames. It decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Sequence

from phalanx.core.frames import CHUNK_BYTES, MORE, Decoder, Frame, FrameError, Kind, encode_head

READ_BYTES = 64 * 1024
MAX_FDS = 16
ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FDS * 4)

Part = bytes | bytearray | memoryview


class ChannelClosedError(ConnectionError):
    """The other side is gone, or sent bytes that are not frames."""


class Assembler:
    """Bytes and descriptors in, whole frames out: bodies in several chunks are put together."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._partial: dict[tuple[bytes, Kind], bytearray] = {}

    def feed(self, data: bytes, fds: list[int]) -> list[Frame]:
        """Returns the frames that are now complete. Raises FrameError."""
        if fds:
            self._decoder.feed_fds(fds)
        self._decoder.feed(data)
        frames = self._decoder.frames()
        if not self._partial:
            for frame in frames:
                if frame.flags:
                    break
            else:
                return frames
        return [whole for f in frames if (whole := self._whole(f)) is not None]

    def close(self) -> None:
        """Closes descriptors that no frame has claimed."""
        close_fds(self._decoder.take_fds())

    def _whole(self, frame: Frame) -> Frame | None:
        key = (frame.id, frame.kind)
        if frame.more:
            self._partial.setdefault(key, bytearray()).extend(frame.body)
            return None
        begun = self._partial.pop(key, None)
        if begun is not None:
            begun.extend(frame.body)
            frame.body = bytes(begun)
        return frame


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
        if len(frame.body) <= CHUNK_BYTES:
            self._write(frame)
            return
        for piece in chunks(frame):
            self._write(piece)

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
            self._assembler.close()
            self.sock.close()

    def _write(self, frame: Frame) -> None:
        head = encode_head(frame)
        parts: list[Part] = [head, frame.body]
        sent = 0
        if not self._out:
            try:
                sent = _send_parts(self.sock, parts, frame.fds)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
            if sent == len(head) + len(frame.body):
                return
        self._queue_rest(parts, sent, frame.fds)

    def _queue_rest(self, parts: Sequence[Part], sent: int, fds: list[int]) -> None:
        held = [os.dup(fd) for fd in fds] if sent == 0 and fds else []
        for part in parts:
            if sent < len(part):
                self._out.append((memoryview(part)[sent:], held))
                held = []
            sent = max(0, sent - len(part))

    def _drop_queue(self) -> None:
        for _, fds in self._out:
            close_fds(fds)
        self._out.clear()


def receive_some(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Returns bytes and the descriptors that came with them."""
    data, ancillary, _, _ = sock.recvmsg(READ_BYTES, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    if not ancillary:
        return data, []
    fds: list[int] = []
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += memoryview(value[: len(value) - len(value) % 4]).cast("i").tolist()
    return data, fds


def chunks(frame: Frame) -> list[Frame]:
    """Splits a body above CHUNK_BYTES; meta and descriptors ride on the last piece."""
    if len(frame.body) <= CHUNK_BYTES:
        return [frame]
    body = memoryview(frame.body)
    starts = range(0, len(body), CHUNK_BYTES)
    pieces = [Frame(frame.kind, frame.id, {}, body[at : at + CHUNK_BYTES], MORE) for at in starts]
    pieces[-1] = Frame(frame.kind, frame.id, frame.meta, pieces[-1].body, 0, frame.fds)
    return pieces


def close_fds(fds: Sequence[int]) -> None:
    """Closes each descriptor, gone or not."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _send_parts(sock: socket.socket, parts: Sequence[Part], fds: list[int]) -> int:
    return socket.send_fds(sock, parts, fds) if fds else sock.sendmsg(parts)  # pyright: ignore[reportArgumentType]
