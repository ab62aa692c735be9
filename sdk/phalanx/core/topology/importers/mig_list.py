"""Reads what `nvidia-smi -L` prints: GPUs with their UUIDs, and the MIG devices of each.

A GPU without MIG devices may have MIG on all the same, so for it `mig_enabled` is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from phalanx.core.topology.importers.gpu_lines import GpuLines, read_gpus
from phalanx.core.topology.importers.text import shortened
from phalanx.core.topology.node import MigDevice

_DEVICE = re.compile(r"MIG (\S{1,40})\s+Device\s+([0-9]{1,4}):\s*\(UUID:\s*([^\s()]{1,150})\)")
_OLD_UUID = re.compile(r"MIG-GPU-[^/]+/([0-9]{1,4})/[0-9]{1,4}")
"""Drivers before 470 name the GPU, its GPU instance and its compute instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMig:
    index: int
    uuid: str = ""
    model: str = ""
    mig: tuple[MigDevice, ...] = ()

    @property
    def mig_enabled(self) -> bool | None:
        return True if self.mig else None


@dataclass(frozen=True, slots=True)
class MigFacts:
    gpus: tuple[GpuMig, ...]
    notes: tuple[str, ...] = ()


def read_mig_list(text: str) -> MigFacts:
    """Raises UnreadableTopologyError where the text names no GPU."""
    notes: list[str] = []
    gpus = tuple(_gpu(gpu, notes) for gpu in read_gpus(text, "`nvidia-smi -L`", notes))
    return MigFacts(gpus, shortened(notes))


def _gpu(gpu: GpuLines, notes: list[str]) -> GpuMig:
    devices: dict[str, MigDevice] = {}
    for number, line in gpu.below:
        match = _DEVICE.fullmatch(line)
        if match:
            devices.setdefault(match[3], _device(match[1], match[3]))
        elif line.startswith("MIG "):
            notes.append(f"line {number}: expected `MIG 1g.10gb  Device 0: (UUID: MIG-…)`: {line[:60]!r} is left out")
    return GpuMig(index=gpu.index, uuid=gpu.uuid, model=gpu.model, mig=tuple(devices.values()))


def _device(profile: str, uuid: str) -> MigDevice:
    match = _OLD_UUID.fullmatch(uuid)
    return MigDevice(uuid=uuid, profile=profile, gpu_instance=int(match[1]) if match else None)
