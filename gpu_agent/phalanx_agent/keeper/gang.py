"""One gang on one node, run: frames from the agent and from ranks in, calls handed over, deaths judged, outcomes told.

Single-threaded, holds no user code and imports no torch. Every rule about order lives here; reading, writing, forking
and killing live in the files beside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.frames import LANE_BITS, NO_ID, Frame, Kind
from phalanx.core.sockets import close_fds
from phalanx.core.states import Cause, Outcome, Phase
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper import bodies, closing, completing, reasons, telling, watching
from phalanx_agent.keeper.absence import Absence
from phalanx_agent.keeper.ahead import Ahead
from phalanx_agent.keeper.calls import CallBook, QueuedCall, Reply, failure_frame
from phalanx_agent.keeper.calls import Outcome as Finished
from phalanx_agent.keeper.channel import served
from phalanx_agent.keeper.counters import PhaseCounters
from phalanx_agent.keeper.deaths import Deaths
from phalanx_agent.keeper.debugging import ABANDONED, Debugging
from phalanx_agent.keeper.ending import Ending
from phalanx_agent.keeper.hang import HangWatch
from phalanx_agent.keeper.holding import Holding
from phalanx_agent.keeper.judging import Judge
from phalanx_agent.keeper.lanes import Lanes
from phalanx_agent.keeper.leftovers import Leftovers
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.outbox import Outbox
from phalanx_agent.keeper.output import OutputPipe, Spool
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.report import Evidence, error_to_dict
from phalanx_agent.keeper.shells import Shells
from phalanx_agent.keeper.steps import StepWatch
from phalanx_agent.keeper.straight import StraightCalls
from phalanx_agent.keeper.streams import LEFT, Streams, streams_of
from phalanx_agent.keeper.telling import Why
from phalanx_agent.keeper.terminals import Terminals

TELL_STARTED_AFTER_MS = 100


@dataclass(slots=True)
class Gang:
    """State and rules. ``tell`` sends a frame to the agent, ``tell_soon`` with others or before the next that is told;
    ``agent_keeps_up`` says whether it reads what it is told; ``leave`` makes the keeper exit."""

    config: GangConfig
    gang_dir: Path
    clock: Clock
    loop: Loop
    spool: Spool
    ranks: list[RankProcess]
    ending: Ending
    tell: Callable[[Frame], None]
    tell_soon: Callable[[Frame, bool], None]
    agent_keeps_up: Callable[[], bool]
    leave: Callable[[], None]
    shells: Shells
    leftovers: Leftovers
    counters: PhaseCounters
    book: CallBook
    evidence: Evidence
    absence: Absence
    phase: str = "starting"
    backend: str = ""
    why: Why | None = None
    ended: Frame | None = None
    lanes: Lanes = field(init=False)
    straight: StraightCalls = field(init=False)
    outbox: Outbox = field(init=False)
    streams: Streams = field(init=False)
    memory: bodies.Loans = field(default_factory=bodies.Loans)
    ready_ms: int = 0
    deaths: Deaths = field(init=False)
    judging: Judge = field(init=False)
    hang: HangWatch = field(init=False)
    debugging: Debugging = field(init=False)
    holding: Holding = field(init=False)
    terminals: Terminals = field(init=False)
    steps: StepWatch = field(init=False)
    ahead: Ahead = field(init=False)

    def __post_init__(self) -> None:
        self.lanes = Lanes(self.loop, self.tell)
        self.holding = Holding(self)
        self.ahead = Ahead(self)
        self.debugging = watching.debugging_of(self)
        self.terminals = watching.terminals_of(self)
        self.deaths = watching.deaths_of(self)
        self.streams = streams_of(self, self._interrupt)
        self.outbox = Outbox(self.loop, self.clock, self.book, lambda: self.straight.short, self.tell, self.tell_soon)
        self.straight = StraightCalls(
            book=self.book,
            lanes=self.lanes,
            timeout_ms=int(self.config.function.limits.timeout_s * 1000),
            idle=lambda: self.phase == "ready",
            running_ms=lambda: self.clock.monotonic_ms() - self.book.started_ms,
            agent_keeps_up=self.agent_keeps_up,
            hand_over=self.hand_over,
            tell_started=self._tell_started,
            tell_of=self.ahead.tell_of,
            tell=self.tell,
            flush=self.outbox.flush,
        )
        looker = watching.looker_of(self)
        self.judging = watching.judge_of(self, looker)
        self.hang = watching.hang_watch_of(self, looker)
        self.steps = watching.step_watch_of(self)

    # ---- from the agent ----

    def attached(self, frame: Frame) -> None:
        """A (new) agent: it hears the state, and everything that it has not acknowledged."""
        del frame
        self.absence.over()
        if self.ended is None and not self.ending.begun:
            self.absence.heard()
        self.outbox.attached()
        self.lanes.close_all()
        self.terminals.close_all("the node's agent was started again")
        if self.book.running is not None:
            self.book.running.told = True  # it stands in the state
        self.tell(Frame(Kind.STATE, NO_ID, watching.state_of(self)))
        for outcome in self.book.outcomes.values():
            self.tell(outcome.frame)
        if self.ended is not None:
            self.tell(self.ended)

    def agent_gone(self) -> None:
        """The connection to the agent ended, or there has not been one yet."""
        self.absence.begins(ended=self.ended is not None)

    def from_agent(self, frame: Frame) -> None:  # noqa: C901, PLR0912  one line for each kind
        match frame.kind:
            case Kind.CALL:
                self._offered(frame)
            case Kind.ACK:
                self._acknowledged(frame.id)
            case Kind.CREDIT:
                self.streams.credit(frame)
            case Kind.CANCEL:
                self._cancel(frame)
            case Kind.STOP:
                hold = bytes.fromhex(str(frame.meta.get("hold", "")))
                self.stop(str(frame.meta.get("reason", "")), int(frame.meta.get("grace_ms", 0)), hold)
            case Kind.RELEASE:
                self._release_results(frame.id)
            case Kind.LANE:
                self.lanes.change(frame)
            case Kind.ASK:
                self.straight.asked(frame.id)
            case Kind.LOOK:
                (self.steps if frame.meta.get("steps") else self.hang).asked(frame)
            case Kind.RANK:
                self.steps.marked(int(frame.meta["rank"]), frame.meta)
            case Kind.SEEN:
                self.hang.seen(frame)
            case Kind.TERMINAL | Kind.TYPED | Kind.CLOSED:
                self.terminals.from_agent(frame)
            case Kind.PAUSE:
                self.debugging.elsewhere(frame)
            case Kind.PING:
                self.tell(Frame(Kind.PONG, frame.id))
                if not self.ending.begun:
                    self.absence.heard()
            case _:
                close_fds(frame.fds)

    def stop(self, reason: str, grace_ms: int, hold: bytes = b"") -> None:
        """Ends the gang as asked, or holds it for a call. One that runs fails with the reason as its cause where that
        is one."""
        if hold and self.holding.on:
            return
        cause = Cause(reason) if reason in list(Cause) else Cause.INFRASTRUCTURE
        why = Why(reason or "stopped", cause=cause, hold=hold)
        if grace_ms or self.book.running is None or self.judging.deciding or self.ending.begun:
            self.end(why, grace_ms)
        elif hold:
            self.holding.heard_of(why)
            self.judging.look_first(
                lambda: self.judging.decide(self.during()) if self.evidence.order else self.end(why, 0)
            )
        else:
            self.judging.look_first(lambda: self.end(why, grace_ms))

    def _offered(self, frame: Frame) -> None:
        meta = frame.meta
        attempt, timeout_ms = int(meta.get("attempt", 1)), int(meta.get("timeout_ms", 0))
        lane = self.lanes.get(frame.lane)
        call = QueuedCall(frame.id, attempt, timeout_ms, meta, frame.body, frame.fds, lane)
        done = self.book.outcomes.get(frame.id)
        if done is not None or not self.book.offer(call):
            close_fds(frame.fds)
            if done is not None:
                self.tell(done.frame)
        elif self.ended is not None or self.holding.on:
            closing.fail_queued(self)
        else:
            self.hand_over()

    def _acknowledged(self, call_id: bytes) -> None:
        if call_id == NO_ID:
            if self.ended is not None:
                self.lanes.close_all()  # one may have been opened after the end
                self.leave()
            return
        outcome = self.book.outcomes.pop(call_id, None)
        if outcome is not None:
            close_fds(outcome.frame.fds)

    def _cancel(self, frame: Frame) -> None:
        outcome = Outcome.TIMED_OUT if frame.meta.get("reason") == "timed_out" else Outcome.CANCELLED
        call = self.book.withdraw(frame.id)
        if call is not None:
            close_fds(call.fds)
            error = error_to_dict(telling.ended_by(outcome, "while it waited", self.config.node_id))
            self.finished(frame.id, failure_frame(frame.id, outcome=outcome, error=error, busy_ms=0))
        elif self.book.running is not None and self.book.running.id == frame.id:
            end = self.streams.close if frame.meta.get("reason") == "closed" else self._interrupt
            end(outcome, int(frame.meta.get("grace_ms", 0)))
        elif self.ahead.has(frame.id):
            self.ahead.withdraw(frame)

    def _release_results(self, call_id: bytes) -> None:
        for rank in self.ranks:
            slots = rank.loaned_slots.pop(call_id, None)
            if slots and rank.alive:
                rank.channel.send(Frame(Kind.RELEASE, call_id, {"slots": slots}))

    # ---- calls ----

    def hand_over(self) -> None:
        """Gives the next call to every local rank, once all are ready and idle."""
        if self.phase != "ready":
            self.ahead.give()
            return
        now = self.clock.monotonic_ms()
        call = self.book.begin(now)
        if call is None:
            return
        if not call.given:
            frame = bodies.for_ranks(call)
            self.send_to_ranks(frame)  # the ranks first: while they wake up, the books are kept
            self.memory.lend(call.id, frame.meta, len(self.ranks))
            close_fds(frame.fds)
        self.phase = "busy"
        self.counters.enter(Phase.BUSY, now)
        self.spool.begin(call.id, call.attempt)
        self.streams.begin()
        self.loop.at("started", now + TELL_STARTED_AFTER_MS, self._tell_started)
        self.hang.begin()
        self.steps.begin()
        if call.timeout_ms:
            self.loop.at("timeout", now + call.timeout_ms, self.timed_out)
        self.debugging.begins()
        if call.given:
            self.ahead.begins(call)
        self.ahead.give()

    def send_to_ranks(self, frame: Frame) -> None:
        for rank in self.ranks:
            rank.channel.send(frame)
            if rank.channel.wants_write:
                self.loop.want_write(rank.channel.fd, True)

    def _tell_started(self) -> None:
        running = self.book.running
        if running is not None:
            elapsed = self.clock.monotonic_ms() - self.book.started_ms
            flags = running.lane.number << LANE_BITS if not running.told and running.lane is not None else 0
            running.told = True
            meta = {"busy_ms": elapsed, "timeout_ms": running.timeout_ms}
            self.tell(Frame(Kind.STARTED, running.id, meta, flags=flags))

    def timed_out(self) -> None:
        grace_ms = int(self.config.function.limits.grace_s * 1000)
        self.judging.look_first(lambda: self._interrupt(Outcome.TIMED_OUT, grace_ms))

    def stalled(self, reason: str) -> None:
        """Nothing goes on; "": it does again."""
        self.tell(Frame(Kind.RANK, NO_ID, {"rank": -1, "event": "stalled", "reason": reason}))

    def _interrupt(self, outcome: Outcome, grace_ms: int) -> None:
        timeout_ms = self.book.running.timeout_ms if self.book.running is not None else 0
        error = telling.ended_by(outcome, "while it ran", self.config.node_id, timeout_ms=timeout_ms)
        self.end(Why(str(outcome), outcome=outcome, error=error, cause=error.cause), grace_ms)

    def _replied(self, rank: RankProcess, frame: Frame) -> None:
        running = self.book.running
        if running is None or frame.id != running.id:
            self.holding.heard(rank.rank, frame)
            self.ahead.heard(frame)
            close_fds(frame.fds)
            return
        if frame.meta.get("withdrawn"):
            if not self.ending.begun and not self.judging.deciding:
                completing.pass_over(self)
            return
        self.debugging.goes_on(rank.rank)
        ok = frame.kind is Kind.RESULT
        if ok:
            self.streams.replied(rank, frame)
        last = self.book.reply(Reply(rank.rank, ok, frame.meta, frame.body, frame.fds))
        if not ok:
            rank.exits = rank.exits or bool(frame.meta.get("exits"))
            self.evidence.add_failure(telling.failure_of_rank(frame, asked=self.ending.begun))
        if self.ending.begun or self.judging.deciding:
            return
        if last:
            completing.complete(self)
        elif not ok:
            self.judging.others()

    @property
    def looked_at(self) -> bytes:
        """The call that runs, or for whose failure the gang is held; empty: none."""
        return self.book.running.id if self.book.running is not None else self.holding.call

    def busy_ms(self, now: int) -> int:
        """How long the call has run, waiting for people left out."""
        return now - self.book.started_ms - self.debugging.paused_ms

    def idle(self, now: int) -> None:
        """No call runs: its deadlines are off."""
        self.hang.rest()
        self.debugging.over()
        self.terminals.call_over()
        self.steps.end()
        for name in ("started", "timeout", "others", LEFT):
            self.loop.cancel(name)
        self.phase = "ready"
        self.counters.enter(Phase.IDLE_WARM, now)

    def finished(self, call_id: bytes, frame: Frame) -> None:
        """Tells whoever waits, and keeps the outcome."""
        running = self.book.running
        if running is None or running.id != call_id:
            self.tell(frame)
            self.book.outcomes[call_id] = Finished(frame)
            return
        self.outbox.deliver(running, frame)
        self.book.finish(Finished(frame))

    # ---- from ranks ----

    def rank_ready(self, rank: RankProcess, events: int) -> None:
        """The rank's socket has something, or room."""
        frames = served(self.loop, rank.channel, events)
        if frames is None:
            self.loop.unwatch(rank.channel.fd)
        for frame in frames or ():
            self.from_rank(rank, frame)

    def pipe_ready(self, pipe: OutputPipe) -> None:
        """A rank wrote."""
        if not pipe.drain(self.spool):
            self.loop.unwatch(pipe.fd)
            os.close(pipe.fd)
            pipe.fd = -1

    def from_rank(self, rank: RankProcess, frame: Frame) -> None:
        """One frame of a rank, which may be dead already."""
        match frame.kind:
            case Kind.ITEM:
                self.streams.item(rank, frame)
            case Kind.RESULT | Kind.FAILURE if frame.id != NO_ID:
                self._replied(rank, frame)
            case Kind.FAILURE:
                self.evidence.add_failure(telling.failure_of_rank(frame, asked=self.ending.begun))
                self.judge()
            case Kind.RANK:
                self._rank_event(rank, frame)
            case Kind.RELEASE:
                slot = self.memory.back(frame.id)
                if slot is not None:
                    self.tell(Frame(Kind.RELEASE, frame.id, {"slots": [slot]}))
            case _:
                close_fds(frame.fds)

    def _rank_event(self, rank: RankProcess, frame: Frame) -> None:
        event = frame.meta.get("event")
        if event in ("breakpoint", "goes_on"):
            self.debugging.heard(rank.rank, frame)
            return
        if event == "leaves":
            reasons.leaves(self, rank, str(frame.meta.get("because", "")))
            return
        now = self.clock.monotonic_ms()
        if event == "started":
            rank.host_pid = int(frame.meta["pid"])
            rank.started = True
        elif event == "progress":
            self.hang.marked()
            self.steps.marked(rank.rank, frame.meta)
        elif event == "context" and self.counters.phase is Phase.START:
            self.counters.enter(Phase.CONTEXT, now)
        elif event == "ready":
            rank.ready = True
            self.backend = str(frame.meta.get("backend", ""))
        self.tell(Frame(Kind.RANK, NO_ID, {**frame.meta, "rank": rank.rank, "pid": rank.host_pid}))
        if event == "ready" and all(r.ready for r in self.ranks) and self.phase == "starting":
            self._all_ready(now)

    def _all_ready(self, now: int) -> None:
        self.loop.cancel("startup")
        self.ready_ms = now
        self.idle(now)
        pids = [r.host_pid for r in self.ranks]
        self.tell(Frame(Kind.RANK, NO_ID, {"rank": -1, "event": "ready", "backend": self.backend, "pids": pids}))
        self.hand_over()

    # ---- deaths and the end ----

    def reap(self) -> None:
        self.deaths.collect()
        if self.ending.begun:
            self.ending.rank_gone()
        else:
            self.holding.rank_gone()

    def judge(self) -> None:
        """Something failed: waits a little for a better explanation than a victim's, then ends the gang."""
        self.judging.judge()

    def during(self) -> str:
        if self.book.running is not None:
            return "before returning a result"
        return "before it was ready" if self.phase == "starting" else "between calls"

    def end(self, why: Why, grace_ms: int) -> None:
        if self.ended is not None:
            return
        if self.judging.deciding:
            self.holding.heard_of(why)
            return
        if self.why is None and self.holding.takes(why):
            return
        self.why = self.why or why
        self.counters.enter(Phase.TEARDOWN, self.clock.monotonic_ms())
        self.absence.over()
        self.freeze()
        self.lanes.close_all()
        self.ending.begin(grace_ms)

    def freeze(self) -> None:
        """Nothing begins any more, and no deadline but the end's own counts."""
        self.phase = "ending"
        self.ahead.over()
        self.hang.end()
        self.steps.end()
        for name in ("startup", "started", "timeout", "others", "hold", ABANDONED, LEFT):
            self.loop.cancel(name)

    def all_gone(self, clean: bool) -> None:
        """Nothing is left inside, or it cannot be killed: the report is written, then told."""
        self.ended = closing.close(self, clean=clean)
        self.tell(self.ended)
