"""What a run is told as: plain JSON, the same bytes for the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx_control.simulator.fragments import WHOLE
from phalanx_control.simulator.jobs import Job, offered_load, size_class, size_classes
from phalanx_control.simulator.machines import Fleet
from phalanx_control.simulator.watch import Watch

_HOUR_MS = 3_600_000
_DIGITS = 6


def results_of(fleet: Fleet, jobs: Sequence[Job], watch: Watch, *, policy: str, refused: int) -> dict[str, Any]:
    """Returns everything that is told of a run. Times in seconds, shares from 0 to 1, GPU-hours of whole GPUs."""
    sums, lives = watch.sums, watch.lives
    began = [job.number for job in jobs if lives[job.number].starts]
    last_ms = max((life.ended_ms for life in lives), default=0)
    total = watch.total or 1
    return _rounded(
        {
            "policy": policy,
            "fleet": {"name": fleet.name, "nodes": len(fleet.nodes), "gpus": fleet.gpus},
            "offered_load": offered_load(jobs, fleet.gpus) if jobs else 0.0,
            "jobs": {
                "submitted": len(jobs),
                "started": len(began),
                "ended": sum(life.ended_ms >= 0 for life in lives),
                "refused": refused,
                "stopped": sums.stops,
            },
            "waits": _waits(jobs, watch),
            "utilisation": sums.held_while_arriving / (total * watch.last_arrival_ms) if watch.last_arrival_ms else 0.0,
            "makespan_s": max(last_ms, 0) / 1000,
            "idle_gpu_hours_while_waiting": _hours(sums.idle_while_waiting),
            "lost_gpu_hours": _hours(sums.lost),
            "share_error": sums.misallotted / (total * sums.contended_ms) if sums.contended_ms else 0.0,
            "fragmented": sums.fragmented / sums.fragmented_looks / total if sums.fragmented_looks else 0.0,
            "workspaces": _workspaces(jobs, watch),
            "series": [
                {
                    "at_s": point.at_ms / 1000,
                    "used": point.held / total,
                    "waiting_gpus": point.waiting / WHOLE,
                    "fragmented": point.fragmented / total,
                }
                for point in watch.points
            ],
        }
    )


def _waits(jobs: Sequence[Job], watch: Watch) -> list[dict[str, Any]]:
    """Returns one row for each class of sizes that has jobs, and one for all of them."""
    waits: dict[str, list[int]] = {}
    never: dict[str, int] = {}
    for job in jobs:
        life = watch.lives[job.number]
        for name in (size_class(job.gpus), "all"):
            if life.starts:
                waits.setdefault(name, []).append(life.began_ms - job.at_ms)
            else:
                never[name] = never.get(name, 0) + 1
    names = [name for name in (*size_classes(), "all") if name in waits or name in never]
    return [{"size": name, "never": never.get(name, 0), **_spread(waits.get(name, []))} for name in names]


def _spread(waits_ms: list[int]) -> dict[str, Any]:
    ordered = sorted(waits_ms)
    return {
        "started": len(ordered),
        "mean_s": sum(ordered) / len(ordered) / 1000 if ordered else 0.0,
        "p50_s": _quantile(ordered, 0.5) / 1000,
        "p95_s": _quantile(ordered, 0.95) / 1000,
        "max_s": (ordered[-1] if ordered else 0) / 1000,
    }


def _quantile(ordered: Sequence[int], part: float) -> int:
    """Returns the smallest value that so many are not above."""
    return ordered[min(len(ordered) - 1, max(0, -(-int(len(ordered) * part * 1000) // 1000) - 1))] if ordered else 0


def _workspaces(jobs: Sequence[Job], watch: Watch) -> list[dict[str, Any]]:
    waits: dict[str, list[int]] = {}
    for job in jobs:
        life = watch.lives[job.number]
        if life.starts:
            waits.setdefault(job.workspace, []).append(life.began_ms - job.at_ms)
    return [
        {
            "name": name,
            "jobs": sum(job.workspace == name for job in jobs),
            "gpu_hours": _hours(tenant.held_ms),
            "entitled_gpu_hours_while_waiting": _hours(tenant.entitled_ms),
            "mean_wait_s": sum(waits.get(name, ())) / max(1, len(waits.get(name, ()))) / 1000,
        }
        for name, tenant in watch.tenants.items()
    ]


def _hours(milli_ms: float) -> float:
    return milli_ms / WHOLE / _HOUR_MS


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
