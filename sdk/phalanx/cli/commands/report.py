"""gpuctl report: what is known of a call that failed. Reads what was kept; the call is never touched."""

from __future__ import annotations

import click

from phalanx.cli.options import Command, Session
from phalanx.cli.target import full_id
from phalanx.reports import call_report, lines_of


def report(session: Session, call: str) -> None:
    """Shows the culprit and the victims, where they stood, what they wrote last, and how to run the call again."""
    screen = session.screen()
    client = session.client()
    found = call_report(client, full_id(client, call))
    if screen.look.json:
        screen.emit(found)
        return
    for line in lines_of(found):
        screen.data(line)


command = Command(
    "report",
    callback=report,
    help="What is known of a call that failed: who was at fault and who only suffered, exit codes and signals, stacks "
    "and last collectives of all ranks, their last output, the GPUs' health, the charge, and how to run it again.",
    params=[click.Argument(["call"])],
    examples=("gpuctl report c-0d5t…", "gpuctl report c-0d5t… --json"),
)
