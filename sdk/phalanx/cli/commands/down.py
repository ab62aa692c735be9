"""gpuctl down: stops the embedded cluster at once."""

from __future__ import annotations

from phalanx.cli.options import Command, Session

MOST_COUNTED = 100
"""So many calls are told in one answer of the control plane."""


def down(session: Session) -> None:
    """Stops the embedded cluster; what runs in it ends. History, logs and results stay on disk."""
    from phalanx.embedded import down as stop

    screen = session.screen()
    screen.status("stopping…")
    alive = _live_calls()
    stopped = stop()
    screen.clear_status()
    if screen.look.json:
        screen.emit({"stopped": stopped, "live_calls": alive if stopped else None})
    else:
        screen.note(outcome(stopped, alive))


def outcome(stopped: bool, alive: int | None) -> str:
    """Says what was stopped and, where it is known, how many calls had not ended then."""
    if not stopped:
        return "no embedded cluster was running"
    if not alive:
        return "stopped the embedded cluster"
    count = f"{alive} or more" if alive >= MOST_COUNTED else str(alive)
    return f"stopped the embedded cluster; {count} {'call' if alive == 1 else 'calls'} had not ended"


def _live_calls() -> int | None:
    """Returns how many calls the cluster has that have not ended; None where it does not run or does not answer."""
    from phalanx.embedded import running

    record = running()
    if record is None:
        return None
    import grpc

    from phalanx.embedded.activity import live_calls

    try:
        return live_calls(record)
    except (grpc.RpcError, OSError):
        return None


command = Command(
    "down",
    callback=down,
    help="Stop the embedded cluster at once. Calls that run in it end; history, logs and results stay on disk.",
    examples=("gpuctl down", "gpuctl down --json"),
)
