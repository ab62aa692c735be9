"""A call's time stands still while a rank waits at a breakpoint: its phase, its limit and its hang watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.states import Phase

if TYPE_CHECKING:
    from phalanx_agent.keeper.gang import Gang


def pause(gang: Gang, paused: bool) -> None:
    """``paused``: a rank of the gang waits, on whichever node; else none does any more."""
    call, now = gang.book.running, gang.clock.monotonic_ms()
    (gang.hang.pause if paused else gang.hang.resume)()  # the lead's also where its own ranks have returned
    if call is None or gang.phase != "busy":
        return
    gang.counters.enter(Phase.DEBUG if paused else Phase.BUSY, now)
    if paused:
        gang.loop.cancel("timeout")
    elif call.timeout_ms:
        due = gang.book.started_ms + call.timeout_ms + gang.debugging.paused_ms
        gang.loop.at("timeout", due, gang.timed_out)
