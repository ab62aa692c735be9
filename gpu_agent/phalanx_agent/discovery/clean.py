"""Proving a GPU clean: nobody computes on it beyond the baseline, and its memory is back where it was.

    nobody there, memory back            FREE
    a process that is not ours           EXTERNAL: shown, not ours to judge
    not clean within the bound           QUARANTINED: a person has to look

The judgement is pure; `prove_clean` asks until the answer is FREE or the time is over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.files import replace_file
from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx_agent.discovery.source import GpuSource, GpuUse

MEMORY_SLACK_BYTES = 64 << 20
"""The driver's own use moves by a few MiB."""
BOUND_MS = 10_000
_ASK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    state: GpuState
    reason: str = ""


def judge(use: GpuUse, baseline: GpuUse, *, ours: frozenset[int] = frozenset(), shared: bool = False) -> Verdict:
    """Says what a GPU is. ``ours``: processes of gangs that hold it too; ``shared``: such a gang uses its memory."""
    strangers = use.pids - baseline.pids - ours
    if strangers and not shared:
        names = ", ".join(str(p) for p in sorted(strangers)[:4])
        return Verdict(state=GpuState.EXTERNAL, reason=f"process {names} computes on it and is not of this cluster")
    if shared or use.memory_bytes is None or baseline.memory_bytes is None:
        return Verdict(state=GpuState.FREE)
    over = use.memory_bytes - baseline.memory_bytes
    if over > MEMORY_SLACK_BYTES:
        return Verdict(
            state=GpuState.QUARANTINED,
            reason=f"{over / 1e6:.0f} MB of its memory did not come back after the last gang",
        )
    return Verdict(state=GpuState.FREE)


async def prove_clean(
    source: GpuSource,
    gpu: GpuInfo,
    baseline: GpuUse,
    *,
    clock: Clock,
    ours: frozenset[int] = frozenset(),
    shared: bool = False,
    bound_ms: int = BOUND_MS,
) -> GpuInfo:
    """Returns the GPU with its proved state: FREE as soon as it is clean, else what it is after ``bound_ms``."""
    deadline = clock.monotonic_ms() + bound_ms
    while True:
        verdict = await _look(source, gpu, baseline, ours=ours, shared=shared)
        if verdict.state is GpuState.FREE or clock.monotonic_ms() >= deadline:
            return GpuInfo(
                uuid=gpu.uuid,
                index=gpu.index,
                model=gpu.model,
                memory_bytes=gpu.memory_bytes,
                simulated=gpu.simulated,
                state=verdict.state,
                reason=verdict.reason,
            )
        await asyncio.sleep(_ASK_EVERY_S)


async def _look(source: GpuSource, gpu: GpuInfo, baseline: GpuUse, *, ours: frozenset[int], shared: bool) -> Verdict:
    try:
        use = source.use(gpu.uuid) if source.simulated else await asyncio.to_thread(source.use, gpu.uuid)
    except OSError as e:
        return Verdict(state=GpuState.QUARANTINED, reason=str(e))
    return judge(use, baseline, ours=ours, shared=shared)


def load_baselines(path: Path, *, boot_id: str) -> dict[str, GpuUse]:
    """Returns what was there before the first gang since this boot; empty when nothing was recorded."""
    try:
        data = json.loads(path.read_text())
        if data["boot_id"] != boot_id:
            return {}
        return {
            uuid: GpuUse(memory_bytes=use["memory_bytes"], pids=frozenset(use["pids"]))
            for uuid, use in data["gpus"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save_baselines(path: Path, baselines: Mapping[str, GpuUse], *, boot_id: str) -> None:
    """Records the baselines, whole or not at all."""
    data = {
        "boot_id": boot_id,
        "gpus": {u: {"memory_bytes": b.memory_bytes, "pids": sorted(b.pids)} for u, b in baselines.items()},
    }
    replace_file(path, json.dumps(data))


def measure_baselines(source: GpuSource, known: Mapping[str, GpuUse]) -> dict[str, GpuUse]:
    """Returns the baseline of every GPU: the known one, or what is there now. Blocking."""
    out = dict(known)
    for gpu in source.gpus():
        if gpu.uuid not in out and gpu.state is not GpuState.DOWN:
            try:
                out[gpu.uuid] = source.use(gpu.uuid)
            except OSError:
                continue
    return out
