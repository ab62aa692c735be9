"""Large bodies as shared memory: a pool of slots to send from, and private views of what was received.

Fresh memory faults ten times slower than memory that was touched before, so slots are kept and used again; but only
when the other side says that it let go of them. What is received is mapped privately: writing to it is safe, stays
local, and copies only the pages that are written.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from phalanx.core.frames import Frame
from phalanx.core.serialization import Packed

MEMFD_FROM_BYTES = 1 << 20
CEILING_BYTES = 2 << 30
_GRAIN_BYTES = 2 << 20
_WASTE = 4
"""A slot takes a body down to a quarter of its size."""


@dataclass(slots=True, eq=False)
class Slot:
    """One piece of memory. ``fd`` may be sent while the slot is out."""

    number: int
    fd: int
    size: int
    memory: mmap.mmap


class MemfdPool:
    """Slots by number. Thread-safe. Holds at most ``ceiling_bytes``, free ones and those that are out together."""

    def __init__(self, ceiling_bytes: int = CEILING_BYTES) -> None:
        self._lock = threading.Lock()
        self._free: list[Slot] = []
        self._out: dict[int, Slot] = {}
        self._bytes = 0
        self._next = 1
        self._ceiling_bytes = ceiling_bytes

    def put(self, packed: Packed) -> Slot | None:
        """Copies ``packed`` into a slot that is now out; None where the ceiling leaves no room for it."""
        with self._lock:
            slot = self._take(packed.nbytes)
            if slot is None:
                return None
            self._out[slot.number] = slot
        with memoryview(slot.memory) as view:
            packed.write_into(view)
        return slot

    def settle(self, number: int, released: Iterable[int]) -> None:
        """A reply came for a body in slot ``number``: it may be used again when ``released`` names it, else it goes."""
        with self._lock:
            slot = self._out.pop(number, None)
            if slot is None:
                return
            if number in released:
                self._free.append(slot)
            else:
                self._drop(slot)

    def close(self) -> None:
        with self._lock:
            for slot in (*self._free, *self._out.values()):
                self._drop(slot)
            self._free.clear()
            self._out.clear()

    def _take(self, nbytes: int) -> Slot | None:
        fitting = [s for s in self._free if nbytes <= s.size <= max(_GRAIN_BYTES, nbytes * _WASTE)]
        if fitting:
            slot = min(fitting, key=lambda s: s.size)
            self._free.remove(slot)
            return slot
        size = -(-nbytes // _GRAIN_BYTES) * _GRAIN_BYTES
        while self._free and self._bytes + size > self._ceiling_bytes:
            self._drop(self._free.pop(0))
        return self._make(size) if self._bytes + size <= self._ceiling_bytes else None

    def _make(self, size: int) -> Slot | None:
        try:
            fd = os.memfd_create("phalanx-args", os.MFD_CLOEXEC)
        except OSError:
            return None
        try:
            os.ftruncate(fd, size)
            memory = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        except (OSError, ValueError):
            os.close(fd)
            return None
        slot = Slot(self._next, fd, size, memory)
        self._next += 1
        self._bytes += size
        return slot

    def _drop(self, slot: Slot) -> None:
        slot.memory.close()
        os.close(slot.fd)
        self._bytes -= slot.size


def map_body(frame: Frame, freed: Callable[[list[int]], None]) -> None:
    """Makes the frame's memory its body. ``freed`` is called with the sender's slots when the last view is gone, as in
    `map_private`."""
    described = frame.meta.get("fds") or []
    sizes = [int(d["size"]) for d in described]
    slots = [int(d["slot"]) for d in described if int(d.get("slot", -1)) >= 0]
    views = [map_private(fd, size, lambda: freed(slots)) for fd, size in zip(frame.fds, sizes, strict=True)]
    frame.fds = []
    frame.body = views[0] if len(views) == 1 else bytearray().join(views)


def map_private(fd: int, size: int, on_free: Callable[[], None]) -> memoryview:
    """Returns a writable private view of ``size`` bytes of ``fd``, and closes ``fd``.

    ``on_free`` is called when the last view is gone, on any thread, and must not block. Raises OSError or ValueError.
    """
    try:
        memory = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)
    weakref.finalize(memory, on_free).atexit = False
    return memoryview(memory)
