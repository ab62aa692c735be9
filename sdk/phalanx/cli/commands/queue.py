"""gpuctl queue: who waits, in which order, why, and what accounts hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from phalanx.cli import text
from phalanx.cli.accounts import accounts_table
from phalanx.cli.options import Command, Session
from phalanx.core.clock import SystemClock

if TYPE_CHECKING:
    from phalanx.core.views import WaitingView

COLUMNS = ("#", "CALL", "FUNCTION", "GPUS", "ACCOUNT", "WAITED", "STARTS", "WHY")


def queue(session: Session, limit: int) -> None:
    """Lists calls that wait, the next one first."""
    screen = session.screen()
    found = session.client().queue(limit=limit)
    if screen.look.json:
        screen.emit(found)
        return
    now = SystemClock().wall_ms()
    screen.table(COLUMNS, [_row(each, now) for each in found.waiting], empty="nothing waits")
    if found.others:
        more = "-n shows more of your own" if len(found.waiting) == limit else "of other workspaces"
        screen.note(f"{found.others} more wait: {more}")
    if found.accounts:
        screen.data("")
        accounts_table(screen, found.accounts)


def _row(each: WaitingView, now_ms: int) -> tuple[str, ...]:
    marks = (f"{each.priority:+d}" if each.priority else "", "preemptible" if each.preemptible else "")
    return (
        str(each.place),
        each.call_id,
        " ".join(filter(None, (each.function, *marks))),
        f"{each.gpus:g}",
        each.account,
        text.duration(now_ms - each.submitted_ms),
        f"within {text.duration(each.starts_by_ms - now_ms)}" if each.starts_by_ms else "?",
        each.reason,
    )


command = Command(
    "queue",
    callback=queue,
    help="Calls that wait, in the order in which they are served: by the shares of their accounts, and of one user by "
    "time and priority. STARTS is known where what is in the way has time limits. Below, what accounts hold.",
    params=[
        click.Option(
            ["-n", "--limit"], type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many."
        ),
    ],
    examples=("gpuctl queue", "gpuctl queue -n 200 --json"),
)
