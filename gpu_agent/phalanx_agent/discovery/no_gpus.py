"""A node without GPUs, or without a driver for them: it has network ports all the same, and takes CPU gangs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from phalanx.core.messages import GpuInfo
from phalanx.core.topology.node import NodeTopology
from phalanx_agent.discovery.health import Vitals
from phalanx_agent.discovery.ports import read_ports
from phalanx_agent.discovery.source import GpuUse


class NoGpus:
    """Its ranks run on CPU."""

    simulated = True
    static = False

    def __init__(self, *, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs

    def gpus(self) -> tuple[GpuInfo, ...]:
        return ()

    def topology(self) -> NodeTopology | None:
        ports = read_ports(self._sysfs)
        return NodeTopology(nics=ports.nics, sources=(("nics", "sysfs"),), notes=ports.notes) if ports.nics else None

    def use(self, uuid: str) -> GpuUse:
        raise OSError(f"no GPU {uuid}: this node has none")

    def vitals(self) -> Mapping[str, Vitals]:
        return {}

    def listen(self, tell: Callable[[str, int], None]) -> Callable[[], None]:  # noqa: ARG002 - nothing is told
        return lambda: None
