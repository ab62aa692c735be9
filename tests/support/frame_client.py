"""A client of the data plane that sends and receives single frames, over the Unix socket or TLS."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from phalanx.core.frames import CHUNK_BYTES, MORE, Decoder, Frame, Kind, encode_head
from phalanx.core.tickets import Ticket, sign

TIMEOUT_S = 10.0


class FrameClient:
    """Blocking. ``expect`` fails the test when another frame comes, or none within ten seconds."""

    def __init__(self, address: Path | tuple[str, int]) -> None:
        if isinstance(address, Path):
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._sock.settimeout(TIMEOUT_S)
            self._sock.connect(str(address))
            self._unix = True
        else:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self._sock = context.wrap_socket(socket.create_connection(address, timeout=TIMEOUT_S))
            self._unix = False
        self.lane: socket.socket | None = None
        self.welcome = Frame(Kind.REFUSED)
        """The answer to HELLO."""
        self._decoder = Decoder()
        self._frames: list[Frame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()
        if self.lane is not None:
            self.lane.close()

    def send(self, kind: Kind, raw_id: bytes = bytes(16), body: bytes = b"", **meta: Any) -> None:
        """Sends one frame, in chunks where it is long."""
        for at in range(0, max(1, len(body)), CHUNK_BYTES):
            last = at + CHUNK_BYTES >= len(body)
            chunk = body[at : at + CHUNK_BYTES]
            frame = Frame(kind, raw_id, meta if last else {}, chunk, 0 if last else MORE)
            self._sock.sendall(encode_head(frame) + chunk)

    def send_memory(self, kind: Kind, call: bytes, data: bytes, *, slot: int, **meta: Any) -> None:
        """Sends one frame whose body travels as memory."""
        fd = os.memfd_create("test")
        os.write(fd, data)
        frame = Frame(kind, call, {**meta, "fds": [{"size": len(data), "slot": slot}]}, fds=[fd])
        socket.send_fds(self._sock, [encode_head(frame)], [fd])
        os.close(fd)

    def send_raw(self, data: bytes) -> None:
        self._sock.sendall(data)

    def receive(self) -> Frame:
        """Returns the next frame, put together from its chunks. Raises ConnectionError at the end."""
        body = bytearray()
        while True:
            frame = self._one()
            body += frame.body
            if not frame.more:
                frame.body = bytes(body)
                return frame

    def expect(self, kind: Kind, call: bytes | None = None) -> Frame:
        frame = self.receive()
        assert frame.kind is kind, f"expected {kind.name}, got {frame.kind.name} {frame.meta}"
        assert call is None or frame.id == call
        return frame

    def is_closed(self) -> bool:
        """Says whether the other side has closed, after everything that was sent was read."""
        try:
            while True:
                self.receive()
        except OSError:
            return True

    def hello(self, key: bytes, *, lane: bool = False, **ticket: Any) -> Frame:
        """Says HELLO with a ticket signed by ``key``, and brings a lane along; returns the answer."""
        frame = Frame(Kind.HELLO, meta={"ticket": sign(make_ticket(**ticket), key), "client": "test"})
        if lane:
            self.lane, theirs = socket.socketpair()
            self.lane.settimeout(TIMEOUT_S)
            frame.fds = [theirs.fileno()]
            socket.send_fds(self._sock, [encode_head(frame)], frame.fds)
            theirs.close()
        else:
            self._sock.sendall(encode_head(frame))
        self.welcome = self.receive()
        return self.welcome

    def _one(self) -> Frame:
        while not self._frames:
            if self._unix:
                data, fds, _, _ = socket.recv_fds(self._sock, 1 << 20, 16)
                self._decoder.feed_fds(fds)
            else:
                data = self._sock.recv(1 << 20)
            if not data:
                raise ConnectionError("closed")
            self._decoder.feed(data)
            self._frames += self._decoder.frames()
        return self._frames.pop(0)


def make_ticket(**changes: Any) -> Ticket:
    """Returns a ticket of user ann to calls on node n0, good for ever, with some fields changed."""
    return replace(Ticket(kind="call", node_id="n0", user="ann", expires_wall_ms=1 << 60), **changes)
