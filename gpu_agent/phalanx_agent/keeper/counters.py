"""How long a gang has been in each phase: monotonic milliseconds so far, never a difference. Pure."""

from __future__ import annotations

from phalanx.core.states import Phase


class PhaseCounters:
    """One phase at a time; entering the present one again changes nothing."""

    def __init__(self, phase: Phase, now_ms: int) -> None:
        self.phase = phase
        self._since_ms = now_ms
        self._ms: dict[Phase, int] = {}

    def enter(self, phase: Phase, now_ms: int) -> None:
        """Ends the present phase at ``now_ms`` and begins ``phase``."""
        self._ms[self.phase] = self._ms.get(self.phase, 0) + now_ms - self._since_ms
        self.phase = phase
        self._since_ms = now_ms

    def snapshot(self, now_ms: int, *, ended: bool = False) -> dict[str, int]:
        """Returns milliseconds by phase; with ``ended`` the present phase no longer grows."""
        out = dict(self._ms)
        if not ended:
            out[self.phase] = out.get(self.phase, 0) + now_ms - self._since_ms
        return {str(phase): ms for phase, ms in out.items()}
