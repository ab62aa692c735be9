"""Ranks that wait at breakpoints: while one does, on whichever node, the call's time stands still.

The hang watch and the time limit stop, the gang is in its phase ``debug``, and the agent hears who waits where. A rank
to which nobody attaches for DEBUG_WAIT_MS ends its call. Nothing here reads or writes what a debugger says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.clock import Clock
from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.ids import id_text
from phalanx.core.messages import ErrorInfo
from phalanx.core.sockets import close_fds
from phalanx.core.stacks import ranks_text
from phalanx.core.states import Cause, Outcome
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.telling import Why

DEBUG_WAIT_MS = 3_600_000
"""How long ranks wait at breakpoints while nobody is attached."""
ABANDONED = "debug wait"
"""The timer of that."""


@dataclass(slots=True)
class Debugging:
    """``running`` is the id of the call at the local ranks, or empty; ``paused`` stops what measures its time, or
    lets it go on;
    ``attached`` says whether somebody is at any of the local ranks, and ``note`` tells him; ``log`` puts a line into a
    rank's output; ``end`` ends the gang."""

    loop: Loop
    clock: Clock
    node_id: str
    running: Callable[[], bytes]
    tell: Callable[[Frame], None]
    paused: Callable[[bool], None]
    attached: Callable[[], bool]
    note: Callable[[int, str], None]
    log: Callable[[int, str], None]
    end: Callable[[Why, int], None]
    sockets: dict[int, int] = field(default_factory=dict[int, int])
    """Where the debuggers of ranks are spoken to, from their first breakpoint on."""
    stopped: dict[int, str] = field(default_factory=dict[int, str])
    """Local ranks that wait now, and where."""
    _elsewhere: dict[int, str] = field(default_factory=dict[int, str])
    _call_elsewhere: bytes = b""
    """What they run: the local ranks may have returned from it."""
    _since_ms: int = -1
    _before_ms: int = 0

    def heard(self, rank: int, frame: Frame) -> None:
        """A local rank has come to a breakpoint, or one step further; or it goes on."""
        if frame.meta.get("event") == "breakpoint":
            self._waits(rank, frame)
        else:
            self.goes_on(rank)

    def _waits(self, rank: int, frame: Frame) -> None:
        if frame.fds and rank not in self.sockets:
            self.sockets[rank] = frame.fds.pop()
            os.set_blocking(self.sockets[rank], False)
        close_fds(frame.fds)
        if self.running():
            where = str(frame.meta.get("where", ""))
            if rank not in self.stopped:
                call = id_text("c", self.running())
                self.log(rank, f"waits at a breakpoint, {where}: gpuctl attach {call} --rank {rank}")
            self.stopped[rank] = where
            self.look_for_company()
            self._changed()
            self.tell(Frame(Kind.RANK, NO_ID, {**frame.meta, "rank": rank, "call": self.running().hex()}))

    def goes_on(self, rank: int) -> None:
        if self.stopped.pop(rank, None) is not None:
            self._changed()
            self.tell(Frame(Kind.RANK, NO_ID, {"rank": rank, "event": "goes_on"}))
            self.note(rank, f"rank {rank} goes on")

    def elsewhere(self, frame: Frame) -> None:
        """A PAUSE: who waits on the gang's other nodes."""
        ranks: dict[str, Any] = frame.meta.get("ranks") or {}
        self._elsewhere = {int(rank): str(where) for rank, where in ranks.items()}
        self._call_elsewhere = bytes.fromhex(str(frame.meta.get("call", "")))
        self._changed()

    def begins(self) -> None:
        """A call was handed over: how long its time stands still counts from here, also where other nodes' ranks still
        wait in the one before."""
        if not (self._before_ms or self.is_paused):
            return
        self._before_ms = 0
        if self.is_paused:
            self._since_ms = self.clock.monotonic_ms()
            self.paused(True)
        self._tell()

    def over(self) -> None:
        """The local ranks have returned. Other nodes' may still wait, and the agents ask how long that was."""
        self.stopped.clear()
        self._changed()

    def all_over(self) -> None:
        """The gang has ended, and with it all waiting."""
        self._elsewhere.clear()
        self.over()

    @property
    def is_paused(self) -> bool:
        return self._since_ms >= 0

    @property
    def paused_ms(self) -> int:
        """How long the call's time has stood still so far."""
        return self._before_ms + (self.clock.monotonic_ms() - self._since_ms if self.is_paused else 0)

    @property
    def reason(self) -> str:
        """Who waits where, and how to get there; empty: nobody does."""
        waiting = dict(sorted((self._elsewhere | self.stopped).items()))
        if not waiting:
            return ""
        places = ", ".join(dict.fromkeys(waiting.values()))
        verb, what = ("waits", "a breakpoint") if len(waiting) == 1 else ("wait", "breakpoints")
        call = id_text("c", (not self.stopped and self._call_elsewhere) or self.running())
        return f"{ranks_text([*waiting])} {verb} at {what}, {places}: gpuctl attach {call} --rank {next(iter(waiting))}"

    def look_for_company(self) -> None:
        """Somebody attached or left, or a rank stopped: ranks wait for nobody only so long."""
        if self.stopped and not self.attached():
            self.loop.at(ABANDONED, self.clock.monotonic_ms() + DEBUG_WAIT_MS, self._abandoned)
        else:
            self.loop.cancel(ABANDONED)

    def meta(self) -> dict[str, Any]:
        return {"debug": self.reason, "paused_ms": self.paused_ms}

    def _changed(self) -> None:
        now = self.clock.monotonic_ms()
        pause = bool(self.stopped or self._elsewhere)
        if pause and not self.is_paused:
            self._since_ms = now
            self.paused(True)
        elif not pause:
            self.loop.cancel(ABANDONED)
            if not self.is_paused:
                return
            self._before_ms += now - self._since_ms
            self._since_ms = -1
            self.paused(False)
        self._tell()

    def _tell(self) -> None:
        self.tell(Frame(Kind.RANK, NO_ID, {"rank": -1, "event": "paused", **self.meta()}))

    def _abandoned(self) -> None:
        minutes = DEBUG_WAIT_MS // 60_000
        who = self.reason.partition(": gpuctl")[0]
        text = f"{who}, and nobody attached within {minutes} minutes"
        error = ErrorInfo(cause=Cause.TIMEOUT, type_name="CallTimeoutError", message=text, node_id=self.node_id)
        self.end(Why("nobody attached", outcome=Outcome.TIMED_OUT, error=error, cause=Cause.TIMEOUT), 0)
