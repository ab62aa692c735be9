"""A gang's part on its lead node: the admission queue, the calls at the ranks, and their outcomes.

A gang runs one call at a time, on all ranks. The lead hands calls to every node's keeper in one order, puts the nodes'
answers together, and ends the gang on all nodes at once when one fails. Each call's outcome is kept until whoever
waits for it has it: a client by ACK, the control plane by its own acknowledgement. An id is never run twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from phalanx.core.frames import LANE_BITS, Frame, Kind
from phalanx.core.messages import ErrorInfo
from phalanx.core.sockets import close_fds
from phalanx.core.states import Outcome
from phalanx_agent.dataplane import debugging, held, telling
from phalanx_agent.dataplane.admission import WINDOW, AdmissionQueue, retry_ms
from phalanx_agent.dataplane.bodies import OWN_SLOT
from phalanx_agent.dataplane.calljournal import CallJournal, open_calls
from phalanx_agent.dataplane.calls import CallRecord, CallTable, Origin, Step
from phalanx_agent.dataplane.facts import GangSnapshot, GangSpec
from phalanx_agent.dataplane.failures import cancelled, failure, infrastructure
from phalanx_agent.dataplane.gang import Emit, Gang, ended_error, is_error
from phalanx_agent.dataplane.lanes import LaneNumbers
from phalanx_agent.dataplane.links import Link, PeerLink
from phalanx_agent.dataplane.loop import Loop, now_ns
from phalanx_agent.dataplane.outcomes import Outcomes
from phalanx_agent.dataplane.replies import Replies
from phalanx_agent.dataplane.streams import Streams
from phalanx_agent.dataplane.suspects import Suspects
from phalanx_agent.dataplane.unheard import UnheardCalls

REPORT_AFTER_MS = 200
SHED_AFTER_MS = 1000
_CANCEL_SLACK_MS = 5000
_KEEPERS_OWN_MS = 500
"""Keepers end calls at their time limit themselves; this agent only makes sure."""
_WAITS_KEPT = 256


class LeadGang(Gang):
    """Runs the gang's calls. All methods belong to the data plane's thread."""

    def __init__(self, loop: Loop, spec: GangSpec, *, node_id: str, epoch: int, emit: Emit) -> None:
        super().__init__(loop, spec, node_id=node_id, epoch=epoch, emit=emit)
        self.queue = AdmissionQueue()
        self.table = CallTable()
        self.journal = CallJournal(spec.call_journal)
        self.ready = False
        self.sent: deque[CallRecord] = deque()
        self.replies: dict[bytes, Replies] = {}
        self.waits_ms: deque[float] = deque(maxlen=_WAITS_KEPT)
        self._drain: tuple[str, int] | None = None
        self._holds = False
        """A node holds its ranks for a call that failed, or all were asked to: nobody ends them for that failure."""
        self._outcomes = Outcomes(self)
        self.unheard = UnheardCalls(self)
        self.suspects = Suspects(self)
        self.streams = Streams(self)
        self.work_began: Callable[[], None] = lambda: None
        """Called when there is something to look after that nobody sent here."""
        self._links: list[Link] = [self.keeper]
        for i, peer in enumerate(spec.peers):
            link = PeerLink(loop, peer, gang_id=spec.gang_id, fence=spec.fence, on_frame=self._from_peer(i + 1))
            self._links.append(link)
        self.debugging = debugging.Debugging(len(self._links), lambda node, frame: self._links[node].send(frame))
        self.lanes = LaneNumbers(None if spec.peers else self.keeper.send)
        for record in open_calls(spec.call_journal):
            self.table.add(record)
            self.sent.append(record)

    # ---- calls coming in ----

    def call(self, record: CallRecord) -> None:
        """Takes in a direct call: runs it, answers from the table, or says BUSY."""
        known = self.table.get(record.id)
        if known is not None:
            close_fds(record.fds)
            self._outcomes.attach(known, record.client)
            return
        head_age = self._head_age_ms(now_ns())
        gone = self.stopping or self.table.is_settled(record.id, 0)
        size = record.body_bytes
        if gone or not self.queue.may_enter(in_flight=len(self.sent), head_age_ms=head_age, body_bytes=size):
            self.say_busy(record)
            self.unheard.never_came(record.id)
            return
        self._enter(record)
        self.unheard.has_come(record)

    def offer(self, record: CallRecord) -> None:
        """Takes in a durable call; the same offer again changes nothing, or says its outcome again."""
        if self.table.is_settled(record.id, record.fence):
            return
        known = self.table.get(record.id)
        if known is not None and known.attempt >= record.attempt:
            if known.step is Step.FINISHED:
                self._outcomes.tell_control(known)
            return
        if known is not None and known.step is not Step.FINISHED:
            self._turn_away(record, "an earlier attempt is still here")
            return
        if self.stopping or self.queue.draining:
            self._turn_away(record, "the gang is ending")
            return
        if known is not None:
            self._outcomes.forget(known.id)
        self._enter(record)

    def cancel(self, call: bytes, grace_ms: int, *, fence: int = 0) -> bool:
        """Takes back a call; False when it is not here, and then its offer under ``fence`` is not taken any more."""
        record = self.table.get(call)
        if record is None and self.unheard.is_asked(call):
            self.keeper.send(Frame(Kind.CANCEL, call, {"reason": "cancelled", "grace_ms": grace_ms}))
            return True
        if record is None:
            if fence:
                self.table.settle(call, fence)
            return False
        if record.step is Step.QUEUED:
            self.queue.remove(record)
            self.finish(record, cancelled(call))
        elif record.step is Step.SENT:
            self._cancel_running(record, "cancelled", grace_ms)
        return True

    def give_up(self, call: bytes) -> bool:
        """Says whether a direct call that is not here never ran. If so it will not, also where it still arrives."""
        return self.table.give_up(call)

    def say_busy(self, record: CallRecord) -> None:
        close_fds(record.fds)
        if record.client is not None:
            depth = len(self.queue) + len(self.sent)
            meta = {"depth": depth, "retry_ms": retry_ms(depth, self.queue.mean_ms), "draining": self.queue.draining}
            record.client.send(Frame(Kind.BUSY, record.id, meta))

    @property
    def window(self) -> int:
        return min(WINDOW, self.queue.window())

    @property
    def straight(self) -> bool:
        """Clients may send calls past this agent."""
        return self.lanes.keeper_answers and not self.spec.peers

    @property
    def outcomes(self) -> Outcomes:
        return self._outcomes

    def _enter(self, record: CallRecord) -> None:
        record.arrived_ns = now_ns()
        self.table.add(record)
        if self._may_send() and not len(self.queue):
            self._hand_over(record)
            return
        self.queue.push(record)
        self._pump()

    # ---- to the ranks ----

    def _may_send(self) -> bool:
        return self.ready and not self.stopping and len(self.sent) < self.queue.send_ahead

    def _pump(self) -> None:
        while len(self.queue) and self._may_send():
            record = self.queue.pop()
            if record is not None:
                self._hand_over(record)
        if self._drain is not None and not self.sent and not self.lanes and not self.stopping and not self._holds:
            self.stop_all(*self._drain)

    def _hand_over(self, record: CallRecord) -> None:
        now = now_ns()
        self.waits_ms.append((now - record.arrived_ns) / 1e6)
        record.step = Step.SENT
        if not self.sent:
            record.running_ns = now
        self.sent.append(record)
        if record.origin is Origin.OFFERED:
            self._report(record)
        if len(self._links) > 1:
            self.replies[record.id] = Replies(len(self._links))
        flags = record.lane << LANE_BITS
        frame = Frame(Kind.CALL, record.id, telling.call_meta(self, record), record.body, flags, record.fds)
        for link in self._links:
            link.send(frame)
        record.body = b""
        close_fds(record.fds)
        record.fds = []

    def timeout_ms(self, record: CallRecord) -> int:
        return record.timeout_ms or self.spec.timeout_ms

    def _report(self, record: CallRecord) -> None:
        """Makes it a logged call: the control plane hears that it runs."""
        record.reported = True
        self.journal.opened(record)
        self.emit(telling.began(record, gang_id=self.spec.gang_id, timeout_ms=self.timeout_ms(record)))

    # ---- from the ranks ----

    def on_frame(self, frame: Frame) -> None:
        if frame.kind is Kind.RESULT or frame.kind is Kind.FAILURE:
            self._reply(0, frame)
        elif frame.kind is Kind.ITEM:
            self.streams.item(0, frame)
        elif frame.kind is Kind.RELEASE:
            self._outcomes.released(frame)
        elif frame.kind is Kind.STARTED:
            self.unheard.runs(frame)
        elif frame.kind is Kind.UNKNOWN:
            self.unheard.never_came(frame.id)
        elif frame.kind is Kind.LANE:
            self.lanes.closed(frame.lane)
            self._pump()
        elif (client := self.lanes.client(frame.lane)) is not None:
            client.said(frame)

    def _from_peer(self, node: int) -> Any:
        def said(frame: Frame) -> None:
            if frame.kind in (Kind.RESULT, Kind.FAILURE):
                self._reply(node, frame)
            elif frame.kind is Kind.ITEM:
                self.streams.item(node, frame)
            elif frame.kind is Kind.ENDED:
                self._node_gone(node, ended_error(frame, self._links[node].node_id))
                self._links[node].close()
            elif frame.kind is Kind.SEEN or (frame.kind is Kind.RANK and "marks" in frame.meta):
                self.keeper.send(frame)
            elif frame.kind is Kind.RANK and frame.meta.get("event") in debugging.EVENTS:
                self.debugging.heard(node, frame)
            elif frame.kind is Kind.STATE:
                self.debugging.stands(node, frame)
            elif frame.kind is Kind.BLAME:
                self.blame(str(frame.meta.get("reason", "")))

        return said

    def _reply(self, node: int, frame: Frame) -> None:
        record = self.table.get(frame.id) or self.unheard.came(frame)
        if record is None and frame.meta.get("started") is False:
            self._links[node].send(Frame(Kind.ACK, frame.id))  # it was given back when its gang's end was told
            return
        if record is None:
            record = self.unheard.outcome(frame)
        if record.step is Step.FINISHED:
            close_fds(frame.fds)
            return
        replies = self.replies.get(frame.id)
        if frame.meta.get("started") is False:
            self._not_begun(node, record, replies)
            return
        if replies is None:
            self.finish(record, frame)
            return
        if frame.kind is Kind.RESULT:
            self.streams.ended(node, frame)
        replies.add(node, frame, now_ns(), self._links[node].node_id)
        if frame.meta.get("held"):
            self._holds = True
            held.hold_others(self._links, node, frame)
        elif replies.failed and not self._holds:
            self.stop_all("a rank failed", 0 if replies.outcome is Outcome.FAILED else self.spec.grace_ms)
        self._settle(record, replies)

    def _not_begun(self, node: int, record: CallRecord, replies: Replies | None) -> None:
        """A keeper ended before it handed the call to its ranks."""
        self._links[node].send(Frame(Kind.ACK, record.id))
        if replies is None:
            self._never_ran(record)
        else:
            replies.node_gone(node, None, now_ns())
            self._settle(record, replies)

    def _settle(self, record: CallRecord, replies: Replies) -> None:
        if not replies.complete(now_ns()):
            return
        if replies.never_ran:
            self._never_ran(record)
            return
        del self.replies[record.id]
        self.finish(record, replies.combine(record.id, returns_all=self.spec.returns_all))
        if replies.uneven:
            self.stop_all("uneven collectives", self.spec.grace_ms)

    def finish(self, record: CallRecord, outcome: Frame) -> None:
        """Ends the call, unless what came may turn out to be a GPU's fault."""
        judged = self.suspects.judged(record, outcome)
        if judged is not None:
            self.end_call(record, judged)
        elif record in self.sent:
            self._leave(record, outcome, now_ns())
            self._pump()

    def end_call(self, record: CallRecord, outcome: Frame) -> None:
        now = now_ns()
        outcome = self.streams.as_ended(record, outcome)
        was_sent = record.step is Step.SENT
        if not record.reported and (self.held or telling.is_listed(record, outcome)):
            self._report(record)  # whoever looks for what failed, or at a gang that is held, asks for it by this call
        if record.cancel_reason and outcome.kind is Kind.FAILURE and outcome.meta.get("outcome") == Outcome.FAILED:
            outcome.meta["outcome"] = record.cancel_reason  # whatever its ranks raised: it was told to end
        released = outcome.meta.get("released")
        if released and OWN_SLOT in released:
            outcome.meta["released"] = [s for s in released if s != OWN_SLOT]
        record.busy_ms, record.debug_ms = int(outcome.meta.get("busy_ms") or 0), self.paused_ms
        there = outcome.lane > 0 and outcome.lane == record.lane
        outcome.flags = 0
        self.table.finish(record, outcome, now)
        self._outcomes.deliver(record, there=there)
        self.unheard.has_come(record)
        self.touched_ns = now
        if was_sent:
            self._leave(record, outcome, now)
        self._pump()

    def _leave(self, record: CallRecord, outcome: Frame, now: int) -> None:
        sent = self.sent
        if sent and sent[0] is record:
            sent.popleft()
            if record.running_ns and outcome.kind is Kind.RESULT:
                self.queue.measured((now - record.running_ns) / 1e6)
        elif record in sent:
            sent.remove(record)
        if sent and not sent[0].running_ns:
            sent[0].running_ns = now

    def on_look(self, frame: Frame) -> None:
        for link in self._links[1:]:
            link.send(frame)

    # ---- ends ----

    def stop_all(self, reason: str, grace_ms: int) -> None:
        if self.stopping:
            return
        frame = Frame(Kind.STOP, meta={"reason": reason, "grace_ms": grace_ms})
        self.stop_local(reason, grace_ms)
        for link in self._links[1:]:
            link.send(frame)
        self._turn_all_away("the gang is ending")

    def drain(self, reason: str, grace_ms: int) -> None:
        self.queue.draining = True
        self._drain = (reason, grace_ms)
        self._turn_all_away("the gang is draining")
        self.lanes.close_all()
        self._pump()

    def on_held(self) -> None:
        self._holds = True
        self.queue.draining = True
        self._turn_all_away("the gang is held")

    def on_ended(self, frame: Frame, error: ErrorInfo) -> None:
        lost = bool(frame.meta.get("lost"))
        self._node_gone(0, error, lost=lost)
        self.unheard.end(error if lost else None)
        self._outcomes.flush()

    def _node_gone(self, node: int, reason: ErrorInfo, *, lost: bool = False) -> None:
        """A node's ranks ended. Its keeper has failed the call that ran; what it had not begun never ran."""
        error = reason if is_error(reason) else None
        self.stop_all("a rank failed" if error else "the gang ended", 0)
        head = self.sent[0] if self.sent else None
        for record in tuple(self.sent):
            may_have_run = lost and record is head
            replies = self.replies.get(record.id)
            if replies is not None:
                replies.node_gone(node, error, now_ns(), may_have_run=may_have_run)
                self._settle(record, replies)
            elif may_have_run:
                self.finish(record, failure(record.id, Outcome.FAILED, error or infrastructure("the gang ended")))
            else:
                self._never_ran(record)

    def _never_ran(self, record: CallRecord) -> None:
        self.sent.remove(record)
        self.replies.pop(record.id, None)
        self._give_back(record, "the gang ended before it ran")

    def _turn_all_away(self, reason: str) -> None:
        for record in self.queue.take_if(lambda _: True):
            self._give_back(record, reason)

    def _give_back(self, record: CallRecord, reason: str) -> None:
        """The call did not run: its client goes the durable way, or the control plane queues it again."""
        self.table.forget(record.id)
        if record.origin is Origin.OFFERED:
            self._turn_away(record, reason)
        else:
            self.say_busy(record)

    def _turn_away(self, record: CallRecord, reason: str) -> None:
        close_fds(record.fds)
        self.journal.closed(record)
        self.table.settle(record.id, record.fence)
        self.emit(telling.turned_away(record, gang_id=self.spec.gang_id, reason=reason))

    def _cancel_running(self, record: CallRecord, reason: str, grace_ms: int) -> None:
        if record.cancel_reason:
            return
        record.cancel_reason = reason
        record.cancel_by_ns = now_ns() + (grace_ms + _CANCEL_SLACK_MS) * 1_000_000
        for link in self._links:
            link.send(Frame(Kind.CANCEL, record.id, {"reason": reason, "grace_ms": grace_ms}))

    # ---- time ----

    @property
    def settled(self) -> bool:
        return not self.replies and not self.suspects.waiting

    def blame(self, reason: str) -> None:
        self.suspects.blame(reason)

    def check(self, now: int) -> None:
        self._check_head(now)
        for call, replies in tuple(self.replies.items()):
            record = self.table.get(call)
            if replies.failed and record is not None:
                self._settle(record, replies)
        slow = now - SHED_AFTER_MS * 1_000_000
        if self.ready and len(self.queue):
            for record in self.queue.take_if(lambda r: r.origin is Origin.DIRECT and r.arrived_ns < slow):
                self._give_back(record, "it waited too long")
        self.suspects.check(now)
        self.streams.check(now)
        self._outcomes.check(now)
        super().check(now)

    def _check_head(self, now: int) -> None:
        if not self.sent:
            return
        head = self.sent[0]
        age_ms = (now - head.running_ns) / 1e6
        if head.began and not head.reported and age_ms >= REPORT_AFTER_MS:
            self._report(head)
        timeout_ms = self.timeout_ms(head)
        if timeout_ms and not self.debug and age_ms >= timeout_ms + self.paused_ms + _KEEPERS_OWN_MS:
            self._cancel_running(head, "timed_out", self.spec.grace_ms)
        if head.cancel_by_ns and now > head.cancel_by_ns:
            head.cancel_by_ns = 0
            self.stop_all(f"a call did not end after it was {head.cancel_reason.replace('_', ' ')}", 0)

    def _head_age_ms(self, now: int) -> float:
        return (now - self.sent[0].running_ns) / 1e6 if self.sent else 0.0

    @property
    def at_work(self) -> bool:
        """Something here needs a look every few milliseconds."""
        return bool(self.sent or len(self.queue) or not self.settled or self._outcomes.waiting)

    # ---- taking over ----

    def on_state(self, frame: Frame) -> None:
        meta = frame.meta
        phase = str(meta.get("phase", ""))
        self.debugging.stands(0, frame)
        self.unheard.take_over(meta)
        self.streams.taken_over()
        self.lanes.keeper_answers = bool(meta.get("straight"))
        if meta.get("ending"):
            self.stopping = True
        self._become_ready(phase in ("ready", "busy"))

    def on_rank(self, frame: Frame) -> None:
        if frame.meta.get("event") in debugging.EVENTS:
            self.debugging.heard(0, frame)
        if frame.meta.get("rank") == -1 and frame.meta.get("event") == "ready":
            self._become_ready(True)

    def _become_ready(self, ready: bool) -> None:
        if ready:
            self.ready = True
            self._pump()

    def close(self) -> None:
        super().close()
        for link in self._links[1:]:
            link.close()
        self.journal.close()

    # ---- what others ask ----

    def to_all(self, frame: Frame) -> None:
        for link in self._links:
            link.send(frame)

    def release(self, call: bytes, slots: list[int]) -> None:
        """Gives a call's result memory back to the local ranks."""
        self.keeper.send(Frame(Kind.RELEASE, call, {"slots": slots}))

    def snapshot(self) -> GangSnapshot:
        return telling.snapshot(self)
