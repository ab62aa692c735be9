"""Terminals that people open at ranks: at the debugger of one that waits, or a shell beside it. Bytes both ways.

Bounded both ways: at most TERMINAL_WINDOW bytes are under way in each direction, so that what floods is not read until
its reader has taken what it got. A terminal's end ends nothing but its own shell.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.clock import Clock
from phalanx.core.errors import NotFoundError, NotNowError, PhalanxError
from phalanx.core.frames import ATTACH, SHELL, TERMINAL_WINDOW, Frame, Kind
from phalanx.core.ids import id_text
from phalanx.core.sockets import close_fds
from phalanx.core.stacks import ranks_text
from phalanx_agent.keeper.debugging import Debugging
from phalanx_agent.keeper.loop import WRITE, Loop
from phalanx_agent.keeper.namespaces import descendants, in_session
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.setup import ShellRequest, whole

_READ_BYTES = 16 * 1024
_TAIL_BYTES = 4096
_SHELL_ENDS_WITHIN_MS = 1000


class _ElsewhereError(NotFoundError):
    """Not here, but it may be on another node of the gang."""


@dataclass(slots=True, eq=False)
class Terminal:
    """``fd`` is a pseudo-terminal's keeper side, or a debugger's socket. ``pid`` 0: no shell."""

    id: bytes
    rank: RankProcess
    fd: int
    user: str
    since_ms: int
    pid: int = 0
    shown: int = 0
    shown_taken: int = 0
    typed: bytearray = field(default_factory=bytearray)
    typed_taken: int = 0
    reading: bool = False
    at_end: bool = False
    """Nobody has the shell's side open any more."""
    exit_code: int | None = None

    @property
    def room(self) -> int:
        return TERMINAL_WINDOW - (self.shown - self.shown_taken)


