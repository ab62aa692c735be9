"""Hangs: nothing of a running call goes on although all of its ranks live. Told at half of the time, ended at the full.

A sign is a progress mark, a collective entered or completed, output, or a rank's reply. That processes live, or burn
time, is none. The lead node's keeper watches for the whole gang; it hears of the others' ranks through their agents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.clock import Clock
from phalanx.core.collectives import Finding, RankState, compare, describe, from_dict, stands, to_dict
from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import new_raw_id
from phalanx.core.messages import ErrorInfo, RankFailure
from phalanx.core.stacks import ranks_text, stack_text
from phalanx.core.states import Cause
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.looking import Looker
from phalanx_agent.keeper.loop import Loop

STALL_MS = 300_000
"""When a stall is told of calls without a hang_timeout, which are never ended for it."""
LIGHT_MS, FULL_MS = 500, 1000
_PEERS_MS = 3000
_SHORTEST_MS, _LONGEST_MS = 50, 5000
_LOOKS_PER_STALL = 5

Signs = list[Any]
Gathered = Callable[[list[RankState], Signs], None]


@dataclass(slots=True, eq=False)
class _Round:
    """A look at all nodes. It is told only when every node has answered: nobody is named on half of a picture."""

    id: bytes
    gathered: Gathered
    missing: int
    states: list[RankState] = field(default_factory=list[RankState])
    signs: dict[str, Signs] = field(default_factory=dict[str, Signs])


@dataclass(slots=True)
class HangWatch:
    """``output`` counts what local ranks wrote and yielded, ``running`` names the call; ``stalled`` tells a stall, ""
    that it is over, ``note`` puts a line into the output; ``hung`` ends the gang."""

    config: GangConfig
    loop: Loop
    clock: Clock
    looker: Looker
    output: Callable[[], int]
    tell: Callable[[Frame], None]
    running: Callable[[], str]
    stalled: Callable[[str], None]
    note: Callable[[str], None]
    hung: Callable[[ErrorInfo, list[RankState]], None]
    _marks: int = 0
    _counts: dict[int, Any] = field(default_factory=dict[int, Any])
    _running: bool = False
    _paused: bool = False
    _signs: list[Any] = field(default_factory=list[Any])
    _since_ms: int = 0
    _told: bool = False
    _round: _Round | None = None

    @property
    def limit_ms(self) -> int:
        return int(self.config.function.limits.hang_timeout_s * 1000)

    @property
    def stall_ms(self) -> int:
        return self.limit_ms // 2 or STALL_MS

    # ---- from the gang ----

    def begin(self) -> None:
        """A call was handed over."""
        if self.config.node_rank:
            return
        self._running = True
        self._paused = False
        self._signs = []
        self._since_ms = self.clock.monotonic_ms()
        self._told = False
        self._next()

    def rest(self) -> None:
        """The local ranks have returned. Over several nodes the watch goes on until all have."""
        if len(self.config.members) == 1:
            self.end()

    def end(self) -> None:
        """No call runs any more."""
        self._running = self._paused = False
        self._round = None
        if self._told:
            self._told = False
            self.stalled("")
        for name in ("hang", "peers"):
            self.loop.cancel(name)

    def pause(self) -> None:
        """A rank waits for somebody, on whichever node."""
        runs = self._running or self._paused
        self.end()
        self._paused = runs

    def resume(self) -> None:
        """It goes on, and so does a watch that was paused."""
        if self._paused:
            self.begin()

    def marked(self) -> None:
        """A local rank marked progress."""
        self._marks += 1

    def asked(self, frame: Frame) -> None:
        """A LOOK: another node's watch, or a person, asks about the local ranks."""

        def told(states: list[RankState]) -> None:
            ranks = [to_dict(s) for s in states]
            meta = {"ranks": ranks, "signs": self._local_signs(states), "call": self.running()}
            self.tell(Frame(Kind.SEEN, frame.id, meta))

        full = bool(frame.meta.get("full"))
        self.looker.look(told, full=full, within_ms=FULL_MS if full else LIGHT_MS)

    def seen(self, frame: Frame) -> None:
        """Another node's answer."""
        found = self._round
        if found is None or frame.id != found.id:
            return
        try:
            states = [from_dict(s) for s in frame.meta["ranks"]]
        except (KeyError, TypeError, ValueError):
            return
        self._add(found, states, frame.meta.get("signs") or [])

    # ---- looking ----

    def _next(self) -> None:
        every = min(_LONGEST_MS, max(_SHORTEST_MS, self.stall_ms // _LOOKS_PER_STALL))
        quiet = self.clock.monotonic_ms() - self._since_ms
        due = [t - quiet for t in (self.stall_ms, self.limit_ms) if t > quiet]
        self.loop.at("hang", self.clock.monotonic_ms() + min([every, *due]), self._look)

    def _look(self) -> None:
        self._gather(self._compared, full=False)

    def _gather(self, gathered: Gathered, *, full: bool) -> None:
        found = _Round(new_raw_id(), gathered, len(self.config.members))
        self._round = found
        if len(self.config.members) > 1:
            self.tell(Frame(Kind.LOOK, found.id, {"full": full}))
            self.loop.at("peers", self.clock.monotonic_ms() + _PEERS_MS, lambda: self._incomplete(found))

        def told(states: list[RankState]) -> None:
            self._add(found, states, self._local_signs(states))

        self.looker.look(told, full=full, within_ms=FULL_MS if full else LIGHT_MS)

    def _add(self, found: _Round, states: list[RankState], signs: Signs) -> None:
        if self._round is not found or not self._running:
            return
        found.states += states
        found.signs[states[0].node_id if states else ""] = signs
        found.missing -= 1
        if not found.missing:
            self._round = None
            self.loop.cancel("peers")
            found.states.sort(key=lambda s: s.rank)
            found.gathered(found.states, [found.signs[node] for node in sorted(found.signs)])

    def _incomplete(self, found: _Round) -> None:
        """Some node did not answer in time. Its agent may be away for a moment: nothing is decided without it."""
        if self._round is found:
            self._round = None
            self._next()

    def _local_signs(self, states: list[RankState]) -> Signs:
        for state in states:
            if state.answered:
                self._counts[state.rank] = [state.entered, state.completed]
        counts = [[s.rank, s.replied, self._counts.get(s.rank)] for s in states]
        return [self._marks, self.output(), counts]

    # ---- judging ----

    def _compared(self, states: list[RankState], signs: Signs) -> None:
        if all(s.replied for s in states):
            self.end()
            return
        now = self.clock.monotonic_ms()
        if signs != self._signs:
            self._since_ms = now
            if self._told:
                self._told = False
                self.stalled("")
                self.note("it goes on")
        self._signs = signs
        quiet_ms = now - self._since_ms
        if self.limit_ms and quiet_ms >= self.limit_ms:
            self._gather(self._judge, full=True)
        elif quiet_ms >= self.stall_ms and not self._told:
            self._told = True
            self._gather(self._tell_stall, full=True)
        else:
            self._next()

    def _tell_stall(self, states: list[RankState], signs: Signs) -> None:
        del signs
        quiet_s = (self.clock.monotonic_ms() - self._since_ms) / 1000
        text = f"no progress for {quiet_s:.3g} s: {describe(states)}"
        self.stalled(text)
        self.note(text)
        self._next()

    def _judge(self, states: list[RankState], signs: Signs) -> None:
        if signs != self._signs:
            self._compared(states, signs)  # it went on in the last moment
            return
        self.hung(hang_error(compare(states, world_size=self.config.world_size), states, self.config), states)


def hang_error(finding: Finding, states: list[RankState], config: GangConfig) -> ErrorInfo:
    """Returns what the caller is told of a gang that did not go on."""
    limit_s = config.function.limits.hang_timeout_s
    odd = finding.culprits
    who = f"{ranks_text(odd)} did not go on with the others" if odd else "which rank is at fault cannot be told"
    if config.world_size == 1:
        who = "the function did not go on"
    first = odd[0] if odd else -1
    by_rank = {s.rank: s for s in states}
    return ErrorInfo(
        cause=Cause.HANG,
        type_name="GangHangError",
        message=f"no progress for hang_timeout={limit_s:g} s, and the gang was ended: {who}; {finding.text}",
        traceback=stack_text(by_rank[first].places) if first in by_rank else "",
        rank=first,
        node_id=by_rank[first].node_id if first in by_rank else config.node_id,
        ranks=tuple(_failure(s, culprit=s.rank in odd) for s in states),
    )


def _failure(state: RankState, *, culprit: bool) -> RankFailure:
    return RankFailure(
        rank=state.rank,
        node_id=state.node_id,
        culprit=culprit,
        message=stands(state),
        traceback=stack_text(state.places),
    )
