"""gpuctl down: stops the embedded cluster at once."""

from __future__ import annotations

from phalanx.cli.options import Command, Session


def down(session: Session) -> None:
    """Stops the embedded cluster; what runs in it ends. History, logs and results stay on disk."""
    from phalanx.embedded import down as stop

    screen = session.screen()
    screen.status("stopping…")
    stopped = stop()
    screen.clear_status()
    if screen.look.json:
        screen.emit({"stopped": stopped})
    else:
        screen.note("stopped the embedded cluster" if stopped else "no embedded cluster was running")


command = Command(
    "down",
    callback=down,
    help="Stop the embedded cluster at once. Calls that run in it end; history, logs and results stay on disk.",
    examples=("gpuctl down", "gpuctl down --json"),
)
