"""Clients of the data plane: who may speak, and what each of their frames means.

A connection begins with HELLO and a ticket that the control plane signed for this node. From then on it speaks for
one gang; it is closed when the token behind the ticket is revoked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from phalanx.core import tickets
from phalanx.core.clock import Clock
from phalanx.core.errors import AuthError, NotFoundError, PhalanxError
from phalanx.core.frames import Frame, Kind
from phalanx.core.sockets import close_fds
from phalanx.core.tickets import Ticket
from phalanx_agent.dataplane.calls import CallRecord, Origin
from phalanx_agent.dataplane.connection import Connection
from phalanx_agent.dataplane.failures import refusal
from phalanx_agent.dataplane.gang import Gang
from phalanx_agent.dataplane.lead import LeadGang
from phalanx_agent.dataplane.member import MemberGang
from phalanx_agent.dataplane.terminals import Terminals

SKEW_MS = 30_000
"""How far this node's wall clock may be ahead of the control plane's before its tickets look expired."""


class Door:
    """Checks tickets. Holds the key that this node shares with the control plane, and revoked token ids."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = b""
        self._revoked: set[str] = set()

    def set_key(self, key: bytes) -> None:
        self._key = key

    def revoke(self, token_id: str) -> None:
        self._revoked.add(token_id)

    def admit(self, text: str, *, kind: str, node_id: str) -> Ticket:
        """Returns the ticket. Raises AuthError. A peer's ticket is good for as long as its gang lives."""
        now = 0 if kind == "peer" else self._clock.wall_ms() - SKEW_MS
        ticket = tickets.verify(text, self._key, kind=kind, now_wall_ms=now)
        if ticket.node_id != node_id:
            raise AuthError(f"the ticket is for node {ticket.node_id}, this is {node_id}")
        if ticket.token_id and ticket.token_id in self._revoked:
            raise AuthError("the token behind this ticket was revoked")
        return ticket


class Plane(Protocol):
    """What a client needs of the data plane."""

    node_id: str
    door: Door

    def gang(self, gang_id: str) -> Gang | None: ...

    def follow(self, client: Client, frame: Frame, ticket: Ticket) -> None: ...

    def look(self, client: Client, frame: Frame, ticket: Ticket) -> None: ...

    def terminal(self, client: Client, frame: Frame, ticket: Ticket) -> Terminals: ...

    def client_gone(self, client: Client) -> None: ...


