"""gpuctl cancel: ends calls."""

from __future__ import annotations

import click

from phalanx.cli.commands.map import as_it_stands, in_words, until_ended
from phalanx.cli.exits import Exit, exit_of_state
from phalanx.cli.options import Command, Session
from phalanx.cli.render import Screen
from phalanx.cli.target import full_id
from phalanx.client import Client
from phalanx.core.states import CallState
from phalanx.core.views import CallView
from phalanx.map_call import MapCall


def cancel(session: Session, calls: tuple[str, ...], wait: bool) -> int:
    """Cancels each call; with ``wait`` returns when every rank is gone. A call that had ended stays as it is."""
    screen = session.screen()
    client = session.client()
    code = Exit.OK
    for text in calls:
        if text.startswith("m-"):
            _cancel_map(session, client, text, wait=wait)
            continue
        call_id = full_id(client, text)
        before = client.get_call(call_id)
        view = client.cancel(call_id)
        if wait and not CallState(view.state).terminal:
            view = _until_ended(list(client.watch(call_id)), view)
        if screen.look.json:
            screen.emit(view)
        else:
            screen.note(f"{_outcome(screen, before, view)}  {call_id}  {view.function}")
        if wait and view.state != CallState.CANCELLED:
            code = exit_of_state(view.state)
    return code


def _cancel_map(session: Session, client: Client, map_id: str, *, wait: bool) -> None:
    screen, calls = session.screen(), MapCall.from_id(map_id)
    known = as_it_stands(client, calls)
    calls.cancel_by(client)
    last = until_ended(screen, client, calls, session.timeout_s) if wait else as_it_stands(client, calls)
    if screen.look.json:
        screen.emit(last)
    else:
        screen.note(f"{known.calls - known.ended} of {known.calls} calls had not ended  {last.map}  {in_words(last)}")


def _outcome(screen: Screen, before: CallView, view: CallView) -> str:
    """The state; of a call that cancelling came too late for, that it was so: a bare "succeeded" would mislead."""
    state = CallState(view.state)
    if CallState(before.state).terminal and before.phase == "debug":
        return "released"
    if CallState(before.state).terminal or (state.terminal and state != CallState.CANCELLED):
        return f"had ended already: {view.state}"
    return screen.state(view.state)


def _until_ended(views: list[CallView], first: CallView) -> CallView:
    return views[-1] if views else first


command = Command(
    "cancel",
    callback=cancel,
    help="End calls on all their ranks: SIGTERM, the function's grace, then SIGKILL; and the calls that were made from "
    "inside them. Of a map that was spawned, every call that has not ended. Cancelling twice is harmless.",
    params=[
        click.Argument(["calls"], nargs=-1, required=True, metavar="CALL|MAP…"),
        click.Option(["--wait"], is_flag=True, help="Return when every rank is gone."),
    ],
    examples=("gpuctl cancel c-0d5t…", "gpuctl cancel --wait c-0d5t… c-7rk2…", "gpuctl cancel m-3h8x…-1000"),
)
