"""The parts of a gang that look at its ranks, put together; and the gang as STATE shows it. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx_agent.keeper import telling
from phalanx_agent.keeper.hang import HangWatch
from phalanx_agent.keeper.judging import Judge
from phalanx_agent.keeper.looking import Looker

if TYPE_CHECKING:
    from phalanx_agent.keeper.gang import Gang


def looker_of(gang: Gang) -> Looker:
    looker = Looker(gang.loop, gang.clock, gang.ranks, gang.config.node_id, lambda: frozenset(gang.book.replies))
    looker.watch()
    return looker


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
        ended=lambda: gang.ending.begun,
        freeze=gang.freeze,
        end=gang.end,
    )


def hang_watch_of(gang: Gang, looker: Looker) -> HangWatch:
    return HangWatch(
        config=gang.config,
        loop=gang.loop,
        clock=gang.clock,
        looker=looker,
        output=lambda: gang.spool.written,
        tell=gang.tell,
        running=lambda: gang.book.running.id.hex() if gang.book.running else "",
        stalled=gang.stalled,
        note=lambda text: gang.spool.note(gang.ranks[0].rank, text),
        hung=gang.hung,
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
        "counters": gang.counters.snapshot(gang.clock.monotonic_ms(), ended=gang.ended is not None),
        **telling.known_calls(gang.book),
    }
