"""What the agent asks of a machine's GPUs, whoever answers: NVML or a simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.core.messages import GpuInfo
from phalanx.core.topology.node import NodeTopology
from phalanx_agent.discovery.health import Vitals


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What occupies a GPU right now. ``memory_bytes`` is None where the driver does not say."""

    memory_bytes: int | None = None
    pids: frozenset[int] = field(default_factory=frozenset[int])


def placeholder(index: int) -> str:
    """Returns what stands for the UUID of a GPU that has never answered."""
    return f"unknown-{index}"


class GpuSource(Protocol):
    """Blocking; called in a thread. One broken GPU, or one broken field of it, never fails the others."""

    simulated: bool
    """Ranks run on CPU."""
    static: bool
    """Nothing ever changes: one look is enough."""

    def gpus(self) -> tuple[GpuInfo, ...]:
        """Returns every GPU of the node, in index order; a lost one is DOWN with a reason."""
        ...

    def topology(self) -> NodeTopology | None:
        """Returns what connects the GPUs, under the UUIDs that `gpus` gives them; None where it is not known."""
        ...

    def use(self, uuid: str) -> GpuUse:
        """Returns what occupies one GPU. Raises OSError when it does not answer."""
        ...

    def vitals(self) -> Mapping[str, Vitals]:
        """Returns the health counters of every GPU that answers, by UUID."""
        ...

    def listen(self, tell: Callable[[str, int], None]) -> Callable[[], None]:
        """Tells the UUID and the number of every XID from now on, from a thread of its own. Returns what ends that."""
        ...
