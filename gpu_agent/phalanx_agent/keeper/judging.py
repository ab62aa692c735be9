"""Whose failure a gang's end is: waits a little for a better explanation than a victim's, looks at who lives, decides.

It decides once. From the moment it looks, nothing that follows from the failure can change what is said of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from phalanx.core.clock import Clock
from phalanx.core.collectives import RankState
from phalanx_agent.blame import judged
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.looking import Looker
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.report import Evidence, Verdict
from phalanx_agent.keeper.telling import Why

OTHERS_ANSWER_WITHIN_MS = 500
LOOK_WITHIN_MS = 150


@dataclass(slots=True)
class Judge:
    """``during`` ends the sentence about a death, ``met`` says that the group stood, ``ended`` that the end has begun.
    ``freeze`` keeps the gang from going on; ``end`` ends it.
    """

    config: GangConfig
    loop: Loop
    clock: Clock
    ranks: list[RankProcess]
    evidence: Evidence
    looker: Looker
    during: Callable[[], str]
    met: Callable[[], bool]
    ended: Callable[[], bool]
    freeze: Callable[[], None]
    end: Callable[[Why, int], None]
    deciding: bool = False
    states: list[RankState] = field(default_factory=list[RankState])
    """The local ranks when the gang's end was decided."""

    def others(self) -> None:
        """A rank failed: its siblings have half a second to say more."""
        self.loop.at("others", self.clock.monotonic_ms() + OTHERS_ANSWER_WITHIN_MS, self.judge)

    def judge(self) -> None:
        """Decides now, or a little later where nothing but victims is known."""
        if self.evidence.only_peers and len(self.evidence.failures) < len(self.ranks) and self._is_idle():
            self.loop.at("others", self.clock.monotonic_ms() + OTHERS_ANSWER_WITHIN_MS, self.now)
        else:
            self.now()

    def now(self) -> None:
        if self._is_idle():
            during, whole = self.during(), len(self.config.members) == 1 and self.met()
            self.look_first(lambda: self.decide(during, whole=whole))

    def look_first(self, then: Callable[[], None]) -> None:
        """Keeps where the ranks stand, and then goes on with the end."""
        self.deciding = True
        self.freeze()

        def told(states: list[RankState]) -> None:
            self.deciding = False
            self.states = states
            then()

        self.looker.look(told, full=True, within_ms=LOOK_WITHIN_MS)

    def _is_idle(self) -> bool:
        return not self.deciding and not self.ended()

    def decide(self, during: str, *, whole: bool = False) -> None:
        """Ends the gang for what is known of its ranks' failures."""
        verdict = self.evidence.verdict(during=during, whole=whole)
        if whole and self.evidence.only_mismatches:
            said = replace(verdict.error, pickled=verdict.pickled)
            error = judged(said, self.states)
            verdict = Verdict(error=replace(error, pickled=b""), pickled=error.pickled)
        grace_ms = 0
        if any(r.exits for r in self.ranks) and len(self.ranks) == 1:
            grace_ms = int(self.config.function.limits.grace_s * 1000)
        error = verdict.error
        why = Why("a rank failed", error=error, pickled=verdict.pickled, cause=error.cause, peer=verdict.peer)
        self.end(why, grace_ms)
