"""Getting outcomes to those who wait for them, and forgetting them when they have arrived.

direct, short        RESULT to the client; its ACK forgets it; counted in the next direct report
direct, logged       RESULT to the client; its ACK (or two seconds without one) tells the control plane
offered              the control plane gets it; its acknowledgement forgets it
adopted              kept for whoever asks
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import id_text
from phalanx.core.messages import ErrorInfo
from phalanx.core.sockets import close_fds
from phalanx.core.states import Outcome
from phalanx_agent.dataplane.bodies import read_body, read_fds, slots_of
from phalanx_agent.dataplane.calls import CallRecord, Origin, Step
from phalanx_agent.dataplane.facts import CallEnded, DirectEnded
from phalanx_agent.dataplane.failures import error_from_meta

if TYPE_CHECKING:
    from phalanx_agent.dataplane.clients import Client
    from phalanx_agent.dataplane.lead import LeadGang

CLIENT_ACK_MS = 2000
_IDS_PER_REPORT = 1000
_EARLY_KEPT = 1000


class Outcomes:
    """The outcomes of one gang's calls."""

    def __init__(self, gang: LeadGang) -> None:
        self._gang = gang
        self._unacknowledged: deque[CallRecord] = deque()
        self._told: set[bytes] = set()
        self._short: dict[str, _Tally] = {}
        self._early: OrderedDict[bytes, None] = OrderedDict()
        """Acknowledged by a client that had them over its lane, before this agent heard of them."""

    @property
    def waiting(self) -> bool:
        """A client may still acknowledge a logged call."""
        return bool(self._unacknowledged)

    def deliver(self, record: CallRecord, *, there: bool = False) -> None:
        """A call has just finished. ``there``: the keeper has sent its outcome to the client that sent the call."""
        if record.origin is Origin.OFFERED:
            self.tell_control(record)
            if record.client is not None:
                self._to_client(record)
            return
        if not there:
            self._to_client(record)
        if record.reported and record.result is not Outcome.SUCCEEDED:
            self.tell_control(record)  # at once: whoever is told of a failure looks for it
        elif record.reported:
            self._unacknowledged.append(record)
        elif record.origin is Origin.DIRECT:
            self._short.setdefault(record.user, _Tally()).count(record)
        if self._early and record.id in self._early:
            del self._early[record.id]
            self.acknowledged_by_client(record.id)

    def attach(self, record: CallRecord, client: Client) -> None:
        """A client sent or asked for an id that is here: from now on it waits for the outcome."""
        record.client = client
        record.lane = 0  # the one that asks may be another than the one that sent it
        if record.step is Step.FINISHED:
            self._to_client(record)
        else:
            client.send(Frame(Kind.STARTED, record.id, {"queued": record.step is Step.QUEUED}))

    def acknowledged_by_client(self, call: bytes) -> None:
        """The client has the outcome."""
        record = self._gang.table.get(call)
        if record is None or record.step is not Step.FINISHED:
            self._early[call] = None
            if len(self._early) > _EARLY_KEPT:
                self._early.popitem(last=False)
            return
        if record.origin is Origin.OFFERED:
            return
        if not record.reported:
            self.forget(call)
        elif call not in self._told:
            self._tell(record, delivered=True)

    def acknowledged_by_control(self, call: bytes, attempt: int) -> None:
        """The control plane has made the outcome durable."""
        record = self._gang.table.get(call)
        if record is not None and record.attempt == attempt and record.step is Step.FINISHED:
            self._gang.journal.closed(record)
            self._gang.table.settle(call, record.fence)
            self.forget(call)

    def released(self, frame: Frame) -> None:
        """The ranks gave a client's memory back, before or after the outcome."""
        record = self._gang.table.get(frame.id)
        if record is not None and record.client is not None:
            record.client.send(frame)

    def tell_control(self, record: CallRecord) -> None:
        self._tell(record, delivered=False)

    def forget(self, call: bytes) -> None:
        """Lets go of the outcome here and at the keepers."""
        record = self._gang.table.forget(call)
        self._told.discard(call)
        if record is None:
            return
        if record.outcome is not None and record.outcome.fds:
            close_fds(record.outcome.fds)
            if record.client is None or not record.client.holds(call):
                self._gang.release(call, slots_of(record.outcome))
        self._gang.to_all(Frame(Kind.ACK, call))

    def check(self, now: int) -> None:
        """Tells the control plane what clients did not acknowledge in time, and forgets what is too old."""
        limit = now - CLIENT_ACK_MS * 1_000_000
        waiting = self._unacknowledged
        while waiting and (waiting[0].finished_ns < limit or waiting[0].id in self._told):
            record = waiting.popleft()
            if record.id not in self._told and self._gang.table.get(record.id) is record:
                self._tell(record, delivered=False)
        for record in self._gang.table.overdue(now):
            self._gang.table.settle(record.id, record.fence)
            self.forget(record.id)

    def flush(self) -> None:
        """The gang has ended: what clients did not acknowledge yet is told now, before the gang's end is."""
        while self._unacknowledged:
            record = self._unacknowledged.popleft()
            if record.id not in self._told and self._gang.table.get(record.id) is record:
                self._tell(record, delivered=False)

    def take_direct(self) -> list[DirectEnded]:
        """Returns what short direct calls added up to since the last time."""
        spec = self._gang.spec
        out = [
            DirectEnded(
                gang_id=spec.gang_id,
                fence=spec.fence,
                function_id=spec.function_id,
                user=user,
                succeeded=tally.succeeded,
                failed=tally.failed,
                busy_ms=tally.busy_ms,
                call_ids=tuple(id_text("c", raw) for raw in tally.ids),
            )
            for user, tally in self._short.items()
        ]
        self._short.clear()
        return out

    def _to_client(self, record: CallRecord) -> None:
        client = record.client
        if client is None or record.outcome is None:
            return
        if record.outcome.fds and not client.takes_fds:
            client.send(self._without_fds(record))
            return
        client.send(record.outcome)
        if record.outcome.fds:
            client.now_holds(record.id, slots_of(record.outcome))

    def _without_fds(self, record: CallRecord) -> Frame:
        """Reads the result out of the ranks' memory once; it is kept as bytes from then on."""
        outcome = record.outcome
        assert outcome is not None
        body = read_fds(outcome.fds, outcome.meta["fds"])
        self._gang.release(record.id, slots_of(outcome))
        close_fds(outcome.fds)
        meta = {k: v for k, v in outcome.meta.items() if k != "fds"}
        record.outcome = Frame(outcome.kind, outcome.id, meta, body)
        return record.outcome

    def _tell(self, record: CallRecord, *, delivered: bool) -> None:
        if record.outcome is None:
            return
        self._told.add(record.id)
        outcome = record.result
        error = ErrorInfo()
        body: bytes | bytearray | memoryview = b""
        if outcome is not Outcome.SUCCEEDED:
            pickled = bytes(read_body(record.outcome))
            error = error_from_meta(record.outcome.meta.get("error"), pickled=pickled, node_id=self._gang.node_id)
        elif not delivered:
            body = read_body(record.outcome)
        self._gang.emit(
            CallEnded(
                gang_id=self._gang.spec.gang_id,
                call_id=record.call_id,
                attempt=record.attempt,
                fence=record.fence,
                outcome=outcome,
                body=body,
                error=error,
                busy_ms=record.busy_ms,
                debug_ms=record.debug_ms,
                delivered=delivered,
            )
        )


class _Tally:
    """Short direct calls of one user since the last report."""

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        self.busy_ms = 0
        self.ids: list[bytes] = []

    def count(self, record: CallRecord) -> None:
        if record.outcome is not None and record.outcome.kind is Kind.RESULT:
            self.succeeded += 1
        else:
            self.failed += 1
        self.busy_ms += record.busy_ms
        if len(self.ids) < _IDS_PER_REPORT:
            self.ids.append(record.id)
