"""Calls at the ranks that this agent did not hand over: they came past it over a lane, or a former agent had them.

The keeper tells of them with their outcomes, when they have run for a while, or when it is asked: somebody may ask for
a call before this agent has heard of it, and then only the keeper knows whether it ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.core.frames import Frame, Kind
from phalanx.core.states import Outcome
from phalanx_agent.dataplane.calls import CallRecord, Origin, Step
from phalanx_agent.dataplane.failures import failure
from phalanx_agent.dataplane.loop import now_ns
from phalanx_agent.dataplane.replies import Replies

if TYPE_CHECKING:
    from phalanx.core.messages import ErrorInfo
    from phalanx_agent.dataplane.clients import Client
    from phalanx_agent.dataplane.lead import LeadGang


class UnheardCalls:
    """Of one gang."""

    def __init__(self, gang: LeadGang) -> None:
        self._gang = gang
        self._asked: dict[bytes, list[Client]] = {}
        self._lost: ErrorInfo | None = None

    # ---- the keeper tells of one ----

    def came(self, frame: Frame) -> CallRecord | None:
        """Takes in the call of which STARTED or an outcome says that it came over a lane; None where it did not."""
        client = self._gang.lanes.client(frame.lane or int(frame.meta.get("lane") or 0))
        if client is None:
            return None
        record = CallRecord(id=frame.id, origin=Origin.DIRECT, queue_key="", user=client.user, step=Step.SENT)
        record.client, record.lane, record.began = client, client.lane, True
        record.timeout_ms = int(frame.meta.get("timeout_ms") or 0)
        record.arrived_ns = now_ns()
        self._gang.waits_ms.append(0.0)
        self._gang.table.add(record)
        if frame.meta.get("waits"):
            self._gang.sent.append(record)
        else:
            self._first(record)
        return record

    def runs(self, frame: Frame) -> None:
        """STARTED: from now on it is watched like any other."""
        record = self._gang.table.get(frame.id) or self.came(frame)
        if record is None:
            return
        if frame.meta.get("waits"):
            self._answer(record)
            return
        record.began = True
        if not record.running_ns:
            record.running_ns = now_ns() - int(frame.meta.get("busy_ms") or 0) * 1_000_000
        if record.step is Step.SENT:
            self._gang.keeper.note_running(record.id, since_ns=record.running_ns)
        self._answer(record)
        self._gang.work_began()

    def outcome(self, frame: Frame) -> CallRecord:
        """An outcome that nobody here waits for: a client may ask for it."""
        record = self.came(frame)
        if record is None:
            record = self._adopted(frame.id)
            record.arrived_ns = record.running_ns = now_ns()
            if self._gang.spec.peers:
                self._gang.replies[record.id] = Replies(1 + len(self._gang.spec.peers))
        return record

    def take_over(self, state: dict[str, Any]) -> None:
        """The keeper has said which calls it has: what a former agent left here and is not there any more is gone."""
        gang = self._gang
        running = bytes.fromhex(str(state.get("running") or ""))
        queued = [bytes.fromhex(str(x)) for x in state.get("queued") or []]
        here = {bytes.fromhex(str(x)) for x in state.get("finished") or []} | {running, *queued}
        timeouts_ms = state.get("timeouts_ms") or {}
        if running:
            self.adopt_running(running, int(timeouts_ms.get(running.hex()) or 0))
        for call in queued:
            self.adopt(call, int(timeouts_ms.get(call.hex()) or 0))
        for record in tuple(gang.sent):
            if record.id not in here:
                gang.sent.remove(record)
                gang.table.forget(record.id)
        for record in gang.sent:
            record.running_ns = record.running_ns or now_ns()
            if gang.spec.peers:
                gang.replies[record.id] = Replies(1 + len(gang.spec.peers))

    def adopt_running(self, call: bytes, timeout_ms: int) -> None:
        """A former agent's, that the ranks are busy with."""
        record = self.adopt(call, timeout_ms)
        self._gang.sent.remove(record)
        self._first(record)
        record.running_ns, record.began = now_ns(), True

    def adopt(self, call: bytes, timeout_ms: int) -> CallRecord:
        """Takes over a call that a former agent handed to the keeper."""
        record = self._gang.table.get(call)
        if record is None:
            record = self._adopted(call)
            record.timeout_ms = timeout_ms
            self._gang.sent.append(record)
        self._gang.keeper.note_running(call)
        return record

    # ---- somebody asks for one ----

    def ask(self, call: bytes, client: Client) -> None:
        """Answers when the keeper has: it may have the call, and takes it no more where it has not."""
        if self._gang.ended:
            self._answer_at_end(call, [client])
            return
        self._asked.setdefault(call, []).append(client)
        self._gang.keeper.send(Frame(Kind.ASK, call))

    def is_asked(self, call: bytes) -> bool:
        """The keeper has not answered yet."""
        return call in self._asked

    def has_come(self, record: CallRecord) -> None:
        """It is known now: those who asked for it wait for its outcome."""
        self._answer(record)

    def never_came(self, call: bytes) -> None:
        """The keeper has said so."""
        for client in self._asked.pop(call, ()):
            client.send(self._unknown(call))

    def end(self, lost: ErrorInfo | None) -> None:
        """The gang has ended. ``lost``: its keeper could not say what became of its calls."""
        self._lost = lost
        for call in tuple(self._asked):
            self._answer_at_end(call, self._asked.pop(call))

    def _answer(self, record: CallRecord) -> None:
        for client in self._asked.pop(record.id, ()):
            self._gang.outcomes.attach(record, client)

    def _answer_at_end(self, call: bytes, clients: list[Client]) -> None:
        if self._lost is None or self._gang.table.is_settled(call, 0):
            for client in clients:
                client.send(self._unknown(call))
            return
        record = CallRecord(id=call, origin=Origin.DIRECT, queue_key="", user=clients[0].user, client=clients[0])
        record.arrived_ns = now_ns()
        self._gang.table.add(record)
        self._gang.finish(record, failure(call, Outcome.FAILED, self._lost))
        for client in clients[1:]:
            self._gang.outcomes.attach(record, client)

    def _unknown(self, call: bytes) -> Frame:
        return Frame(Kind.UNKNOWN, call, {"never_ran": self._gang.give_up(call)})

    def _adopted(self, call: bytes) -> CallRecord:
        record = CallRecord(id=call, origin=Origin.ADOPTED, queue_key="adopted", step=Step.SENT)
        self._gang.table.add(record)
        return record

    def _first(self, record: CallRecord) -> None:
        """It is the one that runs: what was thought to run waits."""
        sent = self._gang.sent
        if sent:
            sent[0].running_ns = 0
        sent.appendleft(record)
