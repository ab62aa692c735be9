"""One socket of the data plane, seen as frames in and frames out. It decides nothing about what they mean.

Three kinds share it: clients (Unix or TLS), keepers (Unix), peer agents (TLS). Outgoing bytes are sent at once where
the kernel takes them and queue otherwise; a peer that does not read for so long that the queue passes its limit is
closed, and nobody else waits for it. Bodies in several chunks are put together here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable

from phalanx.core.frames import Assembler, Frame, FrameError, chunks, encode_head
from phalanx.core.sockets import ANCILLARY_BYTES, CLOEXEC, Part, close_fds, fds_of, unsent
from phalanx_agent.dataplane.loop import READ, WRITE, Loop

log = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024
"""Larger buffers come from mmap, whose page faults cost more than a short read."""
_MAX_LAZY_BYTES = 2048
MAX_QUEUED_BYTES = 256 << 20
MAX_BODY_BYTES = 2 << 30

OnFrame = Callable[["Connection", Frame], None]
OnClose = Callable[["Connection", str], None]


class Connection:
    """Owned by the data plane's thread. After ``close`` nothing more is delivered or sent."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        *,
        on_frame: OnFrame,
        on_close: OnClose,
        name: str = "",
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        sock.setblocking(False)
        self.name = name
        self.open = True
        self.passes_fds = sock.family == socket.AF_UNIX
        self.queued_bytes = 0
        self.on_frame = on_frame
        self.on_close = on_close
        self.on_drained: Callable[[], None] | None = None
        self.on_secured: Callable[[Connection], None] | None = None
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._max_queued_bytes = max_queued_bytes
        self._assembler = Assembler(max_body_bytes=MAX_BODY_BYTES)
        self._out: deque[tuple[memoryview, list[int]]] = deque()
        self._lazy = bytearray()
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._handshaking = self._tls is not None
        self._watching = READ | (WRITE if self._handshaking else 0)
        loop.register(self._fd, self._ready, self._watching)

    @property
    def peer_pid(self) -> int:
        """The process at the other end of a Unix socket; 0 where the kernel does not say."""
        if not self.passes_fds:
            return 0
        data = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(data[:4], "little", signed=True)

    def send(self, frame: Frame) -> None:
        """Sends or queues ``frame``; its descriptors are duplicated where they must wait."""
        if not self.open:
            return
        for piece in chunks(frame):
            self._write([encode_head(piece), piece.body], piece.fds)
            if not self.open:
                return

    def send_encoded(self, head: bytes, body: Part) -> None:
        """Sends a frame whose header and meta were written before; the body is at most one chunk."""
        if self.open:
            self._write([head, body], [])

    def send_lazily(self, head: bytes) -> None:
        """Sends an encoded frame that has no hurry together with the next one, or with ``flush_lazy``."""
        if self.open:
            self._lazy += head
            if len(self._lazy) > _MAX_LAZY_BYTES:
                self.flush_lazy()

    def flush_lazy(self) -> None:
        """Sends what was left lying."""
        if self._lazy and self.open:
            self._write([], [])

    def close(self, reason: str = "") -> None:
        """Closes at once; ``on_close`` is told once."""
        if not self.open:
            return
        self.open = False
        self._loop.unregister(self._fd)
        for _, fds in self._out:
            close_fds(fds)
        self._out.clear()
        close_fds(self._assembler.take_fds())
        with contextlib.suppress(OSError):
            self._sock.close()
        self.on_close(self, reason)

    def _write(self, parts: list[Part], fds: list[int]) -> None:
        if self._lazy:
            parts = [*parts, bytes(self._lazy)]
            self._lazy.clear()
        if self._tls is not None:
            parts = [b"".join(parts)]  # TLS must be offered the very same bytes again when it could not send them
        if self._out or self._handshaking:
            self._queue(parts, fds)
            return
        try:
            sent = self._send_some(parts, fds)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._queue(parts, fds)
            return
        except OSError as e:
            self.close(str(e))
            return
        if sent != sum(map(len, parts)):
            self._queue(unsent(parts, sent), [])

    def _send_some(self, parts: list[Part], fds: list[int]) -> int:
        if self._tls is not None:
            return self._tls.send(parts[0])
        if fds:
            return socket.send_fds(self._sock, parts, fds)
        return self._sock.sendmsg(parts)

    def _queue(self, parts: list[Part], fds: list[int]) -> None:
        held = [os.dup(fd) for fd in fds]
        for part in parts:
            if len(part):
                self._out.append((memoryview(part), held))
                self.queued_bytes += len(part)
                held = []
        close_fds(held)
        if self.queued_bytes > self._max_queued_bytes:
            self.close(f"the other side does not read: {self.queued_bytes} bytes are waiting")
        else:
            self._watch(READ | WRITE)

    def _watch(self, events: int) -> None:
        if events != self._watching:
            self._watching = events
            self._loop.modify(self._fd, events)

    def _ready(self, events: int) -> None:
        if self._handshaking and not self._shake_hands():
            return
        if events & WRITE:
            self._flush()
        if self.open and events & ~WRITE:
            self._read()

    def _shake_hands(self) -> bool:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(READ)
            return False
        except ssl.SSLWantWriteError:
            self._watch(READ | WRITE)
            return False
        except (OSError, ValueError) as e:
            self.close(f"TLS handshake failed: {e}")
            return False
        self._handshaking = False
        if self.on_secured is not None:
            self.on_secured(self)
        if not self.open:
            return False
        self._watch(READ | WRITE if self._out else READ)
        self._flush()
        if self.open:
            self._read()
        return False

    def certificate_der(self) -> bytes:
        """Returns the other side's certificate; empty before the handshake and on Unix sockets."""
        return (self._tls.getpeercert(binary_form=True) if self._tls is not None else None) or b""

    def _flush(self) -> None:
        out = self._out
        while out:
            view, fds = out[0]
            try:
                sent = self._send_some([view], fds)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as e:
                self.close(str(e))
                return
            self.queued_bytes -= sent
            close_fds(fds)
            if sent < len(view):
                out[0] = (view[sent:], [])
            else:
                out.popleft()
        self._watch(READ)
        if self.on_drained is not None:
            self.on_drained()

    def _read(self) -> None:
        try:
            data, fds = self._receive()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as e:
            self.close(str(e))
            return
        if not data:
            self.close("closed by the other side")
            return
        try:
            for frame in self._assembler.feed(data, fds):
                self._deliver(frame)
        except (KeyError, TypeError, ValueError) as e:
            log.warning("connection closed", exc_info=not isinstance(e, FrameError), extra={"peer": self.name})
            self.close(f"not understood: {type(e).__name__}: {e}")

    def _receive(self) -> tuple[bytes, list[int]]:
        if self._tls is not None:
            data = self._tls.recv(_READ_BYTES)
            while data and self._tls.pending():
                data += self._tls.recv(self._tls.pending())
            return data, []
        if not self.passes_fds:
            return self._sock.recv(_READ_BYTES), []
        data, ancillary, _flags, _address = self._sock.recvmsg(_READ_BYTES, ANCILLARY_BYTES, CLOEXEC)
        return data, fds_of(ancillary) if ancillary else []

    def _deliver(self, frame: Frame) -> None:
        if self.open:
            self.on_frame(self, frame)
        else:
            close_fds(frame.fds)
