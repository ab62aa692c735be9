"""What one gang asks for, in the terms of placement. Data only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from phalanx.core.spec import FunctionSpec
from phalanx_control.scheduler.kinds import GpuKind


class Part(NamedTuple):
    """What a node must have for one of a gang's equal parts: parts that need the same find the same nodes."""

    model: GpuKind
    gpus: int
    share: float
    tenant: str
    """Whose gangs may be on the same GPU, where that is shared."""
    cpus: float
    memory_gb: float
    joined: bool
    isolation: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one gang asks for, of one tenant."""

    spec: FunctionSpec
    workspace: str
    fabric_instead: str | None = None
    """What must connect its GPUs, where that is not what the function says."""
    total: int = 0
    """Of an elastic gang, the size that is tried."""
    nodes_instead: int = 0
    cap: int | None = None
    """More GPUs than that it may not have, for other reasons than its function's."""

    @property
    def model(self) -> GpuKind:
        """Which GPUs will do."""
        return GpuKind(self.spec.resources.gpu, self.spec.resources.min_memory_gb)

    @property
    def fabric(self) -> str:
        """What must connect all of its GPUs: "nvlink", "rail", or "" for anything."""
        return self.spec.resources.fabric if self.fabric_instead is None else self.fabric_instead

    @property
    def preferred(self) -> Need | None:
        """The same with the fabric that it would rather have; None where it has no wish."""
        wish = self.spec.resources.prefer_fabric
        return replace(self, fabric_instead=wish) if wish and self.fabric_instead is None else None

    @property
    def node(self) -> str:
        """The only node that will do; empty: any."""
        return self.spec.resources.node

    def takes(self, node_id: str) -> bool:
        """Says whether the gang may be on this node at all."""
        return self.node in ("", node_id)

    @property
    def gpus(self) -> int:
        """Whole GPUs of the gang, the least of an elastic one; 0 for fractions and CPU functions."""
        return self.total or self.least

    @property
    def least(self) -> int:
        """How many whole GPUs it takes to start."""
        return int(self.spec.resources.gpus)

    @property
    def most(self) -> int:
        """How many an elastic gang may have; 0 where the number is fixed."""
        most = 0 if self.total else self.spec.resources.max_gpus
        return most if self.cap is None else min(most, max(self.cap, self.least))

    def sized(self, gpus: int, *, nodes: int) -> Need:
        """The same of this size."""
        return replace(self, total=gpus, nodes_instead=nodes)

    @property
    def share(self) -> float:
        """The part of one GPU, for functions that ask for less than one; else 0."""
        asked = self.spec.resources.gpus
        return asked if 0 < asked < 1 else 0

    def part(self, nodes: int) -> Part:
        """Returns what each of ``nodes`` nodes must have."""
        res, ranks = self.spec.resources, self.ranks_on_node(nodes)
        share = (self.share, self.workspace) if self.share else (0.0, "")
        beside = (res.cpus * ranks, res.memory_gb * ranks)
        return Part(self.model, self.gpus // nodes, *share, *beside, self.fabric == "nvlink", res.isolation, self.node)

    def node_counts(self, nodes: int) -> Iterator[int]:
        """Yields the numbers of nodes that the gang may be spread over, fewest first."""
        gpus, wanted = self.gpus, self.nodes_instead or self.spec.resources.nodes
        if self.spec.launch == "single" or not gpus or self.node:
            counts: Iterable[int] = (1,)
        else:
            counts = (wanted,) if wanted else _divisors(gpus)
        return (n for n in counts if n <= nodes and (not gpus or gpus % n == 0))

    def ranks_on_node(self, nodes: int) -> int:
        """Returns how many ranks each of ``nodes`` nodes gets."""
        if self.spec.launch == "per_gpu":
            return max(1, self.gpus // nodes)
        return 1


@lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)
