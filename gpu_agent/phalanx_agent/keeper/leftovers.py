"""Processes that a call of a single-rank gang started and left behind. Ends them; knows no calls and no outcomes.

After a failed call all that it started goes. After one that succeeded only what has left the rank's own tree goes
(``setsid … &``): children that the rank still holds, such as a pool in a module's variable, serve its later calls.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx_agent.keeper import namespaces
from phalanx_agent.keeper.ranks import RankProcess

_CHILDREN_BYTES = 64 * 1024


class Leftovers:
    """For the keeper's own process, inside its walls: orphans become its children."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spared: set[int] = set()
        pid = os.getpid()
        try:
            self._children_fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._children_fd = -1

    def has_some(self, rank: RankProcess) -> bool:
        """Says whether anything is there that may have to be ended between calls. One read."""
        return self._children_fd >= 0 and os.pread(self._children_fd, _CHILDREN_BYTES, 0) != b"%d " % rank.pid

    def after_success(self, rank: RankProcess, since_ms: int, *, others: Callable[[], set[int]]) -> None:
        """Ends orphans that began since ``since_ms`` (monotonic). One read where there is none.

        ``others`` returns the processes that people run beside the rank: they stay.
        """
        if self._children_fd < 0:
            return
        listed = os.pread(self._children_fd, _CHILDREN_BYTES, 0)
        if listed == b"%d " % rank.pid:
            return
        orphans = {int(pid) for pid in listed.split()} - {rank.pid} - self._spared - others()
        began = self._began_since(list(orphans), since_ms) if orphans else []
        self._spared |= orphans.difference(began)
        for pid in began:
            _kill([pid, *namespaces.descendants(pid)])

    def after_failure(self, rank: RankProcess, since_ms: int, *, others: Callable[[], set[int]]) -> None:
        """Ends all that began since ``since_ms`` (monotonic); helpers from earlier calls stay, and ``others``."""
        found = set(namespaces.descendants(os.getpid())) - {rank.pid}
        left = list(found - others()) if found else []
        if left:
            _kill(self._began_since(left, since_ms))

    def _began_since(self, pids: list[int], since_ms: int) -> list[int]:
        age_s = (self._clock.monotonic_ms() - since_ms) / 1000
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
        ticks = int((uptime_s - age_s) * os.sysconf("SC_CLK_TCK"))
        return namespaces.started_since(pids, ticks)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
