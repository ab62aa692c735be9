"""The two ways to a gang's keepers: the local one over its Unix socket, and another node's over TLS through its agent.

A link moves frames, counts how long its ranks were busy, and comes back by itself when a peer's connection ends. What
the frames mean is the gang's business.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from phalanx.core.frames import HEADER_BYTES, NO_ID, Frame, Kind, encode_head
from phalanx.core.ids import RAW_BYTES
from phalanx.core.sockets import close_fds
from phalanx_agent.dataplane.bodies import MEMFD_FROM_BYTES, as_memory, inline
from phalanx_agent.dataplane.connection import Connection
from phalanx_agent.dataplane.facts import PeerSpec
from phalanx_agent.dataplane.loop import WRITE, Loop, now_ns
from phalanx_agent.dataplane.peer_clock import PeerClock

log = logging.getLogger(__name__)

_HEAD_BEFORE_SIZE = 8
_ACK_BEFORE_ID = encode_head(Frame(Kind.ACK))[:-RAW_BYTES]
_KEPT = (Kind.CALL, Kind.CREDIT, Kind.CANCEL, Kind.STOP, Kind.PAUSE)
"""Of these the last of each id is said again to a peer that was not there."""
_RETRY_MS = (50, 100, 200, 400, 800, 1500)


class Link(Protocol):
    """One node's part of a gang, as its lead sees it."""

    node_id: str

    @property
    def up(self) -> bool: ...

    def send(self, frame: Frame) -> None: ...

    def close(self) -> None: ...


