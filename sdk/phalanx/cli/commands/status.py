"""gpuctl status: what the cluster is and what it is doing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from phalanx.cli import text
from phalanx.cli.options import Command, Session
from phalanx.cli.target import open_client
from phalanx.core.clock import SystemClock
from phalanx.core.states import CallState, GpuState
from phalanx.core.views import NodeView


def status(session: Session) -> None:
    """Shows version, role, age, GPUs by state and calls by state. Starts nothing."""
    screen = session.screen()
    target = session.target()
    client = open_client(target, timeout_s=session.timeout_s)
    info, nodes, calls = client.server_info(), client.list_nodes(), client.list_calls(limit=1000)
    gpus = gpu_counts(nodes)
    states = Counter(call.state for call in calls)
    if screen.look.json:
        origin = {"address": target.connection.address, "origin": target.origin}
        screen.emit({**origin, "server": info, "gpus": gpus, "nodes": len(nodes), "calls": dict(states)})
        return
    age = text.duration(max(0, SystemClock().wall_ms() - info.started_ms)) if info.started_ms else "?"
    rows: list[tuple[str, Any]] = [
        ("address", f"{target.connection.address} ({target.origin})"),
        ("server", f"{info.version}, cell {info.cell}, {info.role}, up {age}"),
        ("page", info.page or "-"),
        ("nodes", f"{len(nodes)} ({sum(n.state == 'ready' for n in nodes)} ready)"),
        ("gpus", ", ".join(f"{n} {s}" for s, n in gpus.items()) + (" (simulated)" if info.simulated_gpus else "")),
        ("calls", ", ".join(f"{n} {s}" for s, n in _in_order(states)) or "none alive"),
    ]
    for name, value in rows:
        screen.data(f"{name:<8} {value}")


def gpu_counts(nodes: Sequence[NodeView]) -> dict[str, int]:
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
