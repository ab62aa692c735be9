"""Breakpoints in user code: ``breakpoint()`` and ``pdb.set_trace()`` stop the rank until somebody lets it go on.

pdb speaks over a socket whose other end the keeper holds, for whoever attaches. The rank says where it stopped and when
it goes on; who may attach, and how long the rank may wait, is the keeper's business.
"""

from __future__ import annotations

import os
import pdb
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx_agent.worker.guard import move_high
from phalanx_agent.worker.link import Link

_CALLER = str(Path(__file__).with_name("calls.py"))
_NOT_STEPPED_INTO = ("phalanx", "phalanx.*", "phalanx_agent.*")


class RankPdb(pdb.Pdb):
    """A pdb on a descriptor. ``stopped`` is told the place, ``goes_on`` when nothing is stepped through any more."""

    def __init__(self, fd: int, *, stopped: Callable[[str, int], None], goes_on: Callable[[], None]) -> None:
        reading: TextIO = open(fd, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        writing: TextIO = open(fd, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        super().__init__(stdin=reading, stdout=writing, skip=_NOT_STEPPED_INTO, readrc=False)
        self._stopped = stopped
        self._goes_on = goes_on

    def canonic(self, filename: str) -> str:
        """Code that travelled without its file is known by the name that came along."""
        if filename not in self.fncache and not Path(filename).exists():
            self.fncache[filename] = filename
        return self.fncache.get(filename) or super().canonic(filename)

    def get_stack(self, f: Any, t: Any) -> tuple[list[tuple[Any, int]], int]:
        """Leaves out what called the user's function."""
        stack, at = super().get_stack(f, t)
        ours = [i for i, (frame, _) in enumerate(stack[:at]) if frame.f_code.co_filename == _CALLER]
        first = ours[-1] + 1 if ours else 0
        return stack[first:], at - first

    def interaction(self, frame: Any, *args: Any, **more: Any) -> None:
        self._stopped(frame.f_code.co_filename, frame.f_lineno)
        super().interaction(frame, *args, **more)

    def set_continue(self) -> None:
        super().set_continue()
        self._goes_on()

    def set_quit(self) -> None:
        super().set_quit()
        self._goes_on()


class Breakpoints:
    """Of one rank. A child that user code forks has the ordinary pdb."""

    def __init__(self, link: Link, *, bundle_dir: str) -> None:
        self._link = link
        self._own = f"{bundle_dir.rstrip('/')}/" if bundle_dir else ""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pdb: RankPdb | None = None
        self._given: list[int] = []
        self._waits = False

    def install(self) -> None:
        """From now on breakpoints stop here. An environment that sets PYTHONBREAKPOINT keeps its own way."""
        plain = pdb.set_trace

        def stop(*args: Any, **options: Any) -> None:
            caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if os.getpid() != self._pid:
                plain(*args, **options)
                return
            self._stop(caller)

        pdb.set_trace = stop
        if "PYTHONBREAKPOINT" not in os.environ:
            sys.breakpointhook = stop

    def over(self) -> None:
        """The call is over: nothing of it is stepped through any more, and its breakpoints are forgotten."""
        if self._pdb is None:
            return
        sys.settrace(None)
        self._pdb.clear_all_breaks()
        self._tell_goes_on()

    def _stop(self, caller: FrameType) -> None:
        with self._lock:
            debugger = self._pdb = self._pdb or self._start()
        debugger.set_trace(caller)

    def _start(self) -> RankPdb:
        """The socket's other end goes along with the first word of a stop."""
        ours, theirs = socket.socketpair()
        self._given = [theirs.detach()]
        return RankPdb(move_high(ours.detach()), stopped=self._tell_stopped, goes_on=self._tell_goes_on)

    def _tell_stopped(self, file: str, line: int) -> None:
        self._waits = True
        where = f"{file.removeprefix(self._own) if self._own else file.rpartition('/')[2]}:{line}"
        given, self._given = self._given, []
        self._link.send(Frame(Kind.RANK, NO_ID, {"event": "breakpoint", "where": where}, fds=given))
        for fd in given:
            os.close(fd)

    def _tell_goes_on(self) -> None:
        if self._waits:
            self._waits = False
            self._link.send(Frame(Kind.RANK, NO_ID, {"event": "goes_on"}))
