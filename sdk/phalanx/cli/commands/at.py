"""gpuctl at: the cluster as it was."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from phalanx.cli import text
from phalanx.cli.log_choice import time_ms
from phalanx.cli.options import Command, Session
from phalanx.cli.run_state import elapsed_ms, stage_of
from phalanx.core.clock import SystemClock
from phalanx.core.states import CallState

if TYPE_CHECKING:
    from phalanx.cli.render import Screen
    from phalanx.core.views import CallView, GangView, NodeView, PastView

NODES = ("NODE", "STATE", "GPUS", "FREE", "MODEL", "WHY")
GANGS = ("GANG", "FUNCTION", "STATE", "RANKS", "NODES", "USER")
CALLS = ("CALL", "FUNCTION", "STATE", "GPUS", "TIME", "USER", "WHAT")


def at(session: Session, when: str) -> None:
    """Shows nodes, gangs, calls that were alive, and why those that waited did."""
    screen = session.screen()
    now_ms = SystemClock().wall_ms()
    asked_ms = time_ms(when, "TIME", now_ms=now_ms)
    past = session.client().past(asked_ms)
    if screen.look.json:
        screen.emit(past)
        return
    _show(screen, past, asked_ms, now_ms)


def _show(screen: Screen, past: PastView, asked_ms: int, now_ms: int) -> None:
    moment = datetime.fromtimestamp(asked_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    screen.data(f"{moment}, {text.ago(asked_ms, now_ms)}: entry {past.seq:,} of the log was the last")
    screen.data("")
    screen.table(NODES, [_node(each) for each in past.nodes], empty="no node had joined")
    screen.data("")
    screen.table(GANGS, [_gang(each) for each in past.gangs], empty="no gang of yours was there")
    screen.data("")
    reasons = {each.call_id: each.reason for each in past.queue.waiting}
    rows = [_call(each, reasons, asked_ms) for each in past.calls]
    screen.table(CALLS, rows, empty="no call of yours was alive")
    if past.queue.others:
        screen.note(f"{past.queue.others} more waited, in other workspaces")


def _node(node: NodeView) -> tuple[str, ...]:
    free = sum(gpu.info.state == "free" for gpu in node.gpus)
    models = ", ".join(sorted({gpu.info.model for gpu in node.gpus}))
    return node.node_id, node.state, str(len(node.gpus)), str(free), models or "-", node.reason or "-"


def _gang(gang: GangView) -> tuple[str, ...]:
    return gang.gang_id, gang.function, gang.state, str(gang.world_size), ", ".join(gang.nodes), gang.user


def _call(call: CallView, reasons: dict[str, str], asked_ms: int) -> tuple[str, ...]:
    waits = CallState(call.state) is CallState.QUEUED
    what = reasons.get(call.call_id, call.reason) if waits else stage_of(call).words
    elapsed = text.duration(elapsed_ms(call, asked_ms))
    return call.call_id, call.function, call.state, f"{call.gpus:g}", elapsed, call.user, what


command = Command(
    "at",
    callback=at,
    help="The cluster as the log had it at TIME (`10m` ago, `14:05`, or a date): nodes, gangs, calls that were alive, "
    "and why those that waited did. The last seven days are kept.",
    params=[click.Argument(["when"], metavar="TIME")],
    examples=("gpuctl at 10m", "gpuctl at 14:05", "gpuctl at 2026-11-30T12:00 --json"),
)
