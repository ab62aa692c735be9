"""Questions to NVML that may have no answer: each field of each GPU is asked for by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pynvml

T = TypeVar("T")


def ask(question: Callable[[], T], default: T) -> T:
    """Returns the answer, or ``default`` where the driver has none."""
    try:
        return question()
    except pynvml.NVMLError:
        return default


def text(value: str | bytes) -> str:
    """NVML's texts are bytes in some versions of its binding."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
