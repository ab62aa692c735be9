"""Reads what `nvidia-smi nvlink -s` prints: how many NVLinks each GPU has, how many work, and how fast one is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from phalanx.core.topology.importers.gpu_lines import GpuLines, read_gpus
from phalanx.core.topology.importers.text import shortened

_LINK = re.compile(r"Link ([0-9]{1,3}):\s*(.{1,60})")
_SPEED = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*GB/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNvlinks:
    """NVLinks of one GPU; None is unknown. Speeds are GB/s one way; ``gbyte_s_per_link``: of the slowest that works."""

    index: int
    uuid: str = ""
    model: str = ""
    active: int | None = None
    total: int | None = None
    gbyte_s_per_link: float | None = None
    gbyte_s: float | None = None
    """Of all that work together."""


@dataclass(frozen=True, slots=True)
class NvlinkFacts:
    gpus: tuple[GpuNvlinks, ...]
    notes: tuple[str, ...] = ()


def read_nvlink_status(text: str) -> NvlinkFacts:
    """Raises UnreadableTopologyError where the text names no GPU."""
    notes: list[str] = []
    gpus = tuple(_nvlinks(gpu, notes) for gpu in read_gpus(text, "`nvidia-smi nvlink -s`", notes))
    return NvlinkFacts(gpus, shortened(notes))


def _nvlinks(gpu: GpuLines, notes: list[str]) -> GpuNvlinks:
    speeds: dict[int, float | None] = {}
    refusal = ""
    for number, line in gpu.below:
        match = _LINK.fullmatch(line)
        if match and int(match[1]) in speeds:
            notes.append(f"line {number}: GPU {gpu.index} has a link {match[1]} already: left out")
        elif match:
            speeds[int(match[1])] = _speed(match[2], f"line {number}: GPU {gpu.index} link {match[1]}", notes)
        elif "unable to retrieve nvlink information" in line.lower():
            refusal = line.lower()
    active, total = _counts(speeds, refusal)
    if active is None:
        notes.append(f"line {gpu.line}: GPU {gpu.index} has no `Link 0: … GB/s` below it: its NVLinks are unknown")
    known = [speed for speed in speeds.values() if speed]
    return GpuNvlinks(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        active=active,
        total=total,
        gbyte_s_per_link=min(known, default=None),
        gbyte_s=None if active is None else round(sum(known), 6),
    )


def _speed(value: str, where: str, notes: list[str]) -> float | None:
    """None for a link that does not work; a word nobody knows is no proof that it does."""
    match = _SPEED.fullmatch(value.strip())
    if match:
        return float(match[1]) or None
    if value.strip().strip("<>").lower() != "inactive":
        notes.append(f"{where} is {value.strip()!r}: expected a speed in GB/s or <inactive>; counted as not active")
    return None


def _counts(speeds: dict[int, float | None], refusal: str) -> tuple[int | None, int | None]:
    """Without links listed, the tool says that all are inactive, or that there can be none."""
    if speeds:
        return sum(speed is not None for speed in speeds.values()), len(speeds)
    if "all links are inactive" in refusal:
        return 0, None
    return (0, 0) if "not supported" in refusal else (None, None)
