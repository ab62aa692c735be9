"""The node's GPUs over time: what there is, what occupies them, which are marked and why.

Marks: DOWN (does not answer), EXTERNAL (a stranger computes on it), QUARANTINED (not clean after a lease). A marked GPU
is looked at again every few seconds, and is free again once it is proved clean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx_agent.discovery.clean import (
    BOUND_MS,
    judge,
    load_baselines,
    measure_baselines,
    prove_clean,
    save_baselines,
)
from phalanx_agent.discovery.source import GpuSource, GpuUse

log = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0


class GpuWatch:
    """Knows every GPU of the node by UUID."""

    def __init__(self, source: GpuSource, *, baseline_path: Path, boot_id: str, clock: Clock) -> None:
        """Looks once. Blocking; raises OSError where the state directory cannot be written."""
        self._source = source
        self._clock = clock
        self._gpus = {g.uuid: g for g in source.gpus()}
        self.topology = source.topology()
        self._marks: dict[str, GpuInfo] = {u: g for u, g in self._gpus.items() if g.state is GpuState.DOWN}
        known = load_baselines(baseline_path, boot_id=boot_id)
        self._baselines = measure_baselines(source, known)
        save_baselines(baseline_path, self._baselines, boot_id=boot_id)

    @property
    def simulated(self) -> bool:
        return self._source.simulated

    def all(self) -> tuple[GpuInfo, ...]:
        """Returns every GPU, FREE unless it is marked."""
        return tuple(self._marks.get(u, g) for u, g in sorted(self._gpus.items(), key=lambda item: item[1].index))

    async def prove_clean(
        self, uuid: str, *, ours: frozenset[int] = frozenset(), shared: bool = False, bound_ms: int = BOUND_MS
    ) -> GpuInfo:
        """Returns the GPU with its proved state, and marks it where that is not FREE."""
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return GpuInfo(uuid=uuid, state=GpuState.DOWN, reason="this node has no such GPU")
        proved = await prove_clean(
            self._source,
            gpu,
            self._baseline(uuid),
            clock=self._clock,
            ours=ours,
            shared=shared,
            bound_ms=bound_ms,
        )
        self._mark(proved)
        return proved

    def quarantine(self, uuid: str, reason: str) -> GpuInfo:
        """Marks a GPU whose ranks could not be ended."""
        marked = replace(self._gpus.get(uuid, GpuInfo(uuid=uuid)), state=GpuState.QUARANTINED, reason=reason)
        self._mark(marked)
        return marked

    async def run(self, in_use: Callable[[str], bool]) -> None:
        """Looks again every few seconds at what is not leased; for ever."""
        while not self._source.simulated:
            await asyncio.sleep(LOOK_EVERY_S)
            await asyncio.to_thread(self._look, in_use)

    def _look(self, in_use: Callable[[str], bool]) -> None:
        for gpu in self._source.gpus():
            self._gpus.setdefault(gpu.uuid, gpu)
            if gpu.state is GpuState.DOWN:
                self._mark(gpu)
            elif not in_use(gpu.uuid):
                self._judge_free(gpu)

    def _judge_free(self, gpu: GpuInfo) -> None:
        try:
            verdict = judge(self._source.use(gpu.uuid), self._baseline(gpu.uuid))
        except OSError as e:
            self._mark(replace(gpu, state=GpuState.DOWN, reason=str(e)))
            return
        marked_before = gpu.uuid in self._marks
        if verdict.state is not GpuState.QUARANTINED or marked_before:
            self._mark(replace(gpu, state=verdict.state, reason=verdict.reason))

    def _mark(self, gpu: GpuInfo) -> None:
        former = self._marks.get(gpu.uuid)
        if gpu.state is GpuState.FREE:
            self._marks.pop(gpu.uuid, None)
        else:
            self._marks[gpu.uuid] = gpu
        if (former.state if former else GpuState.FREE) is not gpu.state:
            log.warning("gpu changed", extra={"gpu": gpu.uuid, "state": gpu.state.value, "reason": gpu.reason})

    def _baseline(self, uuid: str) -> GpuUse:
        return self._baselines.get(uuid, GpuUse())
