"""What a gang says at its end: of the call that ran, of those that waited, and of itself. It ends nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.sockets import close_fds
from phalanx.core.states import Phase
from phalanx_agent.keeper import telling, watching
from phalanx_agent.keeper.calls import Outcome, QueuedCall

if TYPE_CHECKING:
    from phalanx_agent.keeper.gang import Gang


def close(gang: Gang, *, clean: bool) -> Frame:
    """Nothing is left inside, or it cannot be killed: writes the report and returns ENDED."""
    assert gang.why is not None
    now = gang.clock.monotonic_ms()
    for rank in gang.ranks:
        for pipe in rank.pipes:
            if pipe.fd >= 0:
                pipe.drain(gang.spool, reads=1 << 14)
    gang.terminals.close_all("the gang has ended")
    begun = gang.ahead.begun_unseen()
    fail_running(gang, now)
    for call in begun:
        _end(gang, call, telling.may_have_begun(call.id, gang.config))
    fail_queued(gang)
    gang.debugging.all_over()
    gang.spool.end(complete=False)
    gang.counters.enter(Phase.TEARDOWN, now)
    gang.phase = "ended"
    deaths = list(gang.evidence.deaths.values())
    meta = telling.report(gang.why, clean=clean, counters=gang.counters.snapshot(now), deaths=deaths)
    telling.write_report(gang.gang_dir, meta)
    return Frame(Kind.ENDED, NO_ID, meta, gang.why.pickled)


def fail_running(gang: Gang, now: int) -> None:
    """Fails the call that runs with the reason of the gang's end."""
    assert gang.why is not None
    running = gang.book.running
    if running is not None:
        watching.write_report(gang, running)
        states, busy_ms = gang.judging.states, gang.busy_ms(now)
        failure = telling.failure_at_end(running.id, gang.why, gang.config, busy_ms, states)
        if gang.holding.on:
            failure.meta["held"] = True
        gang.finished(running.id, failure)


def fail_queued(gang: Gang) -> None:
    """Gives back the calls that wait: they never began."""
    while gang.book.queue:
        call = gang.book.queue.popleft()
        close_fds(call.fds)
        _end(gang, call, telling.never_began(call.id, gang.why, gang.config))


def _end(gang: Gang, call: QueuedCall, failure: Frame) -> None:
    gang.tell(failure if call.told else telling.straight(failure, call))
    gang.book.outcomes[call.id] = Outcome(failure)
