"""Looks at ranks from outside: where their threads stand, and what torch recorded of their collectives.

The rank's one reader writes down the stacks and answers with the record. Where it does not, because the interpreter is
held or it is not there yet, a signal that faulthandler serves in C fetches the stacks half way to the deadline. Not
before: such a walk through the stack of a thread that runs may crash the rank, and the reader is one that would run.
A look never waits: it is told by a callback, when all have answered or at its deadline, of whoever did.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phalanx.core import stacks
from phalanx.core.clock import Clock
from phalanx.core.collectives import Collective, RankState
from phalanx.core.stacks import Place, caller_of, main_thread
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.setup import STACK_SIGNAL

_LOOK_AGAIN_MS = 10
_MAX_UNANSWERED = 4
_ANSWER_BYTES = 1 << 16
_AGENT = Path(__file__).resolve().parents[1]
_PLATFORM = (f"{_AGENT}/", f"{Path(stacks.__file__).resolve().parents[1]}/", "<frozen ")
_CALLER = f"{_AGENT / 'worker' / 'calls.py'}"
_REPORTING = ("_call", "_fail")

Told = Callable[[list[RankState]], None]


@dataclass(slots=True, eq=False)
class _Look:
    """One look under way. ``sizes``: of stack files that are to grow, at its begin and when last looked at.

    ``unsignalled``: who has a reader that may still write down its stacks.
    """

    number: int
    full: bool
    signals_ms: int
    until_ms: int
    told: Told
    asked: set[int] = field(default_factory=set[int])
    records: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    unsignalled: set[int] = field(default_factory=set[int])
    dumps: dict[int, str] = field(default_factory=dict[int, str])
    over: bool = False

    @property
    def complete(self) -> bool:
        return self.asked <= self.records.keys() and not self.sizes


@dataclass(slots=True)
class Looker:
    """For one gang's ranks on this node. ``replied`` says which of them have answered the call that runs, and
    whether with a result."""

    loop: Loop
    clock: Clock
    ranks: list[RankProcess]
    node_id: str
    bundle_dir: str
    replied: Callable[[], dict[int, bool]]
    _open: dict[int, _Look] = field(default_factory=dict[int, _Look])
    _unanswered: dict[int, deque[_Look]] = field(default_factory=dict[int, deque[_Look]])
    _count: int = 0

    def watch(self) -> None:
        """Begins to hear the ranks' readers."""
        for rank in self.ranks:
            if rank.look_fd >= 0:
                os.set_blocking(rank.look_fd, False)
                self._unanswered[rank.rank] = deque()
                self.loop.watch(rank.look_fd, lambda _, r=rank: self._answered(r))

    def look(self, told: Told, *, full: bool, within_ms: int) -> None:
        """Asks every living rank; with ``full`` also for its last collectives and its stack."""
        self._count += 1
        now = self.clock.monotonic_ms()
        look = _Look(self._count, full, now + within_ms // 2, now + within_ms, told)
        self._open[look.number] = look
        for rank in self.ranks:
            if rank.alive:
                self._ask(rank, look)
        self._step(look)

    def _ask(self, rank: RankProcess, look: _Look) -> None:
        if look.full and rank.started:
            look.sizes[rank.rank] = (_size(rank.stack_path), -1)
        if self._ask_reader(rank, look):
            look.asked.add(rank.rank)
            look.unsignalled.add(rank.rank)
        elif rank.rank in look.sizes:
            os.kill(rank.pid, STACK_SIGNAL)

    def _ask_reader(self, rank: RankProcess, look: _Look) -> bool:
        waiting = self._unanswered.get(rank.rank)
        if waiting is None or not rank.ready or len(waiting) >= _MAX_UNANSWERED:
            return False
        try:
            os.write(rank.look_fd, b"f" if look.full else b"l")
        except OSError:
            return False
        waiting.append(look)
        return True

    def _answered(self, rank: RankProcess) -> None:
        waiting = self._unanswered[rank.rank]
        while True:
            try:
                data = os.read(rank.look_fd, _ANSWER_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data or not waiting:
                self.loop.unwatch(rank.look_fd)
                del self._unanswered[rank.rank]
                for look in waiting:
                    look.asked.discard(rank.rank)
                return
            look = waiting.popleft()
            look.records[rank.rank] = _read(data)
            self._step(look)

    def _step(self, look: _Look) -> None:
        """Goes on with a look: reads stacks that are whole, and tells when there is nothing left to wait for."""
        if look.over:
            return
        now = self.clock.monotonic_ms()
        late = now >= look.until_ms
        for rank in self.ranks:
            if rank.rank in look.sizes:
                self._read_stack(rank, look, late=late)
            if rank.rank in look.sizes and now >= look.signals_ms:
                self._signal(rank, look)
        if not (look.complete or late):
            due = min(now + _LOOK_AGAIN_MS, look.until_ms) if look.sizes else look.until_ms
            self.loop.at(f"look {look.number}", due, lambda: self._step(look))
            return
        look.over = True
        del self._open[look.number]
        self.loop.cancel(f"look {look.number}")
        look.told(self._states(look))

    def _read_stack(self, rank: RankProcess, look: _Look, *, late: bool) -> None:
        before, last = look.sizes[rank.rank]
        size = _size(rank.stack_path)
        if size > before and (rank.rank in look.records or size == last or late):
            look.dumps[rank.rank] = rank.dump_from(before)
            rank.dumped_to = max(rank.dumped_to, size)
        if late or not rank.alive or self._is_read(rank, look):
            del look.sizes[rank.rank]
        else:
            look.sizes[rank.rank] = (before, size)

    def _signal(self, rank: RankProcess, look: _Look) -> None:
        """Once for each look, and not to a rank whose stacks are here."""
        if rank.rank in look.unsignalled and rank.rank not in look.dumps:
            look.unsignalled.remove(rank.rank)
            os.kill(rank.pid, STACK_SIGNAL)

    def _is_read(self, rank: RankProcess, look: _Look) -> bool:
        """A rank that was met while it writes down its own failure says better itself where that came from."""
        dump = look.dumps.get(rank.rank, "")
        return bool(dump) and (caller_of(dump, _CALLER) not in _REPORTING or rank.rank in self.replied())

    def _places(self, dump: str) -> tuple[Place, ...]:
        """The user's files are named as the user does: where they were unpacked to says nothing to anybody."""
        own = f"{self.bundle_dir.rstrip('/')}/" if self.bundle_dir else ""
        places = main_thread(dump, caller=_CALLER, without=_PLATFORM)
        return tuple(replace(p, file=p.file.removeprefix(own)) for p in places)

    def _states(self, look: _Look) -> list[RankState]:
        replied = self.replied()
        return [
            RankState(
                rank=rank.rank,
                node_id=self.node_id,
                pid=rank.host_pid,
                alive=rank.alive,
                replied=rank.rank in replied,
                failed=not replied.get(rank.rank, True),
                stopped=rank.alive and rank.rank not in look.records and _is_stopped(rank),
                places=() if rank.rank in replied else self._places(look.dumps.get(rank.rank, "")),
                **look.records.get(rank.rank, {}),
            )
            for rank in self.ranks
        ]


def _is_stopped(rank: RankProcess) -> bool:
    """Says whether a signal holds it: SIGSTOP, or a terminal's."""
    own = Path("/proc/self").readlink().name == str(os.getpid())  # else /proc shows other numbers than ours
    try:
        text = Path(f"/proc/{rank.pid if own else rank.host_pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def _read(data: bytes) -> dict[str, Any]:
    """The rank may be under any code's control: what does not fit says nothing."""
    try:
        value = json.loads(data)
        return {
            "answered": True,
            "entered": {str(g): int(n) for g, n in value["entered"].items()},
            "completed": {str(g): int(n) for g, n in value["completed"].items()},
            "members": {str(g): [int(r) for r in ranks] for g, ranks in value["members"].items()},
            "last": tuple(Collective(**c) for c in value["last"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
