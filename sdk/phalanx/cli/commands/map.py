"""gpuctl map: how far the calls of a spawned map have come."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import click

from phalanx.cli.exits import Exit
from phalanx.cli.options import Command, Session
from phalanx.cli.render import Screen
from phalanx.client import Client
from phalanx.core.errors import GetTimeoutError, NotFoundError
from phalanx.core.states import CallState
from phalanx.map_call import UNKNOWN, MapCall, progress

LOOK_AGAIN_S = 1.0
"""And a second more for each 10,000 calls."""
SHOWN = 10
COLUMNS = ("INPUT", "CALL", "STATE")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapView:
    """A map as it stands. ``unsuccessful``: input number, call and state of each call that ended otherwise."""

    map: str
    calls: int
    ended: int
    states: dict[str, int]
    unsuccessful: tuple[tuple[int, str, str], ...] = ()


def map_(session: Session, map_id: str, wait: bool) -> int:
    """Shows how many calls are in which state, and which failed; with ``wait`` when all have ended."""
    screen = session.screen()
    client = session.client()
    calls = MapCall.from_id(map_id)
    view = until_ended(screen, client, calls, session.timeout_s) if wait else as_it_stands(client, calls)
    if screen.look.json:
        screen.emit(view)
    else:
        screen.data(f"{view.map}  {view.ended} of {view.calls} calls have ended: {in_words(view)}")
        _show_unsuccessful(screen, view)
    return Exit.FAILED if wait and view.unsuccessful else Exit.OK


def as_it_stands(client: Client, calls: MapCall[object]) -> MapView:
    """Raises NotFoundError where not one of its calls is known."""
    found = list(calls.states(client))
    counted = progress(state for _, _, state in found)
    if found and counted.states.get(UNKNOWN) == len(found):
        raise NotFoundError(
            f"no call of map {calls.id} is known: it is another cluster's, or older than the history",
            hint="gpuctl ps --all",
        )
    bad = tuple(each for each in found if each[2] not in (UNKNOWN, CallState.SUCCEEDED) and CallState(each[2]).terminal)
    return MapView(map=calls.id, calls=counted.calls, ended=counted.ended, states=counted.states, unsuccessful=bad)


def until_ended(screen: Screen, client: Client, calls: MapCall[object], timeout_s: float | None) -> MapView:
    """Shows its progress until all calls that are known have ended. Raises GetTimeoutError."""
    until_s = time.monotonic() + timeout_s if timeout_s is not None else None
    while True:
        view = as_it_stands(client, calls)
        if view.ended + view.states.get(UNKNOWN, 0) == view.calls:
            screen.clear_status()
            return view
        screen.status(f"{view.ended} of {view.calls} calls have ended: {in_words(view)}")
        left_s = until_s - time.monotonic() if until_s is not None else threading.TIMEOUT_MAX
        if left_s <= 0:
            raise GetTimeoutError(f"map {calls.id} has not ended: {in_words(view)}", hint=f"gpuctl map {calls.id}")
        threading.Event().wait(min(left_s, LOOK_AGAIN_S + view.calls / 10_000))


def in_words(view: MapView) -> str:
    """Returns ``7 succeeded, 2 running``, in the order in which calls go through their states."""
    order = [*map(str, CallState), UNKNOWN]
    return ", ".join(f"{view.states[s]} {s}" for s in order if view.states.get(s)) or "no calls"


def _show_unsuccessful(screen: Screen, view: MapView) -> None:
    if not view.unsuccessful:
        return
    rows = [(str(number), call_id, screen.state(state)) for number, call_id, state in view.unsuccessful[:SHOWN]]
    screen.table(COLUMNS, rows, empty="")
    if len(view.unsuccessful) > SHOWN:
        screen.note(f"and {len(view.unsuccessful) - SHOWN} more: gpuctl map {view.map} --json")
    screen.note(f"what is known of one: gpuctl report {view.unsuccessful[0][1]}")


command = Command(
    "map",
    callback=map_,
    help="How far the calls of a map that was spawned (`f.spawn_map(...)`, its `.id`) have come, and which failed.",
    params=[
        click.Argument(["map_id"], metavar="MAP"),
        click.Option(["--wait"], is_flag=True, help="Return when all calls have ended; exit 1 where one failed."),
    ],
    examples=("gpuctl map m-3h8x…-1000", "gpuctl map m-3h8x…-1000 --wait", "gpuctl cancel m-3h8x…-1000"),
)
