"""Byte streams to an agent: a Unix socket that carries descriptors, or TLS to one pinned certificate.

Any thread may send; one thread at a time receives. Knows nothing of frames' meaning.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from phalanx.core.errors import ConnectionFailedError
from phalanx.core.sockets import ANCILLARY_BYTES, CLOEXEC, Part, fds_of, unsent

CONNECT_TIMEOUT_S = 5.0
_READ_BYTES = 256 * 1024
_MAX_PARTS = 64
_NOTHING_CAME = "nothing came in time"


class Stream(Protocol):
    """``send`` is whole or raises OSError. ``receive`` returns what came, good until the next one; empty at the end. It
    raises OSError, of that TimeoutError where nothing came ``within_s``; without it, it waits for ever."""

    passes_fds: bool

    def fileno(self) -> int: ...

    def send(self, parts: Sequence[Part], fds: Sequence[int] = ()) -> None: ...

    def receive(self, within_s: float = -1) -> tuple[memoryview, list[int]]: ...

    def wait_readable(self, timeout_s: float) -> bool: ...

    def close(self) -> None: ...


class UnixStream:
    """Blocking; the kernel keeps the two directions apart, so sender and receiver need no lock between them."""

    passes_fds = True

    def __init__(self, path: str) -> None:
        """Connects. Raises OSError."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._view = memoryview(bytearray(_READ_BYTES))
        self._views = [self._view]
        try:
            self._sock.settimeout(CONNECT_TIMEOUT_S)
            self._sock.connect(path)
            self._sock.settimeout(None)
        except OSError:
            self._sock.close()
            raise

    def send(self, parts: Sequence[Part], fds: Sequence[int] = ()) -> None:
        while parts:
            batch = parts[:_MAX_PARTS]
            sent = socket.send_fds(self._sock, batch, list(fds)) if fds else self._sock.sendmsg(batch)
            fds = ()
            parts = unsent(parts, sent)

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self, within_s: float = -1) -> tuple[memoryview, list[int]]:
        if within_s >= 0 and not self.wait_readable(within_s):
            raise TimeoutError(_NOTHING_CAME)
        size, ancillary, _flags, _address = self._sock.recvmsg_into(self._views, ANCILLARY_BYTES, CLOEXEC)
        return self._view[:size], fds_of(ancillary) if ancillary else []

    def wait_readable(self, timeout_s: float) -> bool:
        return _poll(self._sock, select.POLLIN, timeout_s)

    def close(self) -> None:
        _close(self._sock)


class TlsStream:
    """One lock around both directions: OpenSSL allows one thread at a time in a session."""

    passes_fds = False

    def __init__(self, address: str, fingerprint: str) -> None:
        """Connects and compares the certificate's SHA-256 with ``fingerprint``.

        Raises OSError, or ConnectionFailedError when another certificate answers.
        """
        self._lock = threading.Lock()
        self._view = memoryview(bytearray(_READ_BYTES))
        host, _, port = address.rpartition(":")
        raw = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._sock = _unverified_context().wrap_socket(raw)
        except OSError:
            raw.close()
            raise
        seen = hashlib.sha256(self._sock.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(seen, fingerprint.lower().removeprefix("sha256:").replace(":", "")):
            self._sock.close()
            raise ConnectionFailedError(f"the agent at {address} shows another certificate than its ticket names")
        self._sock.setblocking(False)

    def send(self, parts: Sequence[Part], fds: Sequence[int] = ()) -> None:
        assert not fds
        todo = memoryview(b"".join(parts))
        while todo:
            try:
                with self._lock:
                    sent = self._sock.send(todo)
                todo = todo[sent:]
            except ssl.SSLWantWriteError:
                _poll(self._sock, select.POLLOUT, -1)
            except ssl.SSLWantReadError:
                _poll(self._sock, select.POLLIN, -1)

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self, within_s: float = -1) -> tuple[memoryview, list[int]]:
        """What makes the socket readable may be TLS's own, as the tickets after a handshake, and no data."""
        until = time.monotonic() + within_s
        while True:
            try:
                with self._lock:
                    return self._view[: self._sock.recv_into(self._view)], []
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            if not _poll(self._sock, event, max(0.0, until - time.monotonic()) if within_s >= 0 else -1):
                raise TimeoutError(_NOTHING_CAME)

    def wait_readable(self, timeout_s: float) -> bool:
        """Says whether `receive` is worth a try: what came may be no data."""
        with self._lock:
            if self._sock.pending():
                return True
        return _poll(self._sock, select.POLLIN, timeout_s)

    def close(self) -> None:
        _close(self._sock)


def open_stream(*, unix_path: str, data_address: str, fingerprint: str) -> Stream:
    """Returns a Unix stream where the agent is on this machine, TLS otherwise. Raises ConnectionFailedError."""
    problem = "it has no address"
    if unix_path and os.access(unix_path, os.R_OK | os.W_OK):
        try:
            return UnixStream(unix_path)
        except OSError as e:
            problem = f"{unix_path}: {e}"
    if data_address:
        try:
            return TlsStream(data_address, fingerprint)
        except OSError as e:
            problem = f"{data_address}: {e}"
    raise ConnectionFailedError(f"the gang's agent is not reachable: {problem}")


def _unverified_context() -> ssl.SSLContext:
    """The fingerprint from the ticket stands for the certificate chain."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _poll(sock: socket.socket, event: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(sock, event)
    return bool(poller.poll(-1 if timeout_s < 0 else timeout_s * 1000))


def _close(sock: socket.socket) -> None:
    """Wakes a thread that is blocked in ``receive`` too."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        sock.close()
