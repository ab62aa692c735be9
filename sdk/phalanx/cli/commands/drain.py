"""gpuctl drain: nodes that are emptied."""

from __future__ import annotations

import threading
import time

import click

from phalanx.cli.node_states import say, show
from phalanx.cli.options import Command, Session
from phalanx.core.errors import GetTimeoutError, InvalidSpecError, NotFoundError
from phalanx.core.states import NodeState
from phalanx.core.views import NodeView
from phalanx.durations import seconds

_LOOK_EVERY_S = 0.5


def drain(
    session: Session, nodes: tuple[str, ...], *, reason: str, deadline: str | None, now: bool, wait: bool
) -> None:
    """Drains each node; with ``wait`` returns when nothing runs there any more."""
    if now and deadline is not None:
        raise InvalidSpecError(f"--deadline {deadline} and --now: give one of the two")
    said = "0s" if now else deadline
    deadline_ms = -1 if said is None else max(0, round(seconds("--deadline", said) * 1000))
    views = say(session, nodes, NodeState.DRAINING, reason=reason, deadline_ms=deadline_ms)
    if wait:
        _until_empty(session, [view.node_id for view in views if view.gangs])


def _until_empty(session: Session, left: list[str]) -> None:
    client, screen = session.client(), session.screen()
    until_s = None if session.timeout_s is None else time.monotonic() + session.timeout_s
    while left:
        if until_s is not None and time.monotonic() > until_s:
            raise GetTimeoutError(f"gangs still run on {', '.join(left)}", hint="gpuctl nodes --gpus")
        threading.Event().wait(_LOOK_EVERY_S)
        known = {view.node_id: view for view in client.list_nodes()}
        for name in [name for name in left if not _busy(known, name)]:
            left.remove(name)
            show(screen, known[name])


def _busy(known: dict[str, NodeView], name: str) -> bool:
    """Raises NotFoundError for a node that is no more."""
    if name not in known:
        raise NotFoundError(f"node {name} has left", hint="gpuctl nodes")
    return known[name].gangs > 0


command = Command(
    "drain",
    callback=drain,
    help="Empty nodes, and place nothing new there until `gpuctl uncordon`. Idle gangs go at once; calls that run have "
    "until the deadline, ten minutes without one. What is ended then runs again elsewhere, at no retry and credited; "
    "a call of a function without retries is not run again: it may have run.",
    params=[
        click.Argument(["nodes"], nargs=-1, required=True, metavar="NODE…"),
        click.Option(["--reason"], default="", metavar="TEXT", help="Shown to whoever waits, and in `gpuctl nodes`."),
        click.Option(["--deadline"], metavar="10m", help="How long calls that run may go on; again: a new one."),
        click.Option(["--now"], is_flag=True, help="End what runs at once."),
        click.Option(["--wait"], is_flag=True, help="Return when nothing runs there any more."),
    ],
    examples=(
        "gpuctl drain node7 --reason 'new driver' --deadline 30m",
        "gpuctl drain node7 --now --wait",
    ),
)
