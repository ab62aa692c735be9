"""A GPU's counters, through NVML: ECC, replaced memory rows, slow-downs, NVLink errors, the PCIe link. Blocking."""

from __future__ import annotations

from typing import Any

import pynvml

from phalanx_agent.discovery.answers import field_value, of
from phalanx_agent.discovery.health import Vitals

_SLOWDOWNS = (
    (pynvml.nvmlClocksEventReasonHwThermalSlowdown, "it is too hot (hardware)"),
    (pynvml.nvmlClocksEventReasonSwThermalSlowdown, "it is too hot (driver)"),
    (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "the power supply asked for it"),
)
_CRC_FIELDS = (
    int(pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
    int(pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL),
)
_FULL_CLOCK = 0
"""The performance state P0."""


def read_vitals(handle: Any) -> Vitals:
    """Returns what one GPU answers; each counter is asked for by itself."""
    remapped: Any = of(handle, pynvml.nvmlDeviceGetRemappedRows)
    state = of(handle, pynvml.nvmlDeviceGetPerformanceState)
    return Vitals(
        uncorrectable=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        corrected=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        remap_pending=None if remapped is None else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        slowdowns=_slowdowns(handle),
        crc_errors=_crc_errors(handle),
        pcie_width=of(handle, pynvml.nvmlDeviceGetCurrPcieLinkWidth),
        pcie_width_max=of(handle, pynvml.nvmlDeviceGetMaxPcieLinkWidth),
        pcie_gen=of(handle, pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
        pcie_gen_max=of(handle, pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
        at_full_clock=None if state is None else state == _FULL_CLOCK,
    )


def _ecc(handle: Any, kind: int) -> int | None:
    return of(handle, lambda device: int(pynvml.nvmlDeviceGetTotalEccErrors(device, kind, pynvml.NVML_VOLATILE_ECC)))


def _slowdowns(handle: Any) -> tuple[str, ...]:
    """Power capping is how a GPU is meant to run; heat and a brake are not. Older drivers use the older name."""
    bits = of(handle, pynvml.nvmlDeviceGetCurrentClocksEventReasons)
    if bits is None:
        bits = of(handle, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    found = tuple(words for bit, words in _SLOWDOWNS if bits & bit)
    return found or (("heat or power (hardware)",) if bits & pynvml.nvmlClocksEventReasonHwSlowdown else ())


def _crc_errors(handle: Any) -> int | None:
    told = [count for field in _CRC_FIELDS if (count := field_value(handle, field)) is not None]
    return sum(told) if told else None
