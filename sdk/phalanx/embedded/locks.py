"""File locks that the kernel drops when their holder ends: who is alive, who is a client, who may start.

A lock is an open descriptor; closing it, or the end of the process by any means, lets it go. Waits are bounded.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import Event

from phalanx.core.clock import Clock, SystemClock

_POLL_S = 0.02


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Takes the lock at once and returns its descriptor, or returns None when somebody else holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def lock_within(path: Path, timeout_s: float, *, shared: bool = False, clock: Clock | None = None) -> int:
    """Takes the lock, waiting at most ``timeout_s`` seconds. Raises TimeoutError."""
    clock = clock or SystemClock()
    until = clock.monotonic_ms() + round(timeout_s * 1000)
    while (fd := try_lock(path, shared=shared)) is None:
        if clock.monotonic_ms() >= until:
            raise TimeoutError(f"{path} stayed locked for {timeout_s:g} s")
        Event().wait(_POLL_S)
    return fd


def is_held(path: Path) -> bool:
    """Says whether somebody holds the lock exclusively."""
    if not path.exists():
        return False
    fd = try_lock(path, shared=True)
    if fd is None:
        return True
    os.close(fd)
    return False
