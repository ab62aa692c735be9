"""The parts of a gang that look at its ranks, put together; and the gang as STATE shows it. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx_agent.keeper import failure_report, pausing, reasons, telling
from phalanx_agent.keeper.calls import QueuedCall
from phalanx_agent.keeper.deaths import Deaths
from phalanx_agent.keeper.debugging import Debugging
from phalanx_agent.keeper.hang import HangWatch
from phalanx_agent.keeper.judging import Judge
from phalanx_agent.keeper.looking import Looker
from phalanx_agent.keeper.steps import StepWatch
from phalanx_agent.keeper.terminals import Terminals

if TYPE_CHECKING:
    from phalanx_agent.keeper.gang import Gang


def looker_of(gang: Gang) -> Looker:
    looker = Looker(
        gang.loop,
        gang.clock,
        gang.ranks,
        gang.config.node_id,
        bundle_dir=gang.config.bundle_dir,
        replied=lambda: _replied(gang),
    )
    looker.watch()
    return looker


def _replied(gang: Gang) -> dict[int, bool]:
    """Which ranks run no user code, and whether they ended well. Other nodes' may still run the last call."""
    if gang.holding.on:
        return gang.holding.replied
    if gang.book.running is None:
        return {r.rank: True for r in gang.ranks if r.ready}
    return {rank: reply.ok for rank, reply in gang.book.replies.items()}


def judge_of(gang: Gang, looker: Looker) -> Judge:
    return Judge(
        config=gang.config,
        loop=gang.loop,
        clock=gang.clock,
        ranks=gang.ranks,
        evidence=gang.evidence,
        looker=looker,
        during=gang.during,
        met=lambda: gang.phase != "starting",
        ended=lambda: gang.ending.begun or gang.holding.on,
        freeze=gang.freeze,
        end=gang.end,
    )


def hang_watch_of(gang: Gang, looker: Looker) -> HangWatch:
    return HangWatch(
        config=gang.config,
        loop=gang.loop,
        clock=gang.clock,
        looker=looker,
        output=lambda: gang.spool.written + gang.streams.signs,
        tell=gang.tell,
        running=lambda: gang.looked_at.hex(),  # noqa: PLW0108  it is another one each time
        stalled=gang.stalled,
        note=lambda text: gang.spool.note(gang.ranks[0].rank, text),
        hung=lambda error, states: reasons.hung(gang, error, states),
    )


def step_watch_of(gang: Gang) -> StepWatch:
    return StepWatch(
        config=gang.config,
        loop=gang.loop,
        clock=gang.clock,
        tell=gang.tell,
        running=lambda: gang.book.running.id.hex() if gang.book.running else "",
    )


def deaths_of(gang: Gang) -> Deaths:
    return Deaths(
        gang.ranks,
        gang.gang_dir,
        gang.clock,
        gang.spool,
        gang.evidence,
        gang.ending,
        gang,
        gang.terminals.shell_ended,
    )


def debugging_of(gang: Gang) -> Debugging:
    return Debugging(
        loop=gang.loop,
        clock=gang.clock,
        node_id=gang.config.node_id,
        running=lambda: gang.looked_at,
        tell=gang.tell,
        paused=lambda paused: pausing.pause(gang, paused),
        attached=lambda: gang.terminals.attached(),  # noqa: PLW0108  made below
        note=lambda rank, text: gang.terminals.note(rank, text),  # noqa: PLW0108
        log=gang.spool.note,
        end=gang.end,
    )


def terminals_of(gang: Gang) -> Terminals:
    return Terminals(
        loop=gang.loop,
        clock=gang.clock,
        ranks=gang.ranks,
        tell=gang.tell,
        debugging=gang.debugging,
        start_shell=gang.shells.start,
    )


def write_report(gang: Gang, call: QueuedCall) -> None:
    """Keeps what is known of the call that the gang's end ends."""
    assert gang.why is not None
    failure_report.write(
        gang.gang_dir,
        call,
        gang.why,
        config=gang.config,
        ranks=gang.ranks,
        evidence=gang.evidence,
        states=gang.judging.states,
        spool=gang.spool,
        steps=gang.steps.rows(),
        wall_ms=gang.clock.wall_ms(),
    )


def state_of(gang: Gang) -> dict[str, Any]:
    """Returns what a (new) agent is told first."""
    phase = gang.phase if gang.phase != "ending" else "busy" if gang.book.running else "ready"
    return {
        "gang": gang.config.gang_id,
        "fence": gang.config.fence,
        "pids": [r.host_pid for r in gang.ranks],
        "phase": phase,
        "ending": gang.ending.begun,
        "backend": gang.backend,
        "straight": True,
        **gang.debugging.meta(),
        "stopped": {str(rank): where for rank, where in gang.debugging.stopped.items()},
        **gang.holding.meta(),
        "counters": gang.counters.snapshot(gang.clock.monotonic_ms(), ended=gang.ended is not None),
        **telling.known_calls(gang.book),
    }
