"""Who uses the cluster: a client holds a shared lock for its life and touches the file when it comes.

The supervisor asks; clients never talk to it. A client that comes while the cluster is stopping waits until it is gone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from phalanx.embedded.locks import lock_within, try_lock
from phalanx.embedded.paths import Home

_JOIN_TIMEOUT_S = 30.0
_presence: dict[str, int] = {}


def announce(home: Home) -> None:
    """Makes this process a client until it ends. Announcing again only touches the file."""
    key = str(home.root)
    if key not in _presence:
        _presence[key] = lock_within(home.clients_lock, _JOIN_TIMEOUT_S, shared=True)
    os.utime(_presence[key])


def leave(home: Home) -> None:
    """Ends this process's presence, for whoever is about to stop the cluster."""
    fd = _presence.pop(str(home.root), None)
    if fd is not None:
        os.close(fd)


@dataclass(slots=True)
class IdleWatch:
    """Measures how long nobody has used the cluster, in monotonic milliseconds."""

    home: Home
    last_used_ms: int
    _touched_ns: int = field(default=0)

    def idle_ms(self, now_ms: int) -> int:
        """Returns 0 while there is a client, else the time since the last one was seen or came."""
        fd = try_lock(self.home.clients_lock)
        touched_ns = self.home.clients_lock.stat().st_mtime_ns
        if fd is None or touched_ns != self._touched_ns:
            self.last_used_ms = now_ms
        if fd is not None:
            os.close(fd)
        self._touched_ns = touched_ns
        return now_ms - self.last_used_ms

    def used(self, now_ms: int) -> None:
        """Counts calls that are alive without a client."""
        self.last_used_ms = now_ms

    def close_door(self) -> int | None:
        """Keeps new clients waiting until this process ends, and returns the lock; None when one is inside."""
        return try_lock(self.home.clients_lock)
