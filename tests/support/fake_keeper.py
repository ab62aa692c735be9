"""A keeper without ranks: speaks the real frames over a real Unix socket, and answers as the test tells it to."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.core.frames import NO_ID, Decoder, Frame, Kind, encode_head
from tests.support.wait import wait_until

Answer = Callable[[Frame], list[Frame]]


def echo(frame: Frame) -> list[Frame]:
    """Succeeds with the arguments as the result."""
    body = read(frame)
    return [Frame(Kind.RESULT, frame.id, {"busy_ms": 1, "released": slots(frame)}, body)]


def hold(frame: Frame) -> list[Frame]:
    """Leaves the call running."""
    return [Frame(Kind.STARTED, frame.id)]


def keep(_frame: Frame) -> list[Frame]:
    """Begins nothing, as a keeper does whose gang is ending."""
    return []


def slots(frame: Frame) -> list[int]:
    return [int(f["slot"]) for f in frame.meta.get("fds", [])]


def read(frame: Frame) -> bytes:
    """Returns a frame's body, from memory too, and closes what it held."""
    if not frame.fds:
        return bytes(frame.body)
    data = b"".join(os.pread(fd, int(m["size"]), 0) for fd, m in zip(frame.fds, frame.meta["fds"], strict=True))
    for fd in frame.fds:
        os.close(fd)
    frame.fds = []
    return data


class FakeKeeper:
    """Listens at once. ``answer`` decides what a CALL brings; everything received is kept in ``received``.

    A ``silent`` one never says its state.
    """

    def __init__(
        self, path: Path, *, answer: Answer = echo, state: dict[str, Any] | None = None, silent: bool = False
    ) -> None:
        self.path = path
        self.answer = answer
        self.silent = silent
        self.state: dict[str, Any] = {"gang": "g", "fence": 1, "pids": [1], "phase": "ready", "running": ""}
        self.state |= state or {}
        self.unacknowledged: dict[bytes, Frame] = {}
        self.received: list[Frame] = []
        self.bodies: dict[bytes, bytes] = {}
        self._lock = threading.Lock()
        self._agent: socket.socket | None = None
        self._attached = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def say(self, frame: Frame) -> None:
        """Sends one frame to the agent; outcomes are kept until it acknowledges them."""
        assert self._attached.wait(5), "no agent came"
        with self._lock:
            if frame.kind in (Kind.RESULT, Kind.FAILURE):
                self.unacknowledged[frame.id] = frame
            if self._agent is not None:
                with contextlib.suppress(OSError):
                    self._send(self._agent, frame)

    def finish(self, call: bytes, body: bytes = b"", **meta: Any) -> None:
        self.say(Frame(Kind.RESULT, call, {"busy_ms": 1, **meta}, body))

    def fail(self, call: bytes, *, outcome: str = "failed", **error: Any) -> None:
        meta = {"outcome": outcome, "error": {"cause": "user_exception", "message": "no", **error}, "busy_ms": 1}
        self.say(Frame(Kind.FAILURE, call, meta))

    def end(self, *, error: dict[str, Any] | None = None, clean: bool = True) -> None:
        meta = {"clean": clean, "error": error, "counters": {}, "deaths": []}
        self.say(Frame(Kind.ENDED, NO_ID, meta))

    def kinds(self) -> list[Kind]:
        return [f.kind for f in self.received]

    def calls(self) -> list[bytes]:
        """Returns the ids of the calls that were handed over, in order."""
        return [f.id for f in self.received if f.kind is Kind.CALL]

    def of_kind(self, kind: Kind) -> list[Frame]:
        return [f for f in self.received if f.kind is kind]

    def wait_for(self, kind: Kind, count: int = 1) -> list[Frame]:
        """Returns the frames of a kind once there are ``count`` of them."""
        wait_until(lambda: len(self.of_kind(kind)) >= count, f"{count} {kind.name} at the keeper")
        return self.of_kind(kind)

    def die(self) -> None:
        """Closes everything without a word, as a killed keeper does."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            if self._agent is not None:
                with contextlib.suppress(OSError):
                    self._agent.shutdown(socket.SHUT_RDWR)
                self._agent.close()
                self._agent = None
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        decoder = Decoder()
        with contextlib.suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(sock, 1 << 20, 16)
                if not data:
                    return
                decoder.feed(data)
                decoder.feed_fds(fds)
                for frame in decoder.frames():
                    self._take(sock, frame)

    def _take(self, sock: socket.socket, frame: Frame) -> None:
        if frame.kind is Kind.ATTACH:
            with self._lock:
                self._agent = sock
                self._attached.set()
                if not self.silent:
                    self._send(sock, Frame(Kind.STATE, NO_ID, self.state))
                for outcome in self.unacknowledged.values():
                    self._send(sock, outcome)
        elif frame.kind is Kind.ACK:
            self.unacknowledged.pop(frame.id, None)
        if frame.kind is Kind.CALL:
            self.bodies[frame.id] = read(Frame(frame.kind, frame.id, frame.meta, frame.body, fds=list(frame.fds)))
            answers = self.answer(Frame(frame.kind, frame.id, frame.meta, self.bodies[frame.id]))
        else:
            answers = []
        self.received.append(frame)
        for answer in answers:
            self.say(answer)

    def _send(self, sock: socket.socket, frame: Frame) -> None:
        parts = [encode_head(frame), bytes(frame.body)]
        if frame.fds:
            socket.send_fds(sock, parts, frame.fds)
        else:
            sock.sendall(b"".join(parts))
