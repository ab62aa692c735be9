"""One term of leadership: commands in, durable batches out, until another leader has taken over.

    1. take what waits   2. decide it   3. append one batch   4. publish, answer   5. tell the agents

One append is under way at a time, and whatever comes meanwhile is the next batch: nobody waits for company, and under
load one fsync serves many. The state that is decided on is dropped unless the append went through.

Where calls wait already, further ones are accepted first and placed in a later batch: passes of the scheduler take a
quarter of the time at most, and none makes an accept wait unless it is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from phalanx.core.messages import Hello
from phalanx_control.controller_draft import Draft, Pending, draft_batch, place_what_waits, wants_pass
from phalanx_control.controller_parts import Parts
from phalanx_control.log.errors import BodiesOverCapError, FencedOutError, LogLostError, StoreUnavailableError
from phalanx_control.log.leadership import LeaderRecord
from phalanx_control.log.log import Batch
from phalanx_control.log.surely import append_surely
from phalanx_control.state.apply import apply_batch
from phalanx_control.state.commands import AgentSaid, Now, Submit, TakeOver, Tick
from phalanx_control.state.model import State
from phalanx_control.state.schemas import schema_of

_logger = logging.getLogger(__name__)

MAX_COMMANDS = 512
MAX_BODY_BYTES = 4 << 20
"""One batch takes at most so many commands, and bodies up to about this size."""
ANSWERS_FIRST_S = 0.001
"""Before a pass that nobody's command brings along, the answers of the batch before it leave."""
PASS_LATE_MS = 20
"""A pass that is so late goes with the commands that come, instead of behind them."""
PASS_REST = 3
PASS_REST_MIN_MS = 10
PASS_REST_MAX_MS = 50
"""After a pass of the scheduler, so many times its duration go to other work before one that can wait."""
MAX_WAITING = 20_000
"""Commands that may wait; further ones are turned away at once, with the advice to come again."""


