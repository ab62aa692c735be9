"""Watching a spawned call from a program, with the view of `gpuctl run`: ``vectors = attach(embed.spawn(texts))``.

`gpuctl run` sets how things look and whether Ctrl-C cancels; a plain script gets the defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from phalanx.call import Call
from phalanx.cli.exits import Exit
from phalanx.cli.follow import DetachedError, follow
from phalanx.cli.render import Look, Screen
from phalanx.cli.run_state import cost_line
from phalanx.connection import connect
from phalanx.core.views import CallView
from phalanx.logs import CallLogs, LogLine

R = TypeVar("R")


@dataclass(slots=True)
class Manner:
    """How calls are watched in this process."""

    look: Look = field(default_factory=Look)
    ranks: tuple[int, ...] = ()
    cancel_on_interrupt: bool = False
    timeout_s: float | None = None


class _Process:
    manner = Manner()


@dataclass(frozen=True, slots=True)
class CallSource:
    """A call of the SDK as the run view wants it."""

    call: Call[Any]
    passing: bool = False
    """Also what a line looks like that is being rewritten."""

    @property
    def call_id(self) -> str:
        return self.call.id

    def states(self) -> Iterator[CallView]:
        return connect().watch(self.call.id)

    def logs(self) -> Iterator[LogLine]:
        return CallLogs(connect(), self.call.id, passing=self.passing).live()

    def now(self) -> CallView:
        return self.call.status()

    def cancel(self) -> None:
        self.call.cancel(wait=False)


def set_manner(manner: Manner) -> None:
    """Decides how this process watches calls."""
    _Process.manner = manner


def attach(call: Call[R]) -> R:
    """Shows a call until it has ended, then its cost and page, and returns its value.

    Raises what the function raised. Ctrl-C detaches and ends the program with 130; pressed twice it cancels.
    """
    manner = _Process.manner
    screen = Screen(manner.look)
    _begin(screen, call)
    try:
        follow(
            CallSource(call, passing=screen.live and not manner.look.json),
            screen,
            timeout_s=manner.timeout_s,
            ranks=manner.ranks,
            cancel_on_interrupt=manner.cancel_on_interrupt,
        )
    except DetachedError:
        sys.exit(int(Exit.INTERRUPTED))
    _end(screen, call)
    return call.get()


def say(text: str) -> None:
    """One line of a program's own output, in the same manner; nothing with ``--json``."""
    if not _Process.manner.look.json:
        Screen(_Process.manner.look).data(text)


def _begin(screen: Screen, call: Call[Any]) -> None:
    if screen.look.json:
        screen.emit({"event": "accepted", "call_id": call.id, "page": page_of(call.id)})
        return
    screen.note(f"call {call.id}")
    screen.detail(f"page {page_of(call.id)}")


def _end(screen: Screen, call: Call[Any]) -> None:
    cost = call.cost()
    if screen.look.json:
        screen.emit({"event": "cost", "cost": cost, "page": page_of(call.id)})
        return
    screen.note(cost_line(cost))
    if page := page_of(call.id):
        screen.note(f"page {page}")


def page_of(call_id: str) -> str:
    """Returns the page's address; `gpuctl open` makes a link that signs in. Empty where the cluster has no page."""
    del call_id
    return connect().server_info().page
