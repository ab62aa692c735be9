"""gpuctl ps: calls."""

from __future__ import annotations

import click

from phalanx.cli import text
from phalanx.cli.options import Command, Session
from phalanx.cli.run_state import elapsed_ms, stage_of
from phalanx.core.clock import SystemClock
from phalanx.core.states import CallState
from phalanx.core.views import CallView

MOST = 1000
COLUMNS = ("CALL", "FUNCTION", "STATE", "GPUS", "TIME", "COST", "USER", "WHAT")


def ps(session: Session, everything: bool, state: str | None, function: str, limit: int) -> None:
    """Lists calls, newest first."""
    screen = session.screen()
    calls = session.client().list_calls(
        ended_too=everything or bool(state), state=state or "", function=function, limit=min(limit + 1, MOST)
    )
    calls, more = calls[:limit], len(calls) > limit
    if screen.look.json:
        for call in calls:
            screen.emit(call)
    now = SystemClock().wall_ms()
    empty = "no calls" if everything else "no calls are alive; `gpuctl ps --all` shows ended ones"
    if not screen.look.json:
        screen.table(COLUMNS, [_row(call, now) for call in calls], empty=empty)
    if more:
        screen.note(f"these are the newest {limit}, and there are older ones: -n {min(MOST, 10 * limit)} shows more")
    elif len(calls) == MOST:
        screen.note(f"these are the newest {MOST}, the most that is listed at once: --state and --function narrow it")


def _row(call: CallView, now_ms: int) -> tuple[str, ...]:
    return (
        call.call_id,
        call.function,
        call.state,
        f"{call.gpus:g}",
        text.duration(elapsed_ms(call, now_ms)),
        text.money(call.cost.money, call.cost.currency),
        call.user,
        stage_of(call).words,
    )


command = Command(
    "ps",
    callback=ps,
    help="Calls that are alive, newest first, with what each is doing or waiting for.",
    params=[
        click.Option(["-a", "--all", "everything"], is_flag=True, help="Ended calls too."),
        click.Option(["--state"], type=click.Choice([str(s) for s in CallState]), help="Calls in one state."),
        click.Option(["--function"], default="", metavar="NAME", help="Calls of one function."),
        click.Option(
            ["-n", "--limit"], type=click.IntRange(1, MOST), default=50, show_default=True, help="At most this many."
        ),
    ],
    examples=("gpuctl ps --all -n 20", "gpuctl ps --state queued --json"),
)