@dataclass(slots=True)
class Terminals:
    """Of one gang on one node. ``start_shell`` forks one and returns its pid and descriptor; it raises OSError."""

    loop: Loop
    clock: Clock
    ranks: list[RankProcess]
    tell: Callable[[Frame], None]
    debugging: Debugging
    start_shell: Callable[[RankProcess, ShellRequest], tuple[int, int]]
    _open: dict[bytes, Terminal] = field(default_factory=dict[bytes, Terminal])
    _shells: set[int] = field(default_factory=set[int])
    _tails: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The last that each debugger said: whoever comes back sees where he is."""

    def from_agent(self, frame: Frame) -> None:
        close_fds(frame.fds)
        if frame.kind is Kind.TERMINAL:
            self._wanted(frame)
            return
        terminal = self._open.get(frame.id)
        if terminal is None:
            return
        if frame.kind is Kind.TYPED:
            self._typed(terminal, frame)
        else:
            self._left(terminal)

    def note(self, rank: int, text: str) -> None:
        """Tells whoever is attached to ``rank``."""
        for terminal in [t for t in self._open.values() if t.rank.rank == rank and not t.pid]:
            self.tell(Frame(Kind.SHOWN, terminal.id, {"note": text}))

    def call_over(self) -> None:
        """There is nothing to debug any more. Shells stay as long as the gang."""
        self._tails.clear()
        for terminal in [t for t in self._open.values() if not t.pid]:
            self._end(terminal, {"reason": "the call has ended"})

    def attached(self) -> bool:
        """Somebody is at the debugger of a local rank."""
        return any(not t.pid for t in self._open.values())

    def shell_ended(self, pid: int, code: int, number: int) -> None:
        """A child that was no rank is gone. Where it was a shell, its terminal ends with its exit code, once all that
        it wrote is shown.
        """
        if pid not in self._shells:
            return
        self._shells.remove(pid)
        _signal_session(pid, signal.SIGKILL)  # what it left in the background
        self.loop.cancel(f"shell {pid}")
        for terminal in [t for t in self._open.values() if t.pid == pid]:
            terminal.exit_code = 128 + number if number else code
            self._end_if_told(terminal)

    def of_shells(self) -> set[int]:
        """Returns the processes that people run beside ranks."""
        return {pid for shell in self._shells for pid in (shell, *in_session(shell), *descendants(shell))}

    def close_all(self, reason: str) -> None:
        for terminal in tuple(self._open.values()):
            self._hang_up(terminal)
            self._end(terminal, {"reason": reason})

    # ---- opening ----

    def _wanted(self, frame: Frame) -> None:
        try:
            terminal = self._opened(frame)
        except PhalanxError as e:
            meta = {"error": str(e), "code": e.code, "hint": e.hint, "elsewhere": isinstance(e, _ElsewhereError)}
            self.tell(Frame(Kind.REFUSED, frame.id, meta))
            return
        except OSError as e:
            text = f"no shell can be started beside rank {frame.meta.get('rank')}: {e}"
            self.tell(Frame(Kind.REFUSED, frame.id, {"error": text, "code": NotFoundError.code}))
            return
        self._open[frame.id] = terminal
        where = self.debugging.stopped.get(terminal.rank.rank, "")
        self.tell(Frame(Kind.TERMINAL, frame.id, {"rank": terminal.rank.rank, "where": where}))
        if not terminal.pid:
            self._show(terminal, self._tails.pop(terminal.rank.rank, b""))
            self.debugging.look_for_company()
        self._read_on(terminal)

    def _opened(self, frame: Frame) -> Terminal:
        mode, number = str(frame.meta.get("mode")), whole(frame.meta.get("rank"))
        attach = mode == ATTACH
        if frame.meta.get("call") != id_text("c", self.debugging.running()):
            raise NotNowError(f"call {frame.meta.get('call')} does not run here now", hint="gpuctl ps --all")
        if attach and number < 0:
            number = min(self.debugging.stopped, default=-1)
        rank = next((r for r in self.ranks if r.rank == number), None)
        if rank is None or not rank.alive:
            have = ranks_text([r.rank for r in self.ranks if r.alive])
            what = f"rank {number} does not run" if number >= 0 else "no rank waits at a breakpoint"
            raise _ElsewhereError(f"{what} on this node, which has {have or 'none'}")
        user = str(frame.meta.get("user", ""))
        if attach:
            return Terminal(frame.id, rank, self._debugger(rank), user, self.clock.monotonic_ms())
        if mode != SHELL:
            raise NotFoundError(f"{mode!r} is no kind of terminal: ask for {ATTACH} or {SHELL}")
        pid, fd = self.start_shell(rank, ShellRequest.of(frame.meta))
        self._shells.add(pid)
        return Terminal(frame.id, rank, fd, user, self.clock.monotonic_ms(), pid=pid)

    def _debugger(self, rank: RankProcess) -> int:
        """Returns its socket. Raises NotFoundError where the rank has none, or somebody is there."""
        held = next((t for t in self._open.values() if t.rank is rank and not t.pid), None)
        if held is not None:
            seconds = (self.clock.monotonic_ms() - held.since_ms) // 1000
            who = held.user or "somebody"
            text = f"{who} is attached to rank {rank.rank}, since {seconds} s ago; one can be at a time"
            raise NotNowError(text, hint="have it left with Ctrl-D, or attach to another rank")
        if rank.rank not in self.debugging.stopped:
            waiting = self.debugging.reason
            raise NotNowError(
                f"rank {rank.rank} does not wait at a breakpoint{f': {waiting}' if waiting else ''}",
                hint="" if waiting else "put breakpoint() where it should stop, or see gpuctl stack",
            )
        return self.debugging.sockets[rank.rank]

    # ---- bytes ----

    def _typed(self, terminal: Terminal, frame: Frame) -> None:
        meta = frame.meta
        terminal.shown_taken = max(terminal.shown_taken, min(whole(meta.get("taken")), terminal.shown))
        if meta.get("rows") and terminal.pid:
            resize(terminal.fd, whole(meta["rows"]), whole(meta.get("columns")))
        if meta.get("interrupt") and not terminal.pid and terminal.rank.alive:
            os.kill(terminal.rank.pid, signal.SIGINT)
        terminal.typed += frame.body
        if len(terminal.typed) > TERMINAL_WINDOW:
            self._hang_up(terminal)
            self._end(terminal, {"reason": "more was typed than the terminal takes"})
            return
        self._pass_on(terminal)
        self._read_on(terminal)

    def _pass_on(self, terminal: Terminal) -> None:
        written = 0
        try:
            while terminal.typed and (count := os.write(terminal.fd, terminal.typed)):
                written += count
                del terminal.typed[:count]
        except BlockingIOError:
            pass
        except OSError:
            terminal.typed.clear()
        if written:
            terminal.typed_taken += written
            self.tell(Frame(Kind.SHOWN, terminal.id, {"taken": terminal.typed_taken}))
        if terminal.reading:
            self.loop.want_write(terminal.fd, bool(terminal.typed))

    def _read_on(self, terminal: Terminal) -> None:
        """Listens as long as there is room for what is said."""
        wanted = terminal.room > 0 and not terminal.at_end and terminal.id in self._open
        if wanted and not terminal.reading:
            self.loop.watch(terminal.fd, lambda events: self._ready(terminal, events))
            self.loop.want_write(terminal.fd, bool(terminal.typed))
        elif terminal.reading and not wanted:
            self.loop.unwatch(terminal.fd)
        terminal.reading = wanted

    def _ready(self, terminal: Terminal, events: int) -> None:
        if events & WRITE:
            self._pass_on(terminal)
        if not events & ~WRITE:
            return
        try:
            data = os.read(terminal.fd, min(_READ_BYTES, terminal.room))
        except BlockingIOError:
            return
        except OSError:
            data = b""  # how a pseudo-terminal says that nobody has it open any more
        if data:
            self._show(terminal, data)
            self._read_on(terminal)
        elif terminal.pid:
            self.loop.unwatch(terminal.fd)
            terminal.reading = False
            terminal.at_end = True
            self._end_if_told(terminal)
        else:
            self._end(terminal, {"reason": f"rank {terminal.rank.rank} has ended"})

    def _show(self, terminal: Terminal, data: bytes) -> None:
        if not data:
            return
        terminal.shown += len(data)
        if not terminal.pid:
            number = terminal.rank.rank
            self._tails[number] = (self._tails.get(number, b"") + data)[-_TAIL_BYTES:]
        self.tell(Frame(Kind.SHOWN, terminal.id, {}, data))

    # ---- ends ----

    def _end_if_told(self, terminal: Terminal) -> None:
        """A shell's terminal ends when its end and all that it wrote are known; a runaway's hold on it is not waited
        for."""
        if terminal.exit_code is None or terminal.id not in self._open:
            return
        name = f"shell {terminal.pid}"
        if terminal.at_end:
            self.loop.cancel(name)
            self._end(terminal, {"exit_code": terminal.exit_code})
            return

        def late() -> None:
            terminal.at_end = terminal.room > 0
            self._end_if_told(terminal)

        self.loop.at(name, self.clock.monotonic_ms() + _SHELL_ENDS_WITHIN_MS, late)

    def _left(self, terminal: Terminal) -> None:
        """Whoever had it open has gone. A debugger stays as it is, for whoever comes back."""
        self._hang_up(terminal)
        self._forget(terminal)

    def _hang_up(self, terminal: Terminal) -> None:
        """What a shell runs is told as by a terminal that is closed; soon after, it is killed."""
        pid = terminal.pid
        if not pid or terminal.exit_code is not None:
            return
        _signal_session(pid, signal.SIGHUP)
        due = self.clock.monotonic_ms() + _SHELL_ENDS_WITHIN_MS
        self.loop.at(f"shell {pid}", due, lambda: _signal_session(pid, signal.SIGKILL))

    def _end(self, terminal: Terminal, meta: dict[str, Any]) -> None:
        self._forget(terminal)
        self.tell(Frame(Kind.CLOSED, terminal.id, meta))

    def _forget(self, terminal: Terminal) -> None:
        if self._open.pop(terminal.id, None) is None:
            return
        if terminal.reading:
            self.loop.unwatch(terminal.fd)
            terminal.reading = False
        if terminal.pid:
            os.close(terminal.fd)
        else:
            self.debugging.look_for_company()


def resize(fd: int, rows: int, columns: int) -> None:
    """Sets a terminal's size; who runs in it is told by the kernel."""
    size = struct.pack("HHHH", max(1, min(rows, 9999)), max(1, min(columns or 80, 9999)), 0, 0)
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, size)


def _signal_session(pid: int, number: signal.Signals) -> None:
    """The shell leads a session of its own, in which its jobs have groups of theirs."""
    for member in in_session(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)
