"""Questions to NVML that may have no answer: each field of each GPU is asked for by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from phalanx.core.topology.importers.reading import pci_address

T = TypeVar("T")

_FLOATING = (int(pynvml.NVML_VALUE_TYPE_DOUBLE),)


def ask(question: Callable[[], T], default: T) -> T:
    """Returns the answer, or ``default`` where the driver has none."""
    try:
        return question()
    except pynvml.NVMLError:
        return default


def of(handle: Any, question: Callable[[Any], T]) -> T | None:
    """Returns what a device answers; None for no device and for no answer."""
    return None if handle is None else ask(lambda: question(handle), None)


def text(value: str | bytes) -> str:
    """NVML's texts are bytes in some versions of its binding."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def field_value(handle: Any, field: int, scope: int = 0) -> int | None:
    """Returns one of NVML's numbered fields, where it is a whole number; None where the driver has no answer."""
    values: Any = of(handle, lambda device: pynvml.nvmlDeviceGetFieldValues(device, [(field, scope)]))
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS or values[0].valueType in _FLOATING:
        return None
    wide = values[0].valueType in (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
    return int(values[0].value.ullVal if wide else values[0].value.uiVal)


def kernel_address(pci: Any) -> str:
    """Writes ``00000000:3B:00.0`` as the kernel does: ``0000:3b:00.0``; "" where NVML had no answer."""
    return "" if pci is None else pci_address(text(pci.busId))
