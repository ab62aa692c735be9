"""Why a gang ends without a failed rank: it was late, it hangs, a rank leaves, or no agent comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.collectives import RankState
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause
from phalanx_agent.keeper import telling
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.telling import Why

if TYPE_CHECKING:
    from phalanx_agent.keeper.gang import Gang


def late(gang: Gang) -> None:
    """Not all ranks were ready in time."""
    gang.end(telling.late_start([r.rank for r in gang.ranks if not r.ready], gang.config), 0)


def hung(gang: Gang, error: ErrorInfo, states: list[RankState]) -> None:
    gang.judging.states = states
    gang.end(Why("hang", error=error, cause=error.cause), 0)


def leaves(gang: Gang, rank: RankProcess, because: str) -> None:
    """The rank begins no other call: a SIGTERM that nobody asked for, or ``because``. A single rank's goes back."""
    if gang.ending.begun or gang.holding.on:
        return
    rank.exits = True
    running = gang.book.running
    if running is not None and gang.config.world_size == 1:
        gang.book.give_back()
        gang.memory.forget_call(running.id)
    if because:
        gang.end(Why(because), int(gang.config.function.limits.grace_s * 1000))
        return
    gang.evidence.add_failure(telling.terminated(rank.rank, "between calls", gang.config.node_id))
    gang.judging.now()


def abandoned(gang: Gang, grace_ms: int) -> None:
    """No agent came back."""
    text = f"no agent was there for {grace_ms} ms (disconnect_grace)"
    gang.end(Why("no agent", error=ErrorInfo(cause=Cause.INFRASTRUCTURE, message=text)), 1000)
