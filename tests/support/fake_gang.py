"""A gang's lead agent as the SDK meets it: real sockets, real frames, and behaviour that a test chooses."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from phalanx.core.frames import MORE, Decoder, Frame, Kind, encode_head
from phalanx.core.sockets import close_fds
from phalanx.core.views import GangAddress

Answer = Callable[["FakeGang", Frame], list[Frame]]


class FakeGang:
    """Serves any number of clients, a thread each. ``answer`` maps a whole CALL to the frames sent back.

    With ``lanes`` the last client's lane is kept open in ``lane``; a test may send over it. ``straight``: frames that
    come there are kept in ``seen_straight``, and calls are answered there.
    """

    def __init__(
        self, folder: Path, answer: Answer, *, gang_id: str = "g-1", lanes: bool = False, straight: bool = False
    ) -> None:
        self.address = GangAddress(gang_id=gang_id, unix_path=str(folder / "agent.sock"), ticket="good")
        self.seen: list[Frame] = []
        self.asked: dict[bytes, Frame] = {}
        self.asked_in_turn: dict[bytes, list[Frame]] = {}
        self.connections = 0
        self.lane: socket.socket | None = None
        self.seen_straight: list[Frame] = []
        self._keeps_lanes = lanes or straight
        self._straight = straight
        self._answer = answer
        self._socks: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address.unix_path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def kinds(self) -> list[Kind]:
        return [frame.kind for frame in self.seen]

    def drop_clients(self) -> None:
        """Ends every connection, as a dying agent would."""
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._socks.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_clients()
        self.end_lane()

    def end_lane(self) -> None:
        """Ends the last client's lane, as a keeper does that ends or gets another agent."""
        if self.lane is not None:
            with contextlib.suppress(OSError):
                self.lane.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._socks.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        decoder = Decoder()
        partial = bytearray()
        with sock, contextlib.suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(sock, 1 << 18, 16)
                if not data:
                    return
                decoder.feed(data)
                decoder.feed_fds(fds)
                for frame in decoder.frames():
                    if frame.kind is Kind.CALL and (frame.flags & MORE or partial):
                        partial += frame.body
                        if frame.flags & MORE:
                            continue
                        frame.body, partial = bytes(partial), bytearray()
                    self._handle(sock, frame)

    def _handle(self, sock: socket.socket, frame: Frame) -> None:
        self.seen.append(frame)
        if frame.kind is Kind.HELLO:
            if frame.fds and self._keeps_lanes:
                self.lane = socket.socket(fileno=frame.fds.pop())
            close_fds(frame.fds)
            good = frame.meta["ticket"] == self.address.ticket
            reply = Frame(Kind.WELCOME, meta={"gang": self.address.gang_id, "window": 8})
            if self._straight and self.lane is not None:
                reply.meta["straight"] = True
                threading.Thread(target=self._serve_lane, args=(self.lane,), daemon=True).start()
            send(sock, reply if good else Frame(Kind.REFUSED, meta={"error": "a wrong ticket"}))
        elif frame.kind is Kind.ASK:
            in_turn = self.asked_in_turn.get(frame.id)
            send(sock, in_turn.pop(0) if in_turn else self.asked.get(frame.id, Frame(Kind.UNKNOWN, frame.id)))
        elif frame.kind is Kind.CALL:
            send(sock, *self._answer(self, frame))
            for fd in frame.fds:
                os.close(fd)

    def _serve_lane(self, lane: socket.socket) -> None:
        decoder = Decoder()
        with contextlib.suppress(OSError):
            while data := lane.recv(1 << 18):
                decoder.feed(data)
                for frame in decoder.frames():
                    self.seen_straight.append(frame)
                    if frame.kind is Kind.CALL:
                        send(lane, *self._answer(self, frame))


def send(sock: socket.socket, *frames: Frame) -> None:
    """Sends frames whole, together, and closes their descriptors."""
    parts = [part for frame in frames for part in (encode_head(frame), frame.body)]
    fds = [fd for frame in frames for fd in frame.fds]
    sent = socket.send_fds(sock, parts, fds) if fds else sock.sendmsg(parts)
    sock.sendall(b"".join(parts)[sent:])
    for fd in fds:
        os.close(fd)


def body_of(frame: Frame) -> bytes:
    """Returns a CALL's arguments, wherever they are."""
    if not frame.fds:
        return bytes(frame.body)
    size = int(frame.meta["fds"][0]["size"])
    return os.pread(frame.fds[0], size, 0)


def echo(_gang: FakeGang, frame: Frame) -> list[Frame]:
    """Sends the first argument back, and releases the client's memory."""
    from phalanx.core.serialization import pack, unpack

    (value, *_), _ = unpack(body_of(frame))
    released = [f["slot"] for f in frame.meta.get("fds") or []]
    return [Frame(Kind.RESULT, frame.id, {"busy_ms": 0, "released": released}, pack(value).tobytes())]
