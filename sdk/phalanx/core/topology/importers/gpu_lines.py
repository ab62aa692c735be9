"""The line that `nvidia-smi` begins a GPU with: `GPU 0: NVIDIA H100 (UUID: GPU-…)`, and what follows it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.text import plain_lines

_GPU = re.compile(r"\s*GPU ([0-9]{1,4}):\s*(.{0,200}?)\s*(?:\(UUID:\s*([^\s()]{1,100})\))?\s*")
_MAX_GPUS = 128


@dataclass(slots=True)
class GpuLines:
    """One GPU, and the lines below it with their numbers. "" where the text leaves something out."""

    index: int
    uuid: str
    model: str
    line: int
    below: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def read_gpus(text: str, what: str, notes: list[str]) -> list[GpuLines]:
    """Raises UnreadableTopologyError where no line begins a GPU. ``what`` is the command whose text this should be."""
    found: dict[int, GpuLines] = {}
    current: GpuLines | None = None
    for number, line in enumerate(plain_lines(text, f"the text of {what}"), 1):
        match = _GPU.fullmatch(line)
        if match:
            current = GpuLines(int(match[1]), match[3] or "", match[2], number)
            if current.index in found:
                notes.append(
                    f"line {number}: GPU {current.index} stands in line {found[current.index].line} too: left out"
                )
            found.setdefault(current.index, current)
        elif current and line.strip():
            current.below.append((number, line.strip()))
    if not found or len(found) > _MAX_GPUS:
        raise UnreadableTopologyError(
            f"{len(found)} GPUs: expected lines such as `GPU 0: NVIDIA H100 (UUID: GPU-…)`, as {what} prints,"
            f" and {_MAX_GPUS} GPUs at most"
        )
    return list(found.values())
