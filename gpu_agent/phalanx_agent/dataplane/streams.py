"""Streams of one gang at its lead agent: items on to the one reader of each, credits and leaves to the ranks.

A direct call's client is its reader from the start. An offered call is held at its ranks until somebody sends a CREDIT
for it. Whose reader is gone, or does not come, is closed; so is what a former agent had under way: its items are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.frames import Frame, Kind
from phalanx.core.messages import ErrorInfo
from phalanx.core.sockets import close_fds
from phalanx.core.states import Cause, Outcome
from phalanx_agent.dataplane.bodies import inline, read_body
from phalanx_agent.dataplane.calls import CallRecord, Step
from phalanx_agent.dataplane.failures import cancelled, failure
from phalanx_agent.dataplane.loop import now_ns
from phalanx_agent.keeper.merging import Merging

if TYPE_CHECKING:
    from phalanx_agent.dataplane.clients import Client
    from phalanx_agent.dataplane.lead import LeadGang

READER_WITHIN_MS = 30_000
_SLACK_MS = 5000


class Streams:
    """Empty for a gang whose function is no generator."""

    def __init__(self, gang: LeadGang) -> None:
        self._gang = gang
        self._here = gang.spec.streams
        self._merging: dict[bytes, Merging] = {}
        self._left: set[bytes] = set()

    # ---- up ----

    def item(self, node: int, frame: Frame) -> None:
        """A node's ranks have made an item. Where nobody reads any more it is dropped."""
        record = self._gang.table.get(frame.id)
        if record is None or record.client is None or record.step is Step.FINISHED:
            close_fds(frame.fds)
            return
        if self._gang.spec.returns_all and self._gang.spec.peers:
            self._merge(record, node, frame)
            return
        self._send(record.client, frame)

    def ended(self, node: int, frame: Frame) -> None:
        """A node has said RESULT."""
        merging = self._merging.get(frame.id)
        if merging is not None and not frame.meta.get("closed"):
            merging.end(node, int(frame.meta.get("items", 0)))
            self._check_even(merging)

    def as_ended(self, record: CallRecord, outcome: Frame) -> Frame:
        """Returns the outcome as its caller means it: what its reader left was cancelled, though its ranks are well."""
        merging = self._merging.pop(record.id, None)
        if merging is not None:
            merging.drop()
        self._left.discard(record.id)
        if outcome.kind is not Kind.RESULT or not outcome.meta.get("closed"):
            return outcome
        message = f"the stream's reader left; its ranks had made {outcome.meta.get('items', 0)} items"
        error = ErrorInfo(cause=Cause.CANCELLED, type_name="CallCancelledError", message=message)
        return failure(record.id, Outcome.CANCELLED, error, busy_ms=int(outcome.meta.get("busy_ms") or 0))

    # ---- down ----

    def credit(self, client: Client, frame: Frame) -> None:
        """The reader has taken items, or comes for an offered stream."""
        record = self._gang.table.get(frame.id)
        if record is None or record.client not in (None, client) or record.id in self._left:
            client.send(Frame(Kind.UNKNOWN, frame.id))
            return
        new = record.client is None
        record.client = client
        if record.step is Step.FINISHED:
            if new:
                self._gang.outcomes.attach(record, client)
        elif record.step is Step.SENT:
            self._gang.to_all(Frame(Kind.CREDIT, frame.id, {"taken": int(frame.meta.get("taken", 0))}))

    def close(self, call: bytes) -> None:
        """The reader has left: what waits does not begin, what runs ends at its next item."""
        record = self._gang.table.get(call)
        if record is None or record.step is Step.FINISHED or call in self._left:
            return
        if record.step is Step.QUEUED:
            self._gang.queue.remove(record)
            self._gang.finish(record, cancelled(call))
            return
        self._left.add(call)
        grace_ms = self._gang.spec.grace_ms
        record.cancel_by_ns = now_ns() + (grace_ms + _SLACK_MS) * 1_000_000
        self._gang.to_all(Frame(Kind.CANCEL, call, {"reason": "closed", "grace_ms": grace_ms}))

    def reader_gone(self, client: Client) -> None:
        """A client's connection has ended."""
        if self._here:
            for record in self._gang.table.records():
                if record.client is client:
                    self.close(record.id)

    def taken_over(self) -> None:
        """A former agent's streams are at the ranks: what it had of their items is lost."""
        if self._here:
            for record in tuple(self._gang.sent):
                self.close(record.id)

    def check(self, now: int) -> None:
        """Closes what nobody reads."""
        if self._here and self._gang.sent:
            head = self._gang.sent[0]
            if head.client is None and now - head.running_ns > READER_WITHIN_MS * 1_000_000:
                self.close(head.id)

    # ---- inside ----

    def _merge(self, record: CallRecord, node: int, frame: Frame) -> None:
        merging = self._merging.setdefault(record.id, Merging(1 + len(self._gang.spec.peers)))
        frames = merging.add(node, frame)
        if frames is not None:
            meta = {k: v for k, v in frames[0].meta.items() if k not in ("fds", "parts")}
            body = b"".join(read_body(f) for f in frames)
            meta["parts"] = [part for f in frames for part in f.meta.get("parts", [])]
            for each in frames:
                close_fds(each.fds)
            self._send(record.client, Frame(Kind.ITEM, record.id, meta, body))
        self._check_even(merging)

    def _check_even(self, merging: Merging) -> None:
        uneven = merging.uneven
        if uneven:
            self._gang.stop_all(f'with returns="all" every rank must yield as many items, but of the nodes {uneven}', 0)

    def _send(self, client: Client, frame: Frame) -> None:
        frame.flags = 0
        client.send(frame if client.takes_fds else inline(frame))
        close_fds(frame.fds)
