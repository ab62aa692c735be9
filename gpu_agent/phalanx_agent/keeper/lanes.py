"""Straight ways between a keeper and clients of its own machine, for their direct calls.

A client makes a pair of sockets and sends one end along with its HELLO; the agent passes it on. What comes in is a call
that the keeper may take at once, or is passed on to the agent. What fits one write goes out, whole or not at all. The
agent is told all the same: it remains the one that answers for the call, keeps its outcome until it is acknowledged,
and sends what did not fit.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.core.frames import LANE_BITS, Assembler, Frame, FrameError, Kind, encode_head
from phalanx.core.sockets import close_fds
from phalanx_agent.keeper.loop import Loop

LANE_BYTES = 32 * 1024
"""What the kernel takes whole or refuses."""
_READ_BYTES = 64 * 1024
_MAX_BODY_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class Lane:
    """One client's. A call holds on to its lane: another client's of the same number is not taken for it."""

    number: int
    sock: socket.socket | None
    assembler: Assembler = field(default_factory=lambda: Assembler(max_body_bytes=_MAX_BODY_BYTES))

    def encoded(self, outcome: Frame) -> bytes | None:
        """Returns an outcome as it goes over a lane; None where it cannot go there."""
        if self.sock is None or outcome.fds or "released" in outcome.meta:
            return None
        encoded = encode_head(outcome) + outcome.body
        return encoded if len(encoded) <= LANE_BYTES else None

    def send(self, data: bytes) -> bool:
        """Sends encoded outcomes of no more than LANE_BYTES. False where they have not gone, as nobody reads."""
        if self.sock is None:
            return False
        try:
            sent = self.sock.send(data)
        except OSError:
            return False
        if sent < len(data):
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)  # what has gone of it is no frame
            return False
        return True

    def receive(self) -> list[Frame] | None:
        """Returns what came; None at the end, or after bytes that are no frames."""
        if self.sock is None:
            return None
        try:
            data = self.sock.recv(_READ_BYTES)
            return self.assembler.feed(data) if data else None
        except BlockingIOError:
            return []
        except (OSError, FrameError):
            return None


class LaneUser(Protocol):
    """Whom what clients send is for. Without one, everything is passed on."""

    def came(self, lane: Lane, frame: Frame) -> None:
        """A frame of a client."""
        ...

    def lane_ends(self, lane: Lane) -> None:
        """Nothing more goes over it; what is still unread is passed on."""
        ...


class Lanes:
    """The lanes that the present agent has opened. ``tell`` reaches the agent."""

    def __init__(self, loop: Loop, tell: Callable[[Frame], None]) -> None:
        self.user: LaneUser | None = None
        self._loop = loop
        self._tell = tell
        self._open: dict[int, Lane] = {}

    def get(self, number: int) -> Lane | None:
        return self._open.get(number) if number else None

    def change(self, frame: Frame) -> None:
        """Opens the lane that a LANE frame names, with the socket that came along; without one, closes it.

        The agent hears of the end when nothing more can come from there: only then it gives the number away again.
        """
        if not frame.fds:
            self._close(self._open.pop(frame.lane, None))
            self._tell(Frame(Kind.LANE, flags=frame.flags))
            return
        try:
            sock = socket.socket(fileno=frame.fds[0])
        except OSError:
            close_fds(frame.fds)
            return
        close_fds(frame.fds[1:])
        sock.setblocking(False)
        lane = self._open[frame.lane] = Lane(frame.lane, sock)
        self._loop.watch(sock.fileno(), lambda _: self._ready(lane))

    def close_all(self) -> None:
        """Nobody's calls come this way any more; what clients have sent already is passed on."""
        for lane in self._open.values():
            self._close(lane)
        self._open.clear()

    def pass_on(self, lane: Lane, frame: Frame) -> None:
        """Gives the agent what a client sent here, as if it had come over the client's own connection."""
        frame.flags = lane.number << LANE_BITS
        self._tell(frame)

    def _ready(self, lane: Lane) -> None:
        frames = lane.receive()
        came = self.user.came if self.user is not None else self.pass_on
        for frame in frames or ():
            came(lane, frame)
        if frames is None:
            self._close(lane)

    def _close(self, lane: Lane | None) -> None:
        """First nothing can be sent here any more, then what was sent is read: no call is lost in between."""
        if lane is None or lane.sock is None:
            return
        if self.user is not None:
            self.user.lane_ends(lane)
        with contextlib.suppress(OSError):
            lane.sock.shutdown(socket.SHUT_RD)
        while frames := lane.receive():
            for frame in frames:
                self.pass_on(lane, frame)
        self._loop.unwatch(lane.sock.fileno())
        lane.sock.close()
        lane.sock = None
