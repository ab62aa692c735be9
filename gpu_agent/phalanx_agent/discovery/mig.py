"""The parts that a GPU is split into (MIG), through NVML. Blocking."""

from __future__ import annotations

from typing import Any

import pynvml

from phalanx.core.topology.node import MigDevice
from phalanx_agent.discovery.answers import of, text

_MEBI = 1 << 20
_GIGA = 10**9


def mig_enabled(handle: Any) -> bool | None:
    """None where the driver does not say; GPUs that cannot be split are not in MIG mode."""
    mode: Any = of(handle, pynvml.nvmlDeviceGetMigMode)
    return None if mode is None else bool(mode[0])


def mig_parts(handle: Any) -> tuple[MigDevice, ...]:
    """Returns the parts in NVML's order; empty for a GPU that is whole, or that does not say."""
    most = of(handle, pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0
    found: list[MigDevice] = []
    for at in range(most):
        part = of(handle, lambda device, at=at: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, at))
        uuid = of(part, pynvml.nvmlDeviceGetUUID)
        if uuid is not None:
            instance = of(part, pynvml.nvmlDeviceGetGpuInstanceId)
            found.append(MigDevice(uuid=text(uuid), profile=_profile(part), gpu_instance=instance))
    return tuple(found)


def _profile(part: Any) -> str:
    """Returns ``1g.10gb``: the driver ends the part's name with it, else it is made of what the part has."""
    name = text(of(part, pynvml.nvmlDeviceGetName) or "")
    _, found, profile = name.partition(" MIG ")
    if found:
        return profile.strip()
    has: Any = of(part, pynvml.nvmlDeviceGetAttributes_v2)
    if has is None:
        return "unknown"
    return f"{has.gpuInstanceSliceCount}g.{round(has.memorySizeMB * _MEBI / _GIGA)}gb"
