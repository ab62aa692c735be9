"""A rank's one socket to its keeper, and the memory that large bodies travel in. Blocking; used by the main thread.

Argument memory is mapped privately: what user code writes stays in this process. It counts as given back when no view
of it is left. Result memory comes from a small pool of files whose pages stay in place between calls.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.frames import Assembler, Frame, Kind, chunks, encode_head
from phalanx.core.serialization import Packed
from phalanx.core.sockets import close_fds
from phalanx_agent.keeper.bodies import MEMFD_BYTES, NO_SLOT
from phalanx_agent.keeper.channel import receive_some

MAX_POOLED = 4
MAX_POOLED_BYTES = 1 << 31


class KeeperGoneError(BaseException):
    """The keeper closed its end: nothing can be reported any more."""


class Link:
    """Frames in and out. Sending is safe from any thread, and does nothing in a forked child."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._assembler = Assembler()
        self._ready: deque[Frame] = deque()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def receive(self) -> Frame:
        """Waits for the next frame. Raises KeeperGoneError at the end of the stream."""
        while not self._ready:
            self._read()
        return self._ready.popleft()

    def _read(self) -> None:
        try:
            data, fds = receive_some(self._sock)
        except ConnectionError as e:
            raise KeeperGoneError from e
        if not data:
            raise KeeperGoneError
        self._ready.extend(self._assembler.feed(data, fds))

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_frames(self) -> bool:
        """Some have been read and not been received."""
        return bool(self._ready)

    def is_withdrawn(self, call: bytes) -> bool:
        """Says whether a CANCEL of a call that has not begun is here."""
        if self._poll.poll(0):
            self._read()
        return any(frame.kind is Kind.CANCEL and frame.id == call for frame in self._ready)

    def receive_all(self) -> list[Frame]:
        """Returns every frame that is here; waits for one where there is none. Raises KeeperGoneError."""
        frames = [self.receive(), *self._ready]
        self._ready.clear()
        return frames

    def send(self, frame: Frame) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            for piece in chunks(frame):
                self._send_one(piece)

    def _send_one(self, frame: Frame) -> None:
        head = encode_head(frame)
        data = head + frame.body if len(frame.body) < MEMFD_BYTES // 16 else head
        try:
            sent = socket.send_fds(self._sock, [data], frame.fds) if frame.fds else self._sock.send(data)
            if sent < len(data):
                self._sock.sendall(memoryview(data)[sent:])
            if data is head and len(frame.body):
                self._sock.sendall(frame.body)
        except ConnectionError as e:
            raise KeeperGoneError from e


@dataclass(slots=True)
class _Loan:
    """One call's argument memory; closing it fails as long as a view is left."""

    call_id: bytes
    memory: mmap.mmap


@dataclass(slots=True)
class Arguments:
    """Maps argument memory and knows when nobody looks at it any more."""

    _loans: list[_Loan] = field(default_factory=list[_Loan])

    @property
    def lent(self) -> bool:
        """Somebody's memory is mapped here."""
        return bool(self._loans)

    def open(self, frame: Frame) -> memoryview:
        """Returns the envelope of a CALL; takes over its descriptors."""
        if not frame.fds:
            return memoryview(frame.body)
        size = int(frame.meta["fds"][0]["size"])
        try:
            memory = mmap.mmap(frame.fds[0], size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            close_fds(frame.fds)
        self._loans.append(_Loan(frame.id, memory))
        return memoryview(memory)

    def take_back(self) -> list[bytes]:
        """Unmaps what nobody uses and returns the ids of the calls that it belonged to."""
        free: list[bytes] = []
        kept: list[_Loan] = []
        for loan in self._loans:
            if _unmapped(loan):
                free.append(loan.call_id)
            else:
                kept.append(loan)
        self._loans = kept
        return free


def _unmapped(loan: _Loan) -> bool:
    try:
        loan.memory.close()
    except BufferError:
        return False
    return True


@dataclass(slots=True)
class _Pooled:
    slot: int
    fd: int
    memory: mmap.mmap
    lent: bool = False


@dataclass(slots=True)
class Results:
    """Memory for large results. A lent piece is written again only after its RELEASE."""

    _pool: list[_Pooled] = field(default_factory=list[_Pooled])
    _next_slot: int = 0

    def body(self, packed: Packed) -> tuple[bytes, dict[str, Any], list[int]]:
        """Returns body, meta and descriptors of a result. Descriptors of one-time memory are in the meta's slot −1."""
        if packed.nbytes < MEMFD_BYTES:
            return packed.tobytes(), {}, []
        pooled = self._free(packed.nbytes) or self._grow(packed.nbytes)
        with memoryview(pooled.memory) as view:
            packed.write_into(view)
        pooled.lent = True
        return b"", {"fds": [{"size": packed.nbytes, "slot": pooled.slot}]}, [pooled.fd]

    def sent(self, slots: list[int]) -> None:
        """Forgets one-time memory: it lives as long as someone else holds it."""
        for pooled in [p for p in self._pool if p.slot in slots and p.slot == NO_SLOT]:
            self._drop(pooled)

    def release(self, slots: list[int]) -> None:
        """The receiver looks at these no more."""
        for pooled in self._pool:
            if pooled.slot in slots:
                pooled.lent = False

    def _free(self, size: int) -> _Pooled | None:
        fitting = [p for p in self._pool if not p.lent and len(p.memory) >= size]
        return min(fitting, key=lambda p: len(p.memory), default=None)

    def _grow(self, size: int) -> _Pooled:
        for idle in [p for p in self._pool if not p.lent]:
            self._drop(idle)
        capacity = 1 << (size - 1).bit_length()
        held = sum(len(p.memory) for p in self._pool)
        pooled = len(self._pool) < MAX_POOLED and held + capacity <= MAX_POOLED_BYTES
        slot = self._next_slot if pooled else NO_SLOT
        self._next_slot += pooled
        fd = os.memfd_create("phalanx-result", os.MFD_CLOEXEC)
        os.ftruncate(fd, capacity if pooled else size)
        made = _Pooled(slot, fd, mmap.mmap(fd, capacity if pooled else size))
        self._pool.append(made)
        return made

    def _drop(self, pooled: _Pooled) -> None:
        self._pool.remove(pooled)
        pooled.memory.close()
        os.close(pooled.fd)
