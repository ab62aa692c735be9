"""Bodies that travel as memory: reading them into bytes where a peer cannot take descriptors, and making them."""

from __future__ import annotations

import os
from typing import Any

from phalanx.core.frames import Frame

MEMFD_FROM_BYTES = 1 << 20
"""Over a Unix socket, bodies from this size travel as memory."""
OWN_SLOT = -1
"""The slot of memory that this agent made: nobody gets it back."""


def read_body(frame: Frame) -> bytes | bytearray | memoryview:
    """Returns the body as bytes, whether it came in the frame or as memory. Raises OSError on a bad descriptor."""
    if not frame.fds:
        return frame.body
    return read_fds(frame.fds, frame.meta.get("fds") or [])


def read_fds(fds: list[int], metas: list[dict[str, Any]]) -> bytes:
    """Returns the contents of ``fds``, one after the other."""
    return b"".join(_read_fd(fd, int(meta["size"])) for fd, meta in zip(fds, metas, strict=True))


def inline(frame: Frame) -> Frame:
    """Returns the frame with its body as bytes and no descriptors, for a peer over TLS."""
    if not frame.fds:
        return frame
    meta = {k: v for k, v in frame.meta.items() if k != "fds"}
    return Frame(frame.kind, frame.id, meta, read_body(frame))


def as_memory(frame: Frame) -> Frame:
    """Returns the frame with a large body moved into memory of its own; the caller closes ``fds`` when it is sent."""
    if frame.fds or len(frame.body) < MEMFD_FROM_BYTES:
        return frame
    fd = os.memfd_create("phalanx-body", os.MFD_CLOEXEC)
    view = memoryview(frame.body)
    at = 0
    while at < len(view):
        at += os.pwrite(fd, view[at : at + (1 << 30)], at)
    meta = {**frame.meta, "fds": [{"size": len(view), "slot": OWN_SLOT}]}
    return Frame(frame.kind, frame.id, meta, b"", fds=[fd])


def slots_of(frame: Frame) -> list[int]:
    """Returns the sender's slots that the body occupies."""
    return [int(f["slot"]) for f in frame.meta.get("fds") or [] if int(f.get("slot", OWN_SLOT)) != OWN_SLOT]


def _read_fd(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    at = 0
    while at < size:
        part = os.pread(fd, min(size - at, 1 << 30), at)
        if not part:
            raise OSError(f"memory of {size} bytes ended at {at}")
        parts.append(part)
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
