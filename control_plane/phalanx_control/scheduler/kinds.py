"""Which GPUs will do for a gang: their model, and the memory of each."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from phalanx.core import played
from phalanx.core.messages import GpuInfo

model_matches = lru_cache(maxsize=1024)(played.model_matches)
"""Remembered: one pass asks it of every GPU of a cell."""


class GpuKind(NamedTuple):
    """``memory_gb`` (10^9 bytes) at least; a GPU whose memory is not known has too little."""

    model: str = ""
    memory_gb: float = 0

    def fits(self, gpu: GpuInfo) -> bool:
        return model_matches(self.model, gpu.model) and gpu.memory_bytes >= self.memory_gb * 1e9


ANY_GPU = GpuKind()