class Client:
    """One connection from outside: an SDK, a reader of logs, or the agent that leads a gang."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._connection: Connection | None = None
        self._ticket: Ticket | None = None
        self._lead: LeadGang | None = None
        self._member: MemberGang | None = None
        self._held: dict[bytes, list[int]] = {}
        self._terminals: set[Terminals] = set()
        """Of the gangs at which it has opened some."""
        self.lane = 0
        self.token_ids: set[str] = set()

    def attach(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def user(self) -> str:
        return self._ticket.user if self._ticket is not None else ""

    @property
    def takes_fds(self) -> bool:
        return self._connection is not None and self._connection.passes_fds

    @property
    def queued_bytes(self) -> int:
        return self._connection.queued_bytes if self._connection is not None else 0

    @property
    def open(self) -> bool:
        return self._connection is not None and self._connection.open

    def send(self, frame: Frame) -> None:
        if self._connection is not None:
            self._connection.send(frame)

    def close(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.close(reason)

    def holds(self, call: bytes) -> bool:
        """Says whether the client still reads a result in the ranks' memory."""
        return call in self._held

    def now_holds(self, call: bytes, slots: list[int]) -> None:
        if self.open:
            self._held[call] = slots

    def said(self, frame: Frame) -> None:
        """A frame that came over its lane. Calls of a client that has gone are not begun."""
        frame.flags = 0
        if self._connection is not None and (self.open or frame.kind is not Kind.CALL):
            self.on_frame(self._connection, frame)

    def on_frame(self, _connection: Connection, frame: Frame) -> None:
        kind = frame.kind
        if kind is Kind.CALL:
            self._call(frame)
        elif kind is Kind.ACK:
            self._ack(frame)
        elif kind is Kind.HELLO:
            self._guarded(frame, self._hello)
        elif kind is Kind.FOLLOW or (kind is Kind.LOOK and self._member is None):
            self._guarded(frame, self._of_call)
        elif kind is Kind.TERMINAL and self._member is None:
            self._guarded(frame, self._terminal)
        elif self._terminals and kind in (Kind.TYPED, Kind.CLOSED):
            self._typed(frame)
        elif kind is Kind.PING:
            self.send(Frame(Kind.PONG, frame.id, {"wall_ns": time.time_ns()}))
        elif self._member is not None:
            self._member.lead_said(frame)
        elif self._lead is not None:
            self._of_lead(self._lead, frame)

    def on_close(self, connection: Connection, _reason: str) -> None:
        if self._member is not None:
            self._member.lead_gone(connection)
        if self._lead is not None:
            for call, slots in self._held.items():
                self._lead.release(call, slots)
            self._lead.lanes.close(self.lane, self)
            self._lead.streams.reader_gone(self)
        self._held.clear()
        for terminals in self._terminals:
            terminals.gone(self)
        self._plane.client_gone(self)

    def _guarded(self, frame: Frame, act: Callable[[Frame], None]) -> None:
        try:
            act(frame)
        except PhalanxError as e:
            self.send(Frame(Kind.REFUSED, frame.id, refusal(e)))
        finally:
            close_fds(frame.fds)

    def _hello(self, frame: Frame) -> None:
        text = str(frame.meta.get("ticket", ""))
        peer = "fence" in frame.meta
        ticket = self._plane.door.admit(text, kind="peer" if peer else "call", node_id=self._plane.node_id)
        gang = self._plane.gang(ticket.gang_id)
        if gang is None:
            raise NotFoundError(f"gang {ticket.gang_id} is not on node {self._plane.node_id}")
        self._ticket = ticket
        self.token_ids.add(ticket.token_id)
        if peer:
            self._welcome_peer(gang, int(frame.meta["fence"]))
        else:
            if self._lead is not None:
                self._lead.lanes.close(self.lane, self)  # it says HELLO again
            self._welcome_client(gang, frame.fds)

    def _welcome_peer(self, gang: Gang, fence: int) -> None:
        if not isinstance(gang, MemberGang) or gang.spec.fence != fence or self._connection is None:
            raise AuthError(f"gang {gang.spec.gang_id} with fence {fence} has no part here that takes a lead")
        self._member = gang
        self.send(Frame(Kind.WELCOME, meta={"gang": gang.spec.gang_id, "window": 0, "node": self._plane.node_id}))
        gang.lead_connected(self._connection)

    def _welcome_client(self, gang: Gang, fds: list[int]) -> None:
        if not isinstance(gang, LeadGang):
            raise NotFoundError(f"gang {gang.spec.gang_id} takes calls on its lead node, not on {self._plane.node_id}")
        self._lead = gang
        self.lane = gang.lanes.open(self, fds) if fds and not gang.stopping else 0
        meta: dict[str, Any] = {"gang": gang.spec.gang_id, "window": gang.window, "node": self._plane.node_id}
        if self.lane and gang.straight:
            meta["straight"] = True
        self.send(Frame(Kind.WELCOME, meta=meta))

    def _of_call(self, frame: Frame) -> None:
        """What somebody may ask who may see a call: its output, and where its ranks stand."""
        text = str(frame.meta.get("ticket", ""))
        ticket = self._plane.door.admit(text, kind="logs", node_id=self._plane.node_id)
        self.token_ids.add(ticket.token_id)
        (self._plane.look if frame.kind is Kind.LOOK else self._plane.follow)(self, frame, ticket)

    def _terminal(self, frame: Frame) -> None:
        """For those who may also cancel the call."""
        text = str(frame.meta.get("ticket", ""))
        ticket = self._plane.door.admit(text, kind="debug", node_id=self._plane.node_id)
        self.token_ids.add(ticket.token_id)
        self._terminals.add(self._plane.terminal(self, frame, ticket))

    def _typed(self, frame: Frame) -> None:
        for terminals in self._terminals:
            terminals.typed(frame, self)

    def _call(self, frame: Frame) -> None:
        if self._member is not None:
            self._member.lead_said(frame)
            return
        if self._lead is None or self._ticket is None:
            close_fds(frame.fds)
            self.send(Frame(Kind.REFUSED, frame.id, {"error": "say HELLO with a ticket first", "code": "AUTH"}))
            return
        record = CallRecord(
            id=frame.id,
            origin=Origin.DIRECT,
            queue_key=f"client {id(self)}",
            user=self._ticket.user,
            timeout_ms=int(frame.meta.get("timeout_ms") or 0),
            body=frame.body,
            fds=frame.fds,
            fds_meta=frame.meta.get("fds") or [],
            client=self,
            lane=0 if self._lead.spec.streams else self.lane,
        )
        self._lead.call(record)

    def _ack(self, frame: Frame) -> None:
        if self._member is not None:
            self._member.lead_said(frame)
        elif self._lead is not None:
            self._lead.outcomes.acknowledged_by_client(frame.id)

    def _of_lead(self, lead: LeadGang, frame: Frame) -> None:
        if frame.kind is Kind.CREDIT:
            lead.streams.credit(self, frame)
        elif frame.kind is Kind.CANCEL and frame.meta.get("reason") == "closed":
            lead.streams.close(frame.id)
        elif frame.kind is Kind.CANCEL:
            grace_ms = int(frame.meta.get("grace_ms") or lead.spec.grace_ms)
            if not lead.cancel(frame.id, min(grace_ms, lead.spec.grace_ms)):
                self.send(Frame(Kind.UNKNOWN, frame.id))
        elif frame.kind is Kind.ASK:
            record = lead.table.get(frame.id)
            if record is not None:
                lead.outcomes.attach(record, self)
            elif lead.straight:
                lead.unheard.ask(frame.id, self)
            elif lead.state is None:
                self.send(Frame(Kind.BUSY, frame.id))  # its keeper has not yet said which calls it has
            else:
                self.send(Frame(Kind.UNKNOWN, frame.id, {"never_ran": lead.give_up(frame.id)}))
        elif frame.kind is Kind.RELEASE:
            self._held.pop(frame.id, None)
            lead.release(frame.id, [int(s) for s in frame.meta.get("slots") or []])
