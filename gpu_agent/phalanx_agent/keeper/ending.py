"""How a gang on one node ends: asked, then killed, then proved empty; every wait is bounded. It decides no blame."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from phalanx.core.clock import Clock
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.namespaces import Walls, kill_everything
from phalanx_agent.keeper.ranks import RankProcess, signal_all

_SWEEP_EVERY_MS = 10
_EMPTY_WITHIN_MS = 5_000


@dataclass(slots=True)
class Ending:
    """Ends all local ranks and whatever they started. ``done(clean)`` is called once, at the end."""

    loop: Loop
    clock: Clock
    walls: Walls
    ranks: list[RankProcess]
    done: Callable[[bool], None]
    begun: bool = False
    _kill_at_ms: int = field(default=0)
    _give_up_ms: int = field(default=0)
    _killing: bool = field(default=False)
    _finished: bool = field(default=False)

    def begin(self, grace_ms: int) -> None:
        """SIGTERM and ``grace_ms`` to unwind, or SIGKILL at once where that is 0. A second call only shortens."""
        now = self.clock.monotonic_ms()
        if grace_ms <= 0:
            self.begun = True
            self._kill()
            return
        if not self.begun:
            self.begun = True
            self._kill_at_ms = now + grace_ms
            signal_all(self.ranks, signal.SIGTERM)
        self._kill_at_ms = min(self._kill_at_ms, now + grace_ms)
        if not self._killing:
            self.loop.at("grace", self._kill_at_ms, self._kill)
        self.rank_gone()

    def rank_gone(self) -> None:
        """A rank was collected. When none is left, the rest of the tree goes too."""
        if self.begun and not any(r.alive for r in self.ranks):
            self._kill()

    def _kill(self) -> None:
        if self._finished:
            return
        now = self.clock.monotonic_ms()
        if not self._killing:
            self._killing = True
            self.loop.cancel("grace")
            self._give_up_ms = now + _EMPTY_WITHIN_MS
        left = kill_everything(self.walls)
        if not left and not any(r.alive for r in self.ranks):
            self._finish(clean=True)
        elif now >= self._give_up_ms:
            self._finish(clean=False)
        else:
            self.loop.at("sweep", now + _SWEEP_EVERY_MS, self._kill)

    def _finish(self, *, clean: bool) -> None:
        self._finished = True
        self.loop.cancel("sweep")
        self.done(clean)
