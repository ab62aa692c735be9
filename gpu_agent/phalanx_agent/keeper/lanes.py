"""Straight ways from a keeper to clients of its own machine, for the outcomes of their direct calls.

A client makes a pair of sockets and sends one end along with its HELLO; the agent passes it on. What fits one write
goes there, whole or not at all, and past the agent, which is told all the same: it remains the one that answers for
the call, keeps its outcome until it is acknowledged, and sends what did not fit.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from phalanx.core.frames import Frame, encode_head
from phalanx.core.sockets import close_fds

LANE_BYTES = 32 * 1024
"""What the kernel takes whole or refuses."""


@dataclass(slots=True, eq=False)
class Lane:
    """One client's. A call holds on to its lane: another client's of the same number is not taken for it."""

    number: int
    sock: socket.socket | None

    def deliver(self, outcome: Frame) -> bool:
        """Sends the outcome. False where it has not gone, because it does not fit or nobody reads."""
        if self.sock is None or outcome.fds or len(outcome.body) > LANE_BYTES or "released" in outcome.meta:
            return False
        data = encode_head(outcome) + outcome.body
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            return False
        except OSError:
            sent = 0
        if sent < len(data):
            self.close()  # what has gone of it is no frame
            return False
        return True

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


class Lanes:
    """The lanes that the present agent has opened."""

    def __init__(self) -> None:
        self._open: dict[int, Lane] = {}

    def get(self, number: int) -> Lane | None:
        return self._open.get(number) if number else None

    def change(self, frame: Frame) -> None:
        """Closes the lane that a LANE frame names, and opens it anew where a socket came along."""
        former = self._open.pop(frame.lane, None)
        if former is not None:
            former.close()
        if not frame.fds:
            return
        try:
            sock = socket.socket(fileno=frame.fds[0])
        except OSError:
            close_fds(frame.fds)
            return
        close_fds(frame.fds[1:])
        sock.setblocking(False)
        self._open[frame.lane] = Lane(frame.lane, sock)

    def close_all(self) -> None:
        """Another agent: its clients bring lanes of their own."""
        for lane in self._open.values():
            lane.close()
        self._open.clear()
