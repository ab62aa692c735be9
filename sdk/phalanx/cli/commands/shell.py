"""gpuctl shell: a shell beside a rank, on its node, with its environment, user and folder."""

from __future__ import annotations

import os

import click

from phalanx.cli.at_terminal import Seat, window
from phalanx.cli.exits import Exit
from phalanx.cli.options import Command, Session
from phalanx.cli.target import full_id
from phalanx.core.frames import SHELL
from phalanx.terminal import open_terminal


def shell(session: Session, call: str, *, rank: int, command: str) -> int:
    """Runs it, and returns its exit code."""
    screen = session.screen()
    client = session.client()
    call_id = full_id(client, call)
    size = window()
    terminal = open_terminal(
        client,
        call_id,
        rank=rank,
        mode=SHELL,
        command=command,
        rows=size.lines,
        columns=size.columns,
        term=os.environ.get("TERM", "dumb"),
        plain=not (os.isatty(0) and os.isatty(1)),
    )
    try:
        Seat(terminal, lines=False, note=screen.note).sit()
    finally:
        terminal.leave()
    ended = terminal.ended or {}
    if "exit_code" in ended:
        return int(ended["exit_code"])
    screen.note(str(ended.get("reason", "the shell has ended")))
    return Exit.FAILED


command = Command(
    "shell",
    callback=shell,
    help="A shell beside a rank of a call that runs, or is held after its failure: on its node, inside the gang's "
    "walls, with its user, environment and folder. It ends with the gang. Exits as the shell does.",
    params=[
        click.Argument(["call"]),
        click.Option(["--rank"], type=click.IntRange(min=0), default=0, show_default=True, help="Beside which rank."),
        click.Option(["-c", "--command"], default="", help="Run this in the shell instead of typing."),
    ],
    examples=("gpuctl shell c-0d5t… --rank 2", "gpuctl shell c-0d5t… --command nvidia-smi"),
)
