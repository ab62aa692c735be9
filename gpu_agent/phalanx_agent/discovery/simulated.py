"""GPUs for machines that have none: the ranks run on CPU, everything else is as it is with real ones."""

from __future__ import annotations

import hashlib

from phalanx.core.messages import GpuInfo
from phalanx_agent.discovery.source import GpuUse


class SimulatedGpus:
    """``count`` GPUs whose UUIDs depend on the node's id alone, so that they are the same after a restart."""

    simulated = True

    def __init__(self, *, node_id: str, count: int, memory_bytes: int) -> None:
        self._gpus = tuple(
            GpuInfo(
                uuid=_uuid(node_id, index),
                index=index,
                model="Simulated GPU",
                memory_bytes=memory_bytes,
                simulated=True,
            )
            for index in range(count)
        )

    def gpus(self) -> tuple[GpuInfo, ...]:
        return self._gpus

    def use(self, uuid: str) -> GpuUse:
        """A simulated GPU holds nothing between gangs: its ranks' memory is the host's."""
        if all(g.uuid != uuid for g in self._gpus):
            raise OSError(f"no simulated GPU {uuid}")
        return GpuUse(memory_bytes=0)


def _uuid(node_id: str, index: int) -> str:
    digest = hashlib.sha256(f"{node_id}/{index}".encode()).hexdigest()
    return f"GPU-sim-{digest[:8]}-{digest[8:12]}-{digest[12:16]}"
