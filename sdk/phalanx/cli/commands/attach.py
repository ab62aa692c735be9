"""gpuctl attach: the debugger of a rank that waits at a breakpoint."""

from __future__ import annotations

import click

from phalanx.cli.at_terminal import Seat
from phalanx.cli.exits import Exit
from phalanx.cli.options import Command, Session
from phalanx.cli.target import full_id
from phalanx.core.frames import ATTACH
from phalanx.terminal import open_terminal


def attach(session: Session, call: str, *, rank: int | None) -> int:
    """Joins terminal and pdb until the call ends, or the terminal leaves."""
    screen = session.screen()
    client = session.client()
    call_id = full_id(client, call)
    terminal = open_terminal(client, call_id, rank=-1 if rank is None else rank, mode=ATTACH)
    who = f"rank {terminal.rank} on node {terminal.node_id}"
    screen.note(f"attached to {who}, at {terminal.where}; Ctrl-D leaves it as it is, c lets it go on")
    try:
        left = Seat(terminal, lines=True, note=screen.note).sit()
    finally:
        terminal.leave()
    if left:
        screen.note(f"\nleft {who} as it is; come back with: gpuctl attach {call_id} --rank {terminal.rank}")
    else:
        screen.note(str((terminal.ended or {}).get("reason", "it has ended")))
    return Exit.OK


command = Command(
    "attach",
    callback=attach,
    help="Debug a rank that waits at breakpoint() or pdb.set_trace(): your terminal speaks with its pdb. Ctrl-C goes "
    "to pdb; Ctrl-D leaves the rank as it is. While ranks wait, the call's timeout and hang_timeout stand still; after "
    "an hour with nobody attached the call has timed out.",
    params=[
        click.Argument(["call"]),
        click.Option(["--rank"], type=click.IntRange(min=0), help="Default: the first that waits."),
    ],
    examples=("gpuctl attach c-0d5t…", "gpuctl attach c-0d5t… --rank 2"),
)
