"""gpuctl run: runs a function of a file on a gang and watches it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from phalanx.cli.options import Command, Session
from phalanx.cli.render import Screen, plain


def run(
    session: Session, target: str, *, args: tuple[str, ...], ranks: tuple[int, ...], cancel: bool, detach: bool
) -> None:
    """Runs ``FILE[::function]``: a GPU function on its gang, or the file's ``main`` here."""
    from phalanx.cli.attach import Manner, attach, set_manner
    from phalanx.cli.loading import arguments, find_runnable, load_file
    from phalanx.connection import use
    from phalanx.function import Function

    screen = session.screen()
    file, _, name = target.partition("::")
    found = find_runnable(load_file(Path(file)), name)
    values = arguments(found, args)
    use(session.target(start=True).connection)
    manner = Manner(look=screen.look, ranks=ranks, cancel_on_interrupt=cancel, timeout_s=session.timeout_s)
    set_manner(manner)
    if screen.look.quiet or screen.look.json or screen.look.progress is False:
        os.environ["PHALANX_PROGRESS"] = "0"  # for calls that the file's main() waits for itself
    if screen.look.quiet or screen.look.json:
        os.environ["PHALANX_LOGS"] = "0"
    if not isinstance(found, Function):
        show_result(screen, found(**values))
        return
    call = found.spawn(**values)
    if detach:
        _show_detached(screen, call.id)
        return
    show_result(screen, attach(call))


def file_exists(ctx: click.Context, param: click.Parameter, target: str) -> str:
    """Returns ``target`` as it is. Raises BadParameter, as for every FILE, where there is no such file."""
    try:
        click.Path(exists=True, dir_okay=False).convert(target.partition("::")[0], param, ctx)
    except click.BadParameter as e:
        raise click.BadParameter(e.message, ctx, param, param_hint="'FILE'") from e
    return target


def show_result(screen: Screen, value: Any) -> None:
    """The value, as JSON where it can be JSON, else by its repr; a None is not worth a line."""
    if screen.look.json:
        screen.emit({"event": "result", "value": _as_json(value)})
    elif value is not None:
        screen.data(repr(value) if screen.look.quiet else f"result {value!r}")


def _as_json(value: Any) -> Any:
    import json

    try:
        return json.loads(json.dumps(plain(value)))
    except (TypeError, ValueError):
        return repr(value)


def _show_detached(screen: Screen, call_id: str) -> None:
    if screen.look.json:
        screen.emit({"event": "accepted", "call_id": call_id})
        return
    screen.data(call_id)
    screen.note(f"gpuctl logs -f {call_id}    to watch it")


command = Command(
    "run",
    callback=run,
    help="Run a GPU function of a file on a gang and watch it: placement, why it waits, ranks, live logs, cost. "
    "Without ::function the file's main() runs here, else its only GPU function. Ctrl-C detaches; twice cancels.",
    params=[
        click.Argument(["target"], metavar="FILE[::FUNCTION]", callback=file_exists),
        click.Option(["--arg", "args"], multiple=True, metavar="NAME=VALUE", help="An argument; may be repeated."),
        click.Option(["--rank", "ranks"], type=int, multiple=True, help="Show this rank's output only."),
        click.Option(["--cancel-on-interrupt", "cancel"], is_flag=True, help="The first Ctrl-C cancels the call."),
        click.Option(["-d", "--detach"], is_flag=True, help="Print the call's id and return at once."),
    ],
    examples=("gpuctl run examples/hello_gang.py::hello --arg value=2", "gpuctl run train.py --rank 0 --timeout 600"),
)
