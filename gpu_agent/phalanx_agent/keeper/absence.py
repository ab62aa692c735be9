"""How long a gang goes on while its agent is away: the function's ``disconnect_grace``, and for a report minutes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phalanx.core.clock import Clock
from phalanx_agent.keeper.loop import Loop

SHORTEST_SILENCE_MS = 5_000
"""A busy machine's agent may be that late with its pings; gangs of a lost node are written off after 8 s."""
RETAIN_WITHOUT_AGENT_MS = 600_000
_NAME = "disconnect"


@dataclass(frozen=True, slots=True)
class Absence:
    """``grace_ms`` 0: for ever. ``abandon`` ends the gang, ``leave`` the keeper that holds a dead gang's report."""

    loop: Loop
    clock: Clock
    grace_ms: int
    abandon: Callable[[int], None]
    leave: Callable[[], None]

    def over(self) -> None:
        self.loop.cancel(_NAME)

    def begins(self, *, ended: bool) -> None:
        """The connection has ended. ``ended``: so has the gang."""
        if ended:
            self._at(max(self.grace_ms, RETAIN_WITHOUT_AGENT_MS), self.leave)
        elif self.grace_ms:
            self._at(self.grace_ms, lambda: self.abandon(self.grace_ms))

    def heard(self) -> None:
        """An agent that has come, or pinged, and then falls silent is as good as gone, though its connection stands."""
        if self.grace_ms:
            silent_ms = max(self.grace_ms, SHORTEST_SILENCE_MS)
            self._at(silent_ms, lambda: self.abandon(silent_ms))

    def _at(self, after_ms: int, then: Callable[[], None]) -> None:
        self.loop.at(_NAME, self.clock.monotonic_ms() + after_ms, then)
