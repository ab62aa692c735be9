"""Deaths of ranks: collected, written down at once, and each with the last that the rank wrote and said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from phalanx.core.clock import Clock
from phalanx.core.frames import Frame
from phalanx.core.stacks import main_thread
from phalanx_agent.keeper import telling
from phalanx_agent.keeper.channel import ChannelClosedError
from phalanx_agent.keeper.ending import Ending
from phalanx_agent.keeper.output import Spool
from phalanx_agent.keeper.ranks import RankProcess, append_durably, oom_kills, reap
from phalanx_agent.keeper.report import Death, Evidence


class Hears(Protocol):
    """The gang: it takes what a dead rank had still sent, tells the agent, and judges."""

    def from_rank(self, rank: RankProcess, frame: Frame) -> None: ...

    @property
    def tell(self) -> Callable[[Frame], None]: ...

    def judge(self) -> None: ...


@dataclass(slots=True)
class Deaths:
    """Those that the keeper caused itself are no evidence."""

    ranks: list[RankProcess]
    gang_dir: Path
    clock: Clock
    spool: Spool
    evidence: Evidence
    ending: Ending
    gang: Hears
    others: Callable[[int, int, int], None]
    """Takes pid, exit code and signal of children that are no ranks."""
    _oom_before: int = field(default_factory=oom_kills)

    def collect(self) -> None:
        """Buries who died. The first that nobody asked to end has the gang judged."""
        alive = {rank.pid: rank for rank in self.ranks if rank.alive}
        dead = reap()
        gone = [(alive[pid], code, number) for pid, code, number in dead if pid in alive]
        for rank, _, _ in gone:
            rank.alive = False  # all of them, before the first is judged: their pids are others' from now on
        for rank, exit_code, number in gone:
            self._died(rank, exit_code, number)
        for pid, exit_code, number in dead:
            if pid not in alive:
                self.others(pid, exit_code, number)

    def _died(self, rank: RankProcess, exit_code: int, number: int) -> None:
        expected = self.ending.begun
        died = self._death(rank, exit_code, number)
        if not expected:
            append_durably(self.gang_dir / "deaths.jsonl", died.as_dict())
            self._hear_last_words(rank)
            stack = rank.stack()
            if stack:
                self.evidence.stacks[rank.rank] = stack
            places = main_thread(stack)
            inside = bool(places) and places[0].is_of_collectives
            died = replace(self._death(rank, exit_code, number), in_collective=inside)
            self.evidence.add_death(died)
        self.gang.tell(telling.dead(died))
        if not expected:
            self.gang.judge()

    def _death(self, rank: RankProcess, exit_code: int, number: int) -> Death:
        return Death(
            rank=rank.rank,
            pid=rank.host_pid,
            exit_code=exit_code,
            signal=number,
            at_ms=self.clock.wall_ms(),
            last_lines=self.spool.last_lines(rank.rank),
            out_of_memory=number == 9 and not self.ending.begun and oom_kills() > self._oom_before,
        )

    def _hear_last_words(self, rank: RankProcess) -> None:
        """Reads what a dead rank still wrote and sent; a last reply counts."""
        self._drain(rank)
        try:
            while frames := rank.channel.receive():
                for frame in frames:
                    self.gang.from_rank(rank, frame)
        except ChannelClosedError:
            self.ending.loop.unwatch(rank.channel.fd)
        self._drain(rank)  # of a call that it had begun by itself

    def _drain(self, rank: RankProcess) -> None:
        for pipe in rank.pipes:
            if pipe.fd >= 0:
                pipe.drain(self.spool, reads=64)
