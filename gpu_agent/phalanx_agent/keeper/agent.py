"""The keeper's side of ``keeper.sock``: whoever attached last is the agent; without one, what is said is not kept here.

Outcomes and the gang's state live elsewhere and are told again to the next agent that attaches.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

from phalanx.core.frames import Frame, Kind, encode_head
from phalanx.core.sockets import close_fds
from phalanx_agent.keeper.channel import Channel, ChannelClosedError
from phalanx_agent.keeper.loop import WRITE, Loop

SOCKET_BYTES = 1 << 20
SOCKET_NAME = "keeper.sock"
MAX_SOON = 16


def listen(gang_dir: str) -> socket.socket:
    """Binds the gang's socket. Relative to its directory, so that the path's length does not matter here."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(gang_dir)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET_NAME)  # noqa: PTH108  relative to the directory just entered
        mask = os.umask(0o177)
        listener.bind(SOCKET_NAME)
        os.umask(mask)
        listener.listen(8)
    finally:
        os.fchdir(here)
        os.close(here)
    return listener


class AgentLink:
    """Accepts agents. ``on_attach`` is called with the ATTACH frame, ``on_frame`` with every later one."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        *,
        on_attach: Callable[[Frame], None],
        on_frame: Callable[[Frame], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._on_attach = on_attach
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._agent: Channel | None = None
        self._others: dict[int, Channel] = {}
        self._soon: list[bytes] = []
        loop.watch(listener.fileno(), lambda _: self._accept())

    @property
    def keeps_up(self) -> bool:
        """An agent is there, and reads what it is sent."""
        return self._agent is not None and not self._agent.wants_write

    def send(self, frame: Frame) -> None:
        """Tells the agent, if there is one."""
        if self._soon:
            self._send_soon()
        if self._agent is not None:
            self._agent.send(frame)
            self._watch_for_room(self._agent)

    def send_soon(self, frame: Frame, more: bool) -> None:
        """Tells the agent of a small frame together with what comes next. ``more``: something does, in a moment."""
        self._soon.append(encode_head(frame) + frame.body)
        if not more or len(self._soon) >= MAX_SOON:
            self._send_soon()

    def _send_soon(self) -> None:
        soon, self._soon = self._soon, []
        if self._agent is not None:
            self._agent.send_encoded(b"".join(soon))
            self._watch_for_room(self._agent)

    def close(self) -> None:
        """Sends what still waits, bounded, and closes everything."""
        self._send_soon()
        agent = self._agent
        if agent is not None and agent.wants_write:
            agent.sock.settimeout(1)
            with contextlib.suppress(TimeoutError):
                agent.flush()
        for channel in [*self._others.values(), *([agent] if agent else [])]:
            self._loop.unwatch(channel.fd)
            channel.close()
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()

    def _watch_for_room(self, agent: Channel) -> None:
        if agent.wants_write:
            self._loop.want_write(agent.fd, True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            channel = Channel(sock)
            self._others[channel.fd] = channel
            self._loop.watch(channel.fd, lambda events: self._ready(channel, events))

    def _ready(self, channel: Channel, events: int) -> None:
        if events & WRITE:
            channel.flush()
            if not channel.wants_write:
                self._loop.want_write(channel.fd, False)
        if not events & ~WRITE:
            return
        try:
            frames = channel.receive()
        except ChannelClosedError:
            self._drop(channel)
            return
        for frame in frames:
            self._take(channel, frame)

    def _take(self, channel: Channel, frame: Frame) -> None:
        if frame.kind is Kind.ATTACH:
            self._soon.clear()  # whoever attaches is told everything
            former, self._agent = self._agent, channel
            self._others.pop(channel.fd, None)
            if former is not None and former is not channel:
                self._loop.unwatch(former.fd)
                former.close()
            self._on_attach(frame)
        elif channel is self._agent:
            self._on_frame(frame)
        else:
            close_fds(frame.fds)

    def _drop(self, channel: Channel) -> None:
        self._loop.unwatch(channel.fd)
        self._others.pop(channel.fd, None)
        channel.close()
        if channel is self._agent:
            self._agent = None
            self._on_gone()