class Term:
    """Leads in the epoch of ``record`` until the log refuses it."""

    def __init__(self, parts: Parts, record: LeaderRecord) -> None:
        self._log = parts.log
        self._clock = parts.clock
        self._rules = parts.rules
        self._timing = parts.timing
        self._feed = parts.feed
        self._facts = parts.facts
        self._delivery = parts.delivery
        self._peers = parts.peers
        self._make_snapshot = parts.make_snapshot
        self._record = record
        self._waiting: deque[Pending] = deque()
        self._news = asyncio.Event()
        self._over: asyncio.Future[FencedOutError | LogLostError] = asyncio.get_running_loop().create_future()
        self._base_log_ms = parts.feed.state.log_ms
        self._base_ms = parts.clock.monotonic_ms()
        self._owes_pass = False
        self._pass_at_ms = 0
        self.is_open = False
        """The take-over is durable: commands are taken."""

    def submit(self, pending: Pending) -> None:
        """Queues a command. Raises StoreUnavailableError when too many wait."""
        if len(self._waiting) >= MAX_WAITING:
            raise StoreUnavailableError(f"{MAX_WAITING} commands wait for the store", hint="try again in a second")
        self._waiting.append(pending)
        self._news.set()

    def fail_waiting(self, error: Exception) -> None:
        while self._waiting:
            self._waiting.popleft().resolve(error)

    def now(self) -> Now:
        """Returns log time: what the log says, and the monotonic time since this term began."""
        elapsed = self._clock.monotonic_ms() - self._base_ms
        writable = self._peers.writable(self._feed.state)
        return Now(log_ms=self._base_log_ms + elapsed, wall_ms=self._clock.wall_ms(), schema=writable)

    async def run(self) -> None:
        """Returns when another leader has taken over. Raises LogLostError when the store has lost batches."""
        loops = (self._renew_for_ever, self._commit_for_ever, self._tick_for_ever, self._snapshot_for_ever)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._until_over(loop)) for loop in loops]
                why = await self._over
                for task in running:
                    task.cancel()
        finally:
            self.is_open = False
        if isinstance(why, LogLostError):
            raise why
        _logger.warning("leadership lost", extra={"epoch": self._record.epoch, "why": str(why)})

    async def _until_over(self, loop: Callable[[], Awaitable[None]]) -> None:
        """The end of a term is told, not raised: a TaskGroup that fails hides a cancellation that comes meanwhile."""
        try:
            await loop()
        except (FencedOutError, LogLostError) as e:
            if not self._over.done():
                self._over.set_result(e)

    # ---- the loops ----

    async def _commit_for_ever(self) -> None:
        take_over = Pending(command=TakeOver(epoch=self._record.epoch, leader_id=self._record.leader_id))
        while not self.is_open:
            self.is_open = await self._commit([take_over])
            await asyncio.sleep(0 if self.is_open else self._timing.retry_s)
        _logger.info("leadership taken", extra={"epoch": self._record.epoch, "seq": self._feed.state.seq})
        while True:
            await self._commit(await self._take())

    async def _renew_for_ever(self) -> None:
        reachable = True
        while True:
            try:
                await self._log.renew(self._record.epoch, self._record.leader_id)
                reachable = True
            except StoreUnavailableError as e:
                if reachable:
                    _logger.warning("leadership not renewed", extra={"why": str(e)})
                reachable = False
            await asyncio.sleep(self._timing.renew_s if reachable else self._timing.retry_s)

    async def _tick_for_ever(self) -> None:
        ticks_per_repeat = max(1, round(self._timing.repeat_s / self._timing.tick_s))
        count = 0
        self._facts.begin_term()
        while True:
            await asyncio.sleep(self._timing.tick_s)
            self._facts.tick()
            if self.is_open and not any(isinstance(p.command, Tick) for p in self._waiting):
                self.submit(Pending(command=self._tick()))
                count += 1
                if count % ticks_per_repeat == 0:
                    self._say_again()

    async def _snapshot_for_ever(self) -> None:
        """Folding failed or the store was away: the log is longer for a while, nothing else."""
        if self._make_snapshot is None:
            return
        done = await self._snapshot_seq()
        while True:
            await asyncio.sleep(self._timing.snapshot_check_s)
            if self._feed.state.seq - done < self._timing.snapshot_every:
                continue
            try:
                snapshot = await self._make_snapshot()
                await self._log.trim(snapshot, epoch=self._record.epoch, leader_id=self._record.leader_id)
            except (StoreUnavailableError, OSError, ValueError, RuntimeError) as e:
                _logger.warning("snapshot failed", extra={"why": str(e)})
                continue
            done = snapshot.seq
            _logger.info("log trimmed", extra={"seq": done})

    # ---- one batch ----

    async def _take(self) -> list[Pending]:
        """Waits for a first command, or for a pass to be due, and returns all commands that have come by then."""
        while not self._waiting and not self._pass_is_due():
            self._news.clear()
            await self._news_or_pass()
        if not self._waiting:
            await asyncio.sleep(ANSWERS_FIRST_S)
        taken: list[Pending] = []
        size = 0
        while self._waiting and len(taken) < MAX_COMMANDS and size < MAX_BODY_BYTES:
            pending = self._waiting.popleft()
            if pending.answer is not None and pending.answer.cancelled():
                continue
            taken.append(pending)
            size += sum(len(data) for data in pending.bodies.values())
        return taken

    def _pass_is_due(self, *, behind: bool = False) -> bool:
        """``behind`` commands it is due when it is late."""
        late_ms = PASS_LATE_MS if behind else 0
        return self._owes_pass and self._clock.monotonic_ms() >= self._pass_at_ms + late_ms

    async def _news_or_pass(self) -> None:
        rest_s = max(1, self._pass_at_ms - self._clock.monotonic_ms()) / 1000
        try:
            async with asyncio.timeout(rest_s if self._owes_pass else None):
                await self._news.wait()
        except TimeoutError:
            return

    async def _commit(self, pendings: list[Pending]) -> bool:
        """Makes one batch durable and answers. False when the store did not take it and the askers were told so."""
        while True:
            draft = self._draft(pendings)
            if not draft.events:
                self._finish(draft, self._feed.state)
                return True
            try:
                await append_surely(self._log, self._batch(draft), draft.bodies, retry_s=self._timing.retry_s)
            except BodiesOverCapError as e:
                self._owes_pass = True
                pendings = _without_bodies_of(e, pendings)
            except StoreUnavailableError as e:
                self._owes_pass = True
                for pending in pendings:
                    pending.resolve(e)
                return False
            except (FencedOutError, LogLostError, asyncio.CancelledError):
                self._waiting.extendleft(reversed(pendings))
                raise
            else:
                self._publish(draft)
                return True

    def _draft(self, pendings: list[Pending]) -> Draft:
        state = self._feed.state
        draft = draft_batch(self._rules, state, pendings, now=self.now())
        wanted = wants_pass(draft, state)
        self._owes_pass = self._owes_pass or wanted == "later"
        if wanted == "now" or self._pass_is_due(behind=bool(pendings)):
            self._place(draft)
        return draft

    def _place(self, draft: Draft) -> None:
        began_ms = self._clock.monotonic_ms()
        place_what_waits(self._rules, draft, self._facts.idle_ms(draft.state))
        now_ms = self._clock.monotonic_ms()
        self._owes_pass = False
        rest_ms = PASS_REST * (now_ms - began_ms)
        self._pass_at_ms = now_ms + min(PASS_REST_MAX_MS, max(PASS_REST_MIN_MS, rest_ms))

    def _batch(self, draft: Draft) -> Batch:
        return Batch(
            seq=self._feed.state.seq + 1,
            epoch=self._record.epoch,
            leader_id=self._record.leader_id,
            log_ms=draft.now.log_ms,
            wall_ms=draft.now.wall_ms,
            events=tuple(draft.events),
            schema=schema_of(tuple(draft.events)),
        )

    def _publish(self, draft: Draft) -> None:
        before = self._feed.state
        after = apply_batch(draft.state, seq=before.seq + 1, log_ms=draft.now.log_ms, events=())
        self._feed.publish(tuple(draft.events), after)
        self._finish(draft, before)

    def _finish(self, draft: Draft, before: State) -> None:
        """Answers the askers, then tells the agents; what one of them could not be told is said again later."""
        for pending, outcome in draft.answers:
            pending.resolve(outcome)
        after = self._feed.state
        try:
            self._delivery.push(self._rules.outbox.messages_for(before, tuple(draft.events), after), after)
            for pending, _ in draft.answers:
                self._welcome(pending)
        except Exception:
            _logger.exception("agents were not told of a batch", extra={"seq": after.seq})

    # ---- agents ----

    def _welcome(self, pending: Pending) -> None:
        """After a Hello the agent is told all that it should be doing."""
        if isinstance(pending.command, AgentSaid) and isinstance(pending.command.message, Hello):
            node_id = pending.command.node_id
            self._facts.note_gangs(node_id, pending.command.message.gangs)
            self._tell_all(node_id)

    def _say_again(self) -> None:
        for node_id in self._delivery.attached:
            try:
                self._tell_all(node_id)
            except Exception:
                _logger.exception("agent was not told again", extra={"node": node_id})

    def _tell_all(self, node_id: str) -> None:
        state = self._feed.state
        messages = self._rules.outbox.reconcile(state, node_id, self._facts.gangs_on(node_id))
        self._delivery.push(((node_id, message) for message in messages), state)

    def _tick(self) -> Tick:
        state = self._feed.state
        return Tick(
            silent=self._facts.silent(state),
            gang_idle_ms=self._facts.idle_ms(state),
            meters=self._facts.due_meters(state),
            paused_ms=self._facts.paused_ms(state),
        )

    async def _snapshot_seq(self) -> int:
        try:
            snapshot = await self._log.snapshot()
        except StoreUnavailableError:
            return 0
        return snapshot.seq if snapshot else 0


def _without_bodies_of(error: BodiesOverCapError, pendings: list[Pending]) -> list[Pending]:
    """Answers the submissions that brought bodies of the full workspace, and returns the others."""
    others: list[Pending] = []
    for pending in pendings:
        command = pending.command
        if isinstance(command, Submit) and pending.bodies and command.owner.workspace == error.workspace:
            pending.resolve(error)
        else:
            others.append(pending)
    return others
