"""gpuctl graph: a call, and the calls that were made from inside it."""

from __future__ import annotations

import click

from phalanx.cli import text
from phalanx.cli.call_tree import MAX_CALLS, Branch, branches
from phalanx.cli.options import Command, Session
from phalanx.cli.run_state import elapsed_ms, stage_of
from phalanx.cli.target import full_id
from phalanx.client import Client
from phalanx.core.clock import SystemClock
from phalanx.core.views import CallView

COLUMNS = ("CALL", "FUNCTION", "TIME", "COST", "WHAT")


def graph(session: Session, call: str) -> None:
    """Shows the tree below one call."""
    screen = session.screen()
    client = session.client()
    root = client.get_call(full_id(client, call))
    tree = list(branches(root, lambda call_id: _children(client, call_id)))
    if screen.look.json:
        for branch in tree:
            screen.emit(branch.view)
        return
    now = SystemClock().wall_ms()
    screen.table(COLUMNS, [_row(branch, now) for branch in tree], empty="no calls")
    if root.parent:
        screen.note(f"made from inside {root.parent}: gpuctl graph {root.parent}")
    if len(tree) == MAX_CALLS:
        screen.note(f"only the first {MAX_CALLS} calls are shown")


def _children(client: Client, call_id: str) -> tuple[CallView, ...]:
    return client.list_calls(parent=call_id, ended_too=True, limit=MAX_CALLS)[::-1]


def _row(branch: Branch, now_ms: int) -> tuple[str, ...]:
    view = branch.view
    return (
        f"{branch.lead}{view.call_id}",
        view.function,
        text.duration(elapsed_ms(view, now_ms)),
        text.money(view.cost.money, view.cost.currency),
        stage_of(view).words,
    )


command = Command(
    "graph",
    callback=graph,
    help="A call and the calls that were made from inside it, as a tree. Cancelling the call cancels them all.",
    params=[click.Argument(["call"], metavar="CALL")],
    examples=("gpuctl graph c-0d5t…", "gpuctl graph c-0d5t… --json"),
)
