"""gpuctl nodes: nodes and their GPUs."""

from __future__ import annotations

import click

from phalanx.cli import text
from phalanx.cli.options import Command, Session
from phalanx.core.clock import SystemClock
from phalanx.core.states import NodeState
from phalanx.core.views import GpuView, NodeView

NODE_COLUMNS = ("NODE", "STATE", "GPUS", "FREE", "MODEL", "CPUS", "MEMORY", "POOL", "SEEN", "WHY")
GPU_COLUMNS = ("NODE", "GPU", "STATE", "MODEL", "MEMORY", "FUNCTION", "USER", "GANG", "WHY")


def nodes(session: Session, gpus: bool) -> None:
    """Lists nodes, or with ``gpus`` every GPU with what holds it."""
    screen = session.screen()
    found = session.client().list_nodes()
    if screen.look.json:
        for node in found:
            screen.emit(node)
        return
    empty = "no node has joined yet; `gpuctl up` starts one on this machine"
    if gpus:
        screen.table(GPU_COLUMNS, [_gpu_row(node, gpu) for node in found for gpu in node.gpus], empty=empty)
    else:
        now = SystemClock().wall_ms()
        screen.table(NODE_COLUMNS, [_node_row(node, now) for node in found], empty=empty)


def _node_row(node: NodeView, now_ms: int) -> tuple[str, ...]:
    models = sorted({_model(gpu) for gpu in node.gpus})
    free = sum(gpu.info.state == "free" for gpu in node.gpus)
    seen = text.ago(node.last_seen_ms, now_ms)
    return (
        node.node_id,
        node.state,
        str(len(node.gpus)),
        str(free),
        ", ".join(models) or "-",
        str(node.cpus or "-"),
        text.size(node.memory_bytes) if node.memory_bytes else "-",
        node.pool,
        seen,
        why(node, now_ms) or "-",
    )


def why(node: NodeView, now_ms: int) -> str:
    """Returns who took a node out of use and how far its drain has come; "" for one that takes work."""
    if not node.reason or node.state != NodeState.DRAINING:
        return node.reason
    if not node.gangs:
        return f"{node.reason}; nothing runs there any more"
    left_ms = max(0, node.drain_until_ms - now_ms)
    when = f"calls may run for {text.duration(left_ms)} more" if left_ms else "being ended"
    return f"{node.reason}; {text.count(node.gangs, 'gang')} left, {when}"


def _gpu_row(node: NodeView, gpu: GpuView) -> tuple[str, ...]:
    info = gpu.info
    memory = text.size(info.memory_bytes)
    return (
        node.node_id,
        str(info.index),
        info.state,
        _model(gpu),
        memory,
        gpu.function or "-",
        gpu.user or "-",
        gpu.gang_id or "-",
        info.reason or "-",
    )


def _model(gpu: GpuView) -> str:
    """A simulated GPU always says so."""
    model = gpu.info.model
    return model if not gpu.info.simulated or "simulated" in model.lower() else f"{model} (simulated)"


command = Command(
    "nodes",
    callback=nodes,
    help="Nodes with their state and free GPUs; with --gpus every GPU and what holds it.",
    params=[click.Option(["--gpus"], is_flag=True, help="One line per GPU.")],
    examples=("gpuctl nodes", "gpuctl nodes --gpus"),
)
