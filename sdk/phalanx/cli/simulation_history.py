"""A cluster's own calls and nodes, as what the simulator reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from phalanx.core.played import is_played
from phalanx.core.views import CallView, NodeView

MOST_CALLS = 1000
"""The control plane tells so many at once."""
_LOST = "lost"


def jobs_of(calls: Iterable[CallView], now_ms: int) -> tuple[list[dict[str, Any]], int]:
    """Returns the calls that began, and how many did not. Those that still run are taken to end now."""
    jobs: list[dict[str, Any]] = []
    left_out = 0
    for call in calls:
        if not call.started_ms:
            left_out += 1
            continue
        jobs.append(
            {
                "at": call.submitted_ms / 1000,
                "duration": max(1, (call.ended_ms or now_ms) - call.started_ms) / 1000,
                "gpus": call.gpus,
                "workspace": call.workspace or "default",
                "user": call.user,
            }
        )
    return sorted(jobs, key=lambda job: job["at"]), left_out


def fleet_of(nodes: Sequence[NodeView]) -> dict[str, Any]:
    """Returns the nodes that are there, as a file of a fleet. Played GPUs count as what they play."""
    return {
        "nodes": [
            {
                "name": node.node_id,
                "gpus": len(node.gpus),
                "gpu": _model(node),
                "cpus": node.cpus,
                "memory_gb": node.memory_bytes / 1e9,
            }
            for node in nodes
            if node.state != _LOST
        ]
    }


def _model(node: NodeView) -> str:
    model = node.gpus[0].info.model if node.gpus else ""
    return model.partition(" ")[2] if is_played(model) else model
