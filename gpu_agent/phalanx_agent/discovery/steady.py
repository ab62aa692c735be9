"""When a changed topology is told: once it has stayed for two looks, and what got better only after it has lasted.

So a port that comes and goes is told once, as down, and the log is not filled by it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.topology.node import Health, NodeTopology

LASTS_MS = 30_000
LOOKS = 2


@dataclass(slots=True)
class Steady:
    """``told``: the topology that everybody knows."""

    told: NodeTopology | None
    _seen: NodeTopology | None = None
    _since_ms: int = 0
    _looks: int = 0

    def take(self, seen: NodeTopology | None, now_ms: int) -> bool:
        """Takes what a look saw; True when it is what to tell from now on."""
        if seen == self.told:
            self._looks = 0
            return False
        if seen != self._seen or not self._looks:
            self._seen, self._since_ms, self._looks = seen, now_ms, 0
        self._looks += 1
        worse = ailments(seen) - ailments(self.told)
        if self._looks < LOOKS or (not worse and now_ms - self._since_ms < LASTS_MS):
            return False
        self.told, self._looks = seen, 0
        return True


def ailments(topology: NodeTopology | None) -> frozenset[str]:
    """Returns what is wrong with a node, a word for each."""
    if topology is None:
        return frozenset({"unknown"})
    found = {f"{gpu.uuid} {gpu.health} {gpu.reason}" for gpu in topology.gpus if gpu.health is not Health.OK}
    found |= {f"{nic.name} is down" for nic in topology.nics if nic.up is False}
    return frozenset(found)
