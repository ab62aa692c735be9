"""Descriptors beside bytes, and bytes that the kernel did not take: what every socket of the data plane needs."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Sequence

Part = bytes | bytearray | memoryview

_MAX_FDS = 16
ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_FDS * 4)
CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
"""Flag of ``recvmsg``; 0 on macOS, where `fds_of` closes the gap."""


def fds_of(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Returns the descriptors that ``recvmsg`` brought along."""
    fds: list[int] = []
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += memoryview(raw[: len(raw) - len(raw) % 4]).cast("i").tolist()
    if not CLOEXEC:
        for fd in fds:
            os.set_inheritable(fd, False)
    return fds


def close_fds(fds: Iterable[int]) -> None:
    """Closes each; one that is closed already is no error."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def unsent(parts: Sequence[Part], sent: int) -> list[Part]:
    """Returns what is left of ``parts`` once ``sent`` bytes of them have left."""
    for i, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[i + 1 :]]
        sent -= len(part)
    return []
