"""Slow ranks of a call that runs, told while it runs. The lead node's keeper watches for the whole gang.

It hears its own ranks' marks, and through the agents those of the other nodes, whose clocks the lead's agent compares
with its own (``ahead_us``). Marks alone say nothing of who waits: figures are worked out when collectives are told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.clock import Clock
from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.steps import RankSteps, StepBook, rows_to_json, slow_text
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.loop import Loop

SETTLE_MS = 300
"""By then every rank has told of the same collectives."""


@dataclass(slots=True)
class StepWatch:
    """``running`` names the call."""

    config: GangConfig
    loop: Loop
    clock: Clock
    tell: Callable[[Frame], None]
    running: Callable[[], str]
    _book: StepBook = field(default_factory=StepBook)
    _told: str = ""

    def begin(self) -> None:
        """A call was handed over."""
        self._book.clear()

    def end(self) -> None:
        """No call runs any more. Its figures stay for its report."""
        self.loop.cancel("steps")
        self._book.settle()
        self._tell("")

    def marked(self, rank: int, meta: dict[str, Any]) -> None:
        """A rank marked progress. It may be under any code's control: what does not fit says nothing."""
        if self.config.node_rank:
            return
        try:
            ahead_us = int(meta.get("ahead_us") or 0)
            marks = [(int(step), int(at_us) - ahead_us) for step, at_us in meta.get("marks", ())]
            entered = [(str(g), int(n), int(at) - ahead_us, int(took)) for g, n, at, took in meta.get("entered", ())]
        except (TypeError, ValueError, OverflowError):
            return
        self._book.marked(rank, marks)
        if entered:
            self._book.entered(rank, entered)
            self.loop.at("steps", self.clock.monotonic_ms() + SETTLE_MS, self._judge)

    def rows(self) -> tuple[RankSteps, ...]:
        """Returns the figures of the call that runs, or ran last; none on other nodes than the lead."""
        return self._book.rows(self._places())

    def asked(self, frame: Frame) -> None:
        """Somebody asks how long the ranks' steps take."""
        meta = {"steps": rows_to_json(self.rows()), "call": self.running()}
        self.tell(Frame(Kind.SEEN, frame.id, meta))

    def _judge(self) -> None:
        self._book.settle()
        self._tell(slow_text(self.rows()))

    def _tell(self, text: str) -> None:
        if text or self._told:
            self._told = text
            self.tell(Frame(Kind.RANK, NO_ID, {"rank": -1, "event": "slow", "reason": text}))

    def _places(self) -> dict[int, tuple[str, str]]:
        return {
            member.first_rank + local: (member.node_id, member.gpus[local] if len(member.gpus) == member.ranks else "")
            for member in self.config.members
            for local in range(member.ranks)
        }
