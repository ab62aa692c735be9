"""Ends the gangs that an agent left behind: keepers outlive agents by design, so stopping the cluster asks them itself.

Speaks the keeper's own frames over its socket. A keeper that does not end within its grace is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.frames import Decoder, Frame, Kind, encode_head

_MARGIN_MS = 2000
_EPOCH = 1 << 62
"""Above every agent's epoch: this connection replaces that of an agent that is going away."""


def stop_gangs(agent_run: Path, *, grace_ms: int, clock: Clock) -> int:
    """Ends every gang below the agent's run directory; returns how many there were. Waits for grace and 2 s at most."""
    keepers = [k for path in sorted(agent_run.glob("gangs/*/keeper.sock")) if (k := _connect(path)) is not None]
    for keeper in keepers:
        _send(keeper, Frame(Kind.ATTACH, meta={"epoch": _EPOCH}))
        _send(keeper, Frame(Kind.STOP, meta={"reason": "the embedded cluster stops", "grace_ms": grace_ms}))
    until = clock.monotonic_ms() + grace_ms + _MARGIN_MS
    for keeper in keepers:
        if not _wait_ended(keeper, until, clock):
            _kill_peer(keeper)
        keeper.close()
    return len(keepers)


def _connect(path: Path) -> socket.socket | None:
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    keeper.settimeout(1.0)
    try:
        keeper.connect(str(path))
    except OSError:
        keeper.close()
        return None
    return keeper


def _send(keeper: socket.socket, frame: Frame) -> None:
    try:
        keeper.sendall(encode_head(frame))
    except OSError:
        return  # it ended meanwhile; the wait below sees the end of the stream


def _wait_ended(keeper: socket.socket, until_ms: int, clock: Clock) -> bool:
    """Reads until the keeper closes, acknowledging its last report so that it may."""
    decoder = Decoder()
    while (left_ms := until_ms - clock.monotonic_ms()) > 0:
        keeper.settimeout(left_ms / 1000)
        try:
            data = keeper.recv(65_536)
        except TimeoutError:
            return False
        except OSError:
            return True
        if not data:
            return True
        decoder.feed(data)
        if any(frame.kind == Kind.ENDED for frame in decoder.frames()):
            _send(keeper, Frame(Kind.ACK))
    return False


def _kill_peer(keeper: socket.socket) -> None:
    if sys.platform != "linux":
        return
    pid, _, _ = struct.unpack("3i", keeper.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