class KeeperLink:
    """The keeper of this node. Its end of file is final: a keeper lives exactly as long as its socket."""

    def __init__(
        self,
        loop: Loop,
        path: Path,
        *,
        node_id: str,
        epoch: int,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Connects and sends ATTACH. Raises OSError when no keeper listens at ``path``."""
        self.node_id = node_id
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._closing = False
        self._in_flight: set[bytes] = set()
        self._busy_since_ns = 0
        self._busy_ns = 0
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.connect(str(path))
        except OSError:
            sock.close()
            raise
        self._connection = Connection(loop, sock, on_frame=self._frame, on_close=self._closed, name=f"keeper {path}")
        self.pid = self._connection.peer_pid
        self._connection.send(Frame(Kind.ATTACH, meta={"epoch": epoch}))

    @property
    def up(self) -> bool:
        return self._connection.open

    @property
    def busy_ms(self) -> int:
        """How long calls were at the ranks since this link began."""
        running = now_ns() - self._busy_since_ns if self._in_flight else 0
        return (self._busy_ns + running) // 1_000_000

    def send(self, frame: Frame) -> None:
        if frame.kind is Kind.CALL:
            self.note_running(frame.id)
            self._send_call(frame)
        elif frame.kind is Kind.ACK and frame.id != NO_ID:
            self._connection.send_lazily(_ACK_BEFORE_ID + frame.id)
        else:
            self._connection.send(frame)

    def _send_call(self, frame: Frame) -> None:
        if not frame.fds and len(frame.body) < MEMFD_FROM_BYTES:
            before, meta = _call_head(tuple(frame.meta.items()), frame.flags)
            head = before + len(frame.body).to_bytes(8, "big") + frame.id + meta
            self._connection.send_encoded(head, frame.body)
            return
        moved = as_memory(frame)
        self._connection.send(moved)
        if moved is not frame:
            close_fds(moved.fds)

    def flush(self) -> None:
        """Sends acknowledgements that wait for company."""
        self._connection.flush_lazy()

    def note_running(self, call: bytes, *, since_ns: int = 0) -> None:
        """Counts time as busy until the call's outcome comes. ``since_ns``: it runs already."""
        if not self._in_flight:
            self._busy_since_ns = since_ns or now_ns()
        self._in_flight.add(call)

    def close(self) -> None:
        """Ends the connection; the keeper and its ranks go on."""
        self._closing = True
        self._connection.flush_lazy()
        self._connection.close("the agent lets go")

    def _frame(self, _connection: Connection, frame: Frame) -> None:
        if frame.kind in (Kind.RESULT, Kind.FAILURE):
            self._note_done(frame.id)
            if not self._in_flight and (frame.lane or "lane" in frame.meta):
                self._busy_ns += int(frame.meta.get("busy_ms") or 0) * 1_000_000
        self._on_frame(frame)

    def _note_done(self, call: bytes) -> None:
        if call in self._in_flight:
            self._in_flight.discard(call)
            if not self._in_flight:
                self._busy_ns += now_ns() - self._busy_since_ns

    def _closed(self, _connection: Connection, reason: str) -> None:
        for call in tuple(self._in_flight):
            self._note_done(call)
        if not self._closing:
            self._on_lost(reason)


@lru_cache(maxsize=64)
def _call_head(meta: tuple[tuple[str, int], ...], flags: int) -> tuple[bytes, bytes]:
    """Returns the part of a CALL's head before the body's size, and its meta: the same for call after call."""
    whole = encode_head(Frame(Kind.CALL, meta=dict(meta), flags=flags))
    return whole[:_HEAD_BEFORE_SIZE], whole[HEADER_BYTES:]


class PeerLink:
    """Another node's keeper, through that node's agent. It connects again until it is closed."""

    def __init__(
        self,
        loop: Loop,
        peer: PeerSpec,
        *,
        gang_id: str,
        fence: int,
        on_frame: Callable[[Frame], None],
    ) -> None:
        self.node_id = peer.node_id
        self._loop = loop
        self._peer = peer
        self._hello = Frame(Kind.HELLO, meta={"ticket": peer.ticket, "gang": gang_id, "fence": fence})
        self._on_frame = on_frame
        self._closed_for_good = False
        self._failures = 0
        self._connection: Connection | None = None
        self._waiting: dict[tuple[Kind, bytes], Frame] = {}
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE  # the pinned fingerprint is compared before anything is sent
        self._welcomed = False
        self._clock = PeerClock()
        self._connect()

    @property
    def up(self) -> bool:
        return self._welcomed

    def send(self, frame: Frame) -> None:
        """Sends, or keeps until the connection is back: the other side takes frames repeatedly without harm."""
        frame = inline(frame)
        if frame.kind in _KEPT:
            self._waiting[(frame.kind, frame.id)] = frame
        if self._welcomed and self._connection is not None:
            self._connection.send(frame)

    def close(self) -> None:
        self._closed_for_good = True
        if self._connection is not None:
            self._connection.close("the gang is gone")

    def _connect(self) -> None:
        if self._closed_for_good:
            return
        host, _, port = self._peer.data_address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.connect((host.strip("[]"), int(port)))
        except BlockingIOError:
            pass
        except OSError as e:
            sock.close()
            self._again(str(e))
            return
        self._loop.register(sock.fileno(), lambda _events: self._connected(sock), WRITE)

    def _connected(self, sock: socket.socket) -> None:
        self._loop.unregister(sock.fileno())
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error or self._closed_for_good:
            sock.close()
            self._again(f"errno {error}")
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            tls = self._context.wrap_socket(sock, do_handshake_on_connect=False)
        except OSError as e:
            sock.close()
            self._again(str(e))
            return
        self._connection = Connection(
            self._loop, tls, on_frame=self._frame, on_close=self._closed, name=f"peer {self.node_id}"
        )
        self._connection.on_secured = self._secured

    def _secured(self, connection: Connection) -> None:
        actual = hashlib.sha256(connection.certificate_der()).hexdigest()
        if self._peer.fingerprint and actual != self._peer.fingerprint.lower().replace(":", ""):
            connection.close(f"its certificate {actual[:16]}… is not the pinned one")
            return
        connection.send(self._hello)

    def _frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind is Kind.WELCOME:
            self._welcomed = True
            self._failures = 0
            connection.send(self._clock.question())
            for waiting in self._waiting.values():
                connection.send(waiting)
            return
        if frame.kind is Kind.REFUSED:
            connection.close(str(frame.meta.get("error", "refused")))
            return
        if frame.kind is Kind.PONG:
            self._clock.answered(frame)
            return
        if frame.meta.get("entered"):
            connection.send(self._clock.question())
        if frame.meta.get("marks"):
            frame.meta["ahead_us"] = self._clock.ahead_us
        if frame.kind in (Kind.RESULT, Kind.FAILURE):
            self._waiting.pop((Kind.CALL, frame.id), None)
            self._waiting.pop((Kind.CREDIT, frame.id), None)
            self._waiting.pop((Kind.CANCEL, frame.id), None)
        self._on_frame(frame)

    def _closed(self, _connection: Connection, reason: str) -> None:
        self._welcomed = False
        self._connection = None
        self._again(reason)

    def _again(self, reason: str) -> None:
        if self._closed_for_good:
            return
        delay = _RETRY_MS[min(self._failures, len(_RETRY_MS) - 1)]
        self._failures += 1
        log.info("peer connection ended", extra={"node": self.node_id, "reason": reason, "retry_ms": delay})
        self._loop.later(delay, self._connect)
