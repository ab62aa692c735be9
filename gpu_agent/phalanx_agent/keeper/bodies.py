"""Arguments and results on their way through a keeper: inline, or as memory that is passed on without being read."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.frames import Frame, Kind
from phalanx.core.sockets import close_fds
from phalanx_agent.keeper.calls import Body, QueuedCall, Reply, reply_bytes

MEMFD_BYTES = 1 << 20
NO_SLOT = -1
"""Memory that nobody waits to write again."""


@dataclass(slots=True)
class Loans:
    """Argument memory that ranks still look at: it is the sender's again when every local rank gave it back."""

    _open: dict[bytes, tuple[int, int]] = field(default_factory=dict[bytes, tuple[int, int]])

    def lend(self, call_id: bytes, meta: dict[str, Any], ranks: int) -> None:
        fds = meta.get("fds")
        if fds and fds[0]["slot"] != NO_SLOT:
            self._open[call_id] = (fds[0]["slot"], ranks)

    def back(self, call_id: bytes) -> int | None:
        """One rank gave it back. Returns the slot when it was the last."""
        slot, left = self._open.get(call_id, (NO_SLOT, 0))
        if left > 1:
            self._open[call_id] = (slot, left - 1)
            return None
        return slot if self._open.pop(call_id, None) is not None else None

    def forget_call(self, call_id: bytes) -> None:
        """The call did not begin: nobody looks at its memory."""
        self._open.pop(call_id, None)

    def forget(self, call_id: bytes, replies: list[Reply]) -> None:
        """The call failed: its memory is the sender's again with the failure, if every rank gave it back."""
        for reply in replies:
            if reply.meta.get("released"):
                self._open.pop(call_id, None)


def for_ranks(call: QueuedCall, *, ahead: bool = False) -> Frame:
    """Returns the frame that hands ``call`` over. A large inline body moves into memory first, once for all ranks."""
    if ahead:
        return Frame(Kind.CALL, call.id, {"ahead": True}, call.body)
    meta: dict[str, Any] = {"attempt": call.attempt} if call.attempt != 1 else {}
    if call.meta.get("held"):
        meta["held"] = True
    if call.fds:
        return Frame(Kind.CALL, call.id, {**meta, "fds": call.meta["fds"]}, fds=call.fds)
    if len(call.body) < MEMFD_BYTES:
        return Frame(Kind.CALL, call.id, meta, call.body)
    size = len(call.body)
    fd = into_memory([call.body])
    return Frame(Kind.CALL, call.id, {**meta, "fds": [{"size": size, "slot": NO_SLOT}]}, fds=[fd])


def into_memory(parts: Sequence[Body]) -> int:
    """Returns a new memory file with ``parts`` one after the other."""
    fd = os.memfd_create("phalanx-body", os.MFD_CLOEXEC)
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]
    return fd


def result_of(
    replies: list[Reply], meta: dict[str, Any], *, all_parts: bool
) -> tuple[Body, list[int], dict[int, list[int]]]:
    """Returns body, descriptors and lent slots by rank. Sets ``meta["fds"]`` where the body is in memory."""
    if not all_parts or len(replies) == 1:
        return _one_result(replies, meta)
    if sum(reply_bytes(r) for r in replies) < MEMFD_BYTES:
        return b"".join(bytes(r.body) for r in replies), [], {}
    fd = os.memfd_create("phalanx-results", os.MFD_CLOEXEC)
    slots: dict[int, list[int]] = {}
    for reply in replies:
        _append(fd, reply)
        if reply.fds:
            slots[reply.rank] = [reply.meta["fds"][0]["slot"]]
            close_fds(reply.fds)
    meta["fds"] = [{"size": os.fstat(fd).st_size, "slot": NO_SLOT}]
    return b"", [fd], slots


def _one_result(replies: list[Reply], meta: dict[str, Any]) -> tuple[Body, list[int], dict[int, list[int]]]:
    for reply in replies:
        if reply.fds:
            meta["fds"] = reply.meta["fds"]
            return b"", reply.fds, {reply.rank: [meta["fds"][0]["slot"]]}
        if len(reply.body):
            return reply.body, [], {}
    return b"", [], {}


def _append(fd: int, reply: Reply) -> None:
    if not reply.fds:
        os.write(fd, reply.body)
        return
    size = reply_bytes(reply)
    with mmap.mmap(reply.fds[0], size, prot=mmap.PROT_READ) as source, memoryview(source) as view:
        at = 0
        while at < size:
            at += os.write(fd, view[at:])
