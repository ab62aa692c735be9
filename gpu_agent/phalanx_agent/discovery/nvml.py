"""NVIDIA GPUs through NVML: what there is and what occupies it. What connects them, `links.py` asks; how they are,
`vitals.py` and `xid.py`.

Every field is asked for by itself: what a driver does not answer is left at its default, and a GPU that answers
nothing is DOWN with the driver's word for it. Nothing here touches CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml

from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx.core.topology.node import NodeTopology
from phalanx_agent.discovery.answers import ask, text
from phalanx_agent.discovery.health import Vitals
from phalanx_agent.discovery.links import read_topology
from phalanx_agent.discovery.source import GpuUse, placeholder
from phalanx_agent.discovery.vitals import read_vitals
from phalanx_agent.discovery.xid import XidThread

_GONE = "NVML: the driver does not list it any more"


class NvmlGpus:
    """Raises OSError from the constructor where there is no driver."""

    simulated = False
    static = False

    def __init__(self, *, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as e:
            raise OSError(f"NVML does not start: {e}") from e
        self._known: dict[str, GpuInfo] = {}

    def gpus(self) -> tuple[GpuInfo, ...]:
        answers = [self._describe(index) for index in range(ask(pynvml.nvmlDeviceGetCount, len(self._known)))]
        found = [answer for answer in answers if isinstance(answer, GpuInfo)]
        missing = {uuid: gpu for uuid, gpu in self._known.items() if uuid not in {here.uuid for here in found}}
        silent = [_silent(at, missing, why) for at, why in enumerate(answers) if not isinstance(why, GpuInfo)]
        gone = [_lost(gpu, _GONE) for uuid, gpu in missing.items() if uuid not in {each.uuid for each in silent}]
        self._known = {**self._known, **{gpu.uuid: gpu for gpu in found}}  # another thread reads it
        return tuple(sorted((*found, *silent, *gone), key=lambda gpu: gpu.index))

    def topology(self) -> NodeTopology | None:
        return read_topology(self.gpus(), sysfs=self._sysfs)

    def use(self, uuid: str) -> GpuUse:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except pynvml.NVMLError as e:
            raise OSError(f"GPU {uuid} does not answer: {e}") from e
        memory: Any = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle), None)
        used = None if memory is None else int(memory.used)
        return GpuUse(memory_bytes=used, pids=frozenset(int(p.pid) for p in processes))

    def vitals(self) -> Mapping[str, Vitals]:
        found: dict[str, Vitals] = {}
        for gpu in self._known.values():
            handle = ask(lambda uuid=gpu.uuid: pynvml.nvmlDeviceGetHandleByUUID(uuid), None)
            if handle is not None:
                found[gpu.uuid] = read_vitals(handle)
        return found

    def listen(self, tell: Callable[[str, int], None]) -> Callable[[], None]:
        thread = XidThread(lambda: tuple(gpu.uuid for gpu in self._known.values()), tell)
        thread.start()
        return thread.end

    def _describe(self, index: int) -> GpuInfo | pynvml.NVMLError:
        """Returns what is known of one GPU, or why it does not answer."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = text(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as e:
            return e
        memory: Any = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle), None)
        return GpuInfo(
            uuid=uuid,
            index=index,
            model=text(ask(lambda: pynvml.nvmlDeviceGetName(handle), "")),
            memory_bytes=0 if memory is None else int(memory.total),
        )


def _silent(index: int, missing: Mapping[str, GpuInfo], why: pynvml.NVMLError) -> GpuInfo:
    """A GPU that does not answer keeps the identity that it had at this place."""
    known = (gpu for gpu in missing.values() if gpu.index == index)
    return _lost(next(known, GpuInfo(uuid=placeholder(index), index=index)), f"NVML: {why}")


def _lost(gpu: GpuInfo, why: str) -> GpuInfo:
    return replace(gpu, state=GpuState.DOWN, reason=why)
