"""gpuctl replay: runs a call again on this machine, with the same code and arguments. The call is not touched."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from phalanx.cli.exits import Exit
from phalanx.cli.options import Command, Session
from phalanx.cli.target import full_id
from phalanx.core.errors import InvalidSpecError


def replay(session: Session, call: str, *, local: bool, ranks: int | None, debug: bool) -> None:
    """Fetches code and arguments, says what differs here, and runs the ranks."""
    from phalanx import replay as replaying

    if not local:
        raise InvalidSpecError(
            f"replay of {call}: say where\nwith --local it runs on this machine; on the cluster it would be a new call",
            hint=f"gpuctl replay {call} --local",
        )
    screen = session.screen()
    client = session.client()
    call_id = full_id(client, call)
    found = replaying.fetch(client, call_id)
    with tempfile.TemporaryDirectory(prefix="px-replay-") as name:
        plan = replaying.lay_out(client, call_id, found, Path(name), ranks=ranks or 0, debug=debug)
        differ = replaying.differences(found.function, gpus_here=_gpus_here(), ranks=plan.world_size)
        if screen.look.json:
            screen.emit({"event": "replay", "call_id": call_id, "ranks": plan.world_size, "differs": differ})
        else:
            screen.note(f"replay of {call_id}: {plan.function}, {plan.world_size} rank(s) on this machine")
            for each in differ:
                screen.note(f"differs: {each}")
        died: dict[int, int] = {}
        code = replaying.run(Path(name), plan, died=died.__setitem__)
    if screen.look.json:
        screen.emit({"event": "replayed", "exit_code": code, "failed_rank": next(iter(died), None)})
    elif died:
        rank, status = next(iter(died.items()))
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        screen.note(f"rank {rank} failed ({how}); the others were ended")
    else:
        screen.note("all ranks returned")
    if code:
        raise SystemExit(Exit.FAILED)


def _gpus_here() -> int:
    """Counts device files: what torch sees is for the ranks to find out."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


command = Command(
    "replay",
    callback=replay,
    help="Run a call again on this machine, with the same code and arguments, one process for each rank (gloo where "
    "there are not enough GPUs), and say what differs from the gang. Nothing reaches the cluster.",
    params=[
        click.Argument(["call"]),
        click.Option(["--local"], is_flag=True, help="On this machine."),
        click.Option(["--ranks"], type=click.IntRange(min=1), metavar="N", help="So many ranks instead of the call's."),
        click.Option(["--pdb", "debug"], is_flag=True, help="Open pdb at the rank that fails."),
    ],
    examples=("gpuctl replay c-0d5t… --local", "gpuctl replay c-0d5t… --local --ranks 1 --pdb"),
)
