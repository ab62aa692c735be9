"""gpuctl release: ends a gang that is held after a failure."""

from __future__ import annotations

import click

from phalanx.cli.options import Command, Session
from phalanx.cli.target import full_id
from phalanx.not_now import not_now


def release(session: Session, call: str) -> None:
    """Ends the gang; its GPUs are free when its processes are gone."""
    screen = session.screen()
    client = session.client()
    call_id = full_id(client, call)
    before = client.get_call(call_id)
    if before.phase != "debug" or not before.ended_ms:
        raise not_now(before, "a gang is held after its call's failure only, where the function says hold_on_failure")
    view = client.cancel(call_id)
    if screen.look.json:
        screen.emit(view)
    else:
        screen.note(f"released  {call_id}  {view.function}")


command = Command(
    "release",
    callback=release,
    help="End a gang that is held after its call's failure (hold_on_failure), before its time.",
    params=[click.Argument(["call"])],
    examples=("gpuctl release c-0d5t…",),
)
