"""GPUs for machines that have none: the ranks run on CPU, everything else is as it is with real ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx.core.topology.node import Gpu, Health, NodeTopology
from phalanx.core.topology.presets import PRESETS, preset
from phalanx_agent.discovery.health import Vitals
from phalanx_agent.discovery.source import GpuUse

MODEL = "Simulated GPU"


class SimulatedGpus:
    """GPUs whose UUIDs depend on the node's id alone, so that they are the same after a restart.

    ``like``: the machine to look like; without, ``count`` GPUs of which nobody knows how they are connected.
    """

    simulated = True
    static = True

    def __init__(
        self, *, node_id: str, count: int = 0, memory_bytes: int = 0, like: NodeTopology | None = None
    ) -> None:
        self._topology = _renamed(like, node_id) if like is not None else None
        gpus = self._topology.gpus if self._topology is not None else _plain(node_id, count)
        self._gpus = tuple(_info(gpu, memory_bytes) for gpu in gpus)

    def topology(self) -> NodeTopology | None:
        return self._topology

    def gpus(self) -> tuple[GpuInfo, ...]:
        return self._gpus

    def use(self, uuid: str) -> GpuUse:
        """A simulated GPU holds nothing between gangs: its ranks' memory is the host's."""
        if all(g.uuid != uuid for g in self._gpus):
            raise OSError(f"no simulated GPU {uuid}")
        return GpuUse(memory_bytes=0)

    def vitals(self) -> Mapping[str, Vitals]:
        return {}

    def listen(self, tell: Callable[[str, int], None]) -> Callable[[], None]:  # noqa: ARG002 - nothing is told
        """Nothing breaks in a simulation by itself."""
        return lambda: None


def machine(named: str) -> NodeTopology:
    """Returns a preset, or what a file says. Raises OSError, or UnreadableTopologyError naming the line."""
    if named in PRESETS:
        return preset(named)
    from phalanx.core.topology.importers.detect import read_node  # many readers, which few agents need
    from phalanx.core.topology.importers.text_file import text_of_file

    return read_node(text_of_file(Path(named)))


def _renamed(topology: NodeTopology, node_id: str) -> NodeTopology:
    """Other nodes may look like the same file: UUIDs are this node's own."""
    own = {gpu.uuid: _uuid(node_id, gpu.index) for gpu in topology.gpus}
    return replace(
        topology,
        gpus=tuple(replace(gpu, uuid=own[gpu.uuid], mig=(), mig_enabled=False) for gpu in topology.gpus),
        partitions=tuple(tuple(own.get(uuid, uuid) for uuid in part) for part in topology.partitions),
    )


def _plain(node_id: str, count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(uuid=_uuid(node_id, index), index=index) for index in range(count))


def _info(gpu: Gpu, memory_bytes: int) -> GpuInfo:
    return GpuInfo(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model or MODEL,
        memory_bytes=gpu.memory_bytes or memory_bytes,
        simulated=True,
        state=GpuState.DOWN if gpu.health is Health.LOST else GpuState.FREE,
        reason=gpu.reason,
    )


def _uuid(node_id: str, index: int) -> str:
    digest = hashlib.sha256(f"{node_id}/{index}".encode()).hexdigest()
    return f"GPU-sim-{digest[:8]}-{digest[8:12]}-{digest[12:16]}"
