"""gpuctl status: what the cluster is and what it is doing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from phalanx.cli import text
from phalanx.cli.options import Command, Session
from phalanx.core.clock import SystemClock
from phalanx.core.states import CallState, GpuState
from phalanx.core.views import NodeView


def status(session: Session) -> None:
    """Shows version, role, age, GPUs by state and calls by state. Starts nothing."""
    screen = session.screen()
    api = session.api()
    info, nodes, calls = api.info(), api.nodes(), api.calls(limit=1000)
    gpus = gpu_counts(nodes)
    states = Counter(call.state for call in calls)
    if screen.look.json:
        origin = {"address": api.target.address, "origin": api.target.origin}
        screen.emit({**origin, "server": info, "gpus": gpus, "nodes": len(nodes), "calls": dict(states)})
        return
    age = text.duration(max(0, SystemClock().wall_ms() - info.started_ms)) if info.started_ms else "?"
    rows: list[tuple[str, Any]] = [
        ("address", f"{api.target.address} ({api.target.origin})"),
        ("server", f"{info.version}, cell {info.cell}, {info.role}, up {age}"),
        ("page", info.page or "-"),
        ("nodes", f"{len(nodes)} ({sum(n.state == 'ready' for n in nodes)} ready)"),
        ("gpus", ", ".join(f"{n} {s}" for s, n in gpus.items()) + (" (simulated)" if info.simulated_gpus else "")),
        ("calls", ", ".join(f"{n} {s}" for s, n in _in_order(states)) or "none alive"),
    ]
    for name, value in rows:
        screen.data(f"{name:<8} {value}")


def gpu_counts(nodes: list[NodeView]) -> dict[str, int]:
    """Returns the number of GPUs in each state that occurs, free ones always."""
    found = Counter(str(gpu.info.state) for node in nodes for gpu in node.gpus)
    return {state: found[state] for state in GpuState if found[state] or state is GpuState.FREE}


def _in_order(states: Counter[str]) -> list[tuple[str, int]]:
    return [(state, states[state]) for state in CallState if states[state]]


command = Command(
    "status",
    callback=status,
    help="What the cluster is, how many GPUs are free, and what is running. Starts nothing.",
    examples=("gpuctl status", "gpuctl status --json | jq .gpus"),
)
