"""Which NVLink domain the node belongs to: the fabric's cluster and clique, as every GPU tells it. Blocking."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import pynvml

from phalanx_agent.discovery.answers import ask


@dataclass(frozen=True, slots=True)
class Clique:
    """``domain``: ``ClusterUUID.CliqueId``, None outside any; ``note`` says why it is not known where it should be."""

    domain: str | None = None
    note: str = ""


def read_clique(handles: Sequence[Any]) -> Clique:
    """Returns the domain that all GPUs name. Machines without a fabric manager have none, and nothing is noted."""
    found = [_of(handle) for handle in handles if handle is not None]
    note = next((each.note for each in found if each.note), "")
    if note:
        return Clique(note=note)
    domains = {each.domain for each in found}
    if len(domains) > 1:
        return Clique(note="the GPUs name different NVLink domains: none is taken")
    return Clique(domain=next(iter(domains), None))


def _of(handle: Any) -> Clique:
    info = ask(lambda: _versioned(handle), None) or ask(lambda: _plain(handle), None)
    if info is None or info.state in (pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, None):
        return Clique()
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return Clique(note="the GPUs are not registered with the NVLink fabric yet: its domain is unknown")
    if info.status != pynvml.NVML_SUCCESS:
        return Clique(note=f"registering with the NVLink fabric failed (NVML error {info.status}): no domain")
    cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
    return Clique(domain=f"{cluster}.{info.cliqueId}" if cluster.int else None)


def _versioned(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    return info


def _plain(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, byref(info))
    return info
