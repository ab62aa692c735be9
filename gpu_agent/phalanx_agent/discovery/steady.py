"""When a changed topology is told: once something has been worse for two looks, and what got better after it lasted.

So a port that comes and goes is told once, as down, and the log is not filled by it. What flickers beside it, as heat
does, keeps nothing from being told, for better or for worse. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.topology.names import told_apart
from phalanx.core.topology.node import Health, NodeTopology

LASTS_MS = 30_000


@dataclass(slots=True)
class Steady:
    """``told``: the topology that everybody knows."""

    told: NodeTopology | None
    _seen: NodeTopology | None = None
    _since_ms: int = 0
    _worse: frozenset[str] = frozenset()
    _better: dict[str, int] = field(default_factory=dict[str, int])
    """What was told and is over, since when."""

    def __post_init__(self) -> None:
        self._seen = self.told

    def take(self, seen: NodeTopology | None, now_ms: int) -> bool:
        """Takes what a look saw; True when it is what to tell from now on."""
        if seen != self._seen:
            self._seen, self._since_ms = seen, now_ms
        worse = (ailments(seen) - ailments(self.told)) | _missing(seen, self.told)
        better = (ailments(self.told) - ailments(seen)) | _missing(self.told, seen)
        lasting = worse & self._worse
        self._worse = worse
        self._better = {each: self._better.get(each, now_ms) for each in better}
        oldest_ms = min((self._since_ms, *self._better.values()))
        if seen == self.told or (not lasting and now_ms - oldest_ms < LASTS_MS):
            return False
        self.told, self._worse, self._better = seen, frozenset(), {}
        return True


def ailments(topology: NodeTopology | None) -> frozenset[str]:
    """Returns what is wrong with a node, a few words for each."""
    if topology is None:
        return frozenset({"unknown"})
    ill = [gpu for gpu in topology.gpus if gpu.health is not Health.OK]
    found = {f"{gpu.uuid} {gpu.health} {ail}".strip() for gpu in ill for ail in gpu.reason.split("; ")}
    ports = told_apart(nic.name for nic in topology.nics)
    found |= {f"{name} is down" for name, nic in zip(ports, topology.nics, strict=True) if nic.up is False}
    return frozenset(found)


def _missing(topology: NodeTopology | None, known: NodeTopology | None) -> frozenset[str]:
    """Returns what a node had and has no more."""
    return frozenset(f"{name} is gone" for name in _names(known) - _names(topology))


def _names(topology: NodeTopology | None) -> frozenset[str]:
    """Virtual ports are left out: they come and go with containers."""
    if topology is None:
        return frozenset()
    ports = told_apart(nic.name for nic in topology.nics if not nic.virtual)
    return frozenset({*(gpu.uuid for gpu in topology.gpus), *ports})
