"""The data plane as the rest of the agent sees it: a thread with a Unix and a TLS listener and the gangs of this node.

Every public method may be called from any thread; nothing here touches asyncio. Events come out through ``emit``,
which is called on the data plane's thread and must only hand them over.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.errors import AuthError, NotFoundError
from phalanx.core.frames import ATTACH, Frame
from phalanx.core.ids import id_raw
from phalanx.core.tickets import Ticket
from phalanx_agent.dataplane.calls import CallRecord, Step
from phalanx_agent.dataplane.clients import Client, Door
from phalanx_agent.dataplane.connection import Connection
from phalanx_agent.dataplane.facts import DirectEnded, GangSnapshot, GangSpec, PlaneEvent
from phalanx_agent.dataplane.follow import EVERY_MS, Follower
from phalanx_agent.dataplane.gang import Gang
from phalanx_agent.dataplane.lead import LeadGang
from phalanx_agent.dataplane.loop import Loop, now_ns
from phalanx_agent.dataplane.member import MemberGang
from phalanx_agent.dataplane.terminals import Terminals

log = logging.getLogger(__name__)

BUSY_CHECK_MS = 20
IDLE_CHECK_MS = 1000
CLIENT_QUEUE_BYTES = 256 << 20
_BACKLOG = 512
EXIT_BUG = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneSettings:
    """Where the data plane listens. With port 0 it takes ``former_port`` where that is free, else any."""

    node_id: str
    epoch: int
    unix_path: Path
    host: str
    port: int
    former_port: int = 0
    """Leads of running gangs know the former agent's port: taking it again lets them come back."""
    shells: bool = True
    """People may open shells beside ranks."""
    open_spool: Callable[[str, str], tuple[int, int] | None]
    """(gang id, call id) → a descriptor of the spool that holds the call's output, and where in it to begin to look."""


class DataPlane:
    """Start it, open gangs, offer calls; stop it last. Gangs survive its end."""

    def __init__(self, settings: PlaneSettings, *, clock: Clock, emit: Callable[[PlaneEvent], None]) -> None:
        self.node_id = settings.node_id
        self.door = Door(clock)
        self.port = 0
        self._settings = settings
        self._emit = emit
        self._loop = Loop()
        self._gangs: dict[str, Gang] = {}
        self._clients: set[Client] = set()
        self._followers: list[Follower] = []
        self._following = False
        self._tls: ssl.SSLContext | None = None
        self._listeners: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, name="data-plane", daemon=True)
        self._busy_timer = False

    # ---- life ----

    def start(self, tls: ssl.SSLContext | None) -> None:
        """Binds both listeners and starts the thread. Raises OSError where an address is taken.

        Without a certificate yet, TLS connections are closed at once.
        """
        self._tls = tls
        self._listen_unix()
        self._listen_tcp()
        self._loop.later(IDLE_CHECK_MS, self._slow_check)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; keepers and ranks go on. Once is enough."""
        if not self._thread.is_alive():
            return
        self._loop.post(self._close_all)
        self._loop.stop()
        self._thread.join(timeout=5)
        self._loop.close()

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """New TLS connections get this certificate."""
        self._loop.post(lambda: setattr(self, "_tls", tls))

    def set_ticket_key(self, key: bytes) -> None:
        self._loop.post(lambda: self.door.set_key(key))

    def revoke(self, token_id: str) -> None:
        """Refuses the token's tickets and closes what they opened."""
        self._loop.post(lambda: self._revoke(token_id))

    # ---- gangs ----

    def open_gang(self, spec: GangSpec) -> Future[None]:
        """Attaches to the gang's keeper. The future holds OSError when it is not there."""
        return self._loop.ask(lambda: self._open_gang(spec))

    def close_gang(self, gang_id: str) -> None:
        """Lets go of a gang that has ended."""
        self._loop.post(lambda: self._close_gang(gang_id))

    def stop_gang(self, gang_id: str, reason: str, grace_ms: int, *, drain: bool = False) -> None:
        self._loop.post(lambda: self._stop_gang(gang_id, reason, grace_ms, drain=drain))

    def blame(self, gang_id: str, reason: str) -> None:
        """A GPU of the gang has failed."""
        self._loop.post(lambda: self._blame(gang_id, reason))

    def offer(self, gang_id: str, record: CallRecord) -> Future[bool]:
        """Puts a durable call into the queue; the answer is False when the gang is not led here."""
        return self._loop.ask(lambda: self._offer(gang_id, record))

    def cancel(self, gang_id: str, call_id: str, grace_ms: int, *, fence: int = 0) -> Future[bool]:
        """Takes a call back; the answer is False when it is not here. ``fence``: of the offer, should it still come."""
        return self._loop.ask(lambda: self._cancel(gang_id, call_id, grace_ms, fence))

    def acknowledge(self, gang_id: str, call_id: str, attempt: int) -> None:
        """The control plane has the call's outcome."""
        self._loop.post(lambda: self._acknowledge(gang_id, call_id, attempt))

    def ping_keepers(self) -> None:
        """Tells every keeper that the agent lives, its event loop and this thread alike."""
        self._loop.post(self._ping_keepers)

    def snapshots(self) -> Future[list[GangSnapshot]]:
        """Returns the fast facts of every gang that is led here, and of the others what their keepers tell."""
        return self._loop.ask(self._snapshots)

    def take_direct(self) -> Future[list[DirectEnded]]:
        """Returns what short direct calls added up to since the last time."""
        return self._loop.ask(self._take_direct)

    # ---- what clients need (data plane's thread) ----

    def gang(self, gang_id: str) -> Gang | None:
        return self._gangs.get(gang_id)

    def follow(self, client: Client, frame: Frame, ticket: Ticket) -> None:
        call_id = str(frame.meta.get("call") or ticket.call_id)
        if call_id != ticket.call_id:
            raise AuthError(f"the ticket opens the output of {ticket.call_id}, not of {call_id}")
        found = self._settings.open_spool(ticket.gang_id, call_id)
        if found is None:
            raise NotFoundError(f"node {self.node_id} holds no output of {call_id}")
        fd, begins = found
        raw = id_raw(call_id)
        follower = Follower(
            reader=client,
            request=frame.id,
            fd=fd,
            call=raw,
            node_id=self.node_id,
            offset=max(begins, int(frame.meta.get("offset") or 0)),
            live=bool(frame.meta.get("follow", True)),
            over=lambda: self._call_is_over(ticket.gang_id, raw),
        )
        self._followers.append(follower)
        self._step_followers()

    def look(self, client: Client, frame: Frame, ticket: Ticket) -> None:
        gang = self._living_gang(ticket)
        gang.looks.ask(frame.id, client.send, steps=bool(frame.meta.get("steps")))

    def terminal(self, client: Client, frame: Frame, ticket: Ticket) -> Terminals:
        gang = self._living_gang(ticket)
        if frame.meta.get("mode") != ATTACH and not self._settings.shells:
            raise AuthError(f"shells are switched off on node {self.node_id} (its agent runs with --no-shells)")
        frame.meta["call"] = ticket.call_id
        gang.terminals.open(frame, client, user=ticket.user)
        return gang.terminals

    def _living_gang(self, ticket: Ticket) -> Gang:
        gang = self._gangs.get(ticket.gang_id)
        if gang is None or gang.ended:
            raise NotFoundError(f"no rank of {ticket.call_id} runs on node {self.node_id} any more")
        return gang

    def client_gone(self, client: Client) -> None:
        self._clients.discard(client)

    # ---- inside ----

    def _run(self) -> None:
        """A bug here ends the whole agent: whoever starts it again adopts the keepers, which nothing has touched."""
        try:
            self._loop.run()
        except Exception:
            log.exception("the data plane ended, and the agent with it")
            os._exit(EXIT_BUG)

    def _listen_unix(self) -> None:
        path = self._settings.unix_path
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(str(path))
        path.chmod(0o600)
        self._accept_from(listener, secure=False)

    def _listen_tcp(self) -> None:
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bind(listener)
        self.port = int(listener.getsockname()[1])
        self._accept_from(listener, secure=True)

    def _bind(self, listener: socket.socket) -> None:
        host, port = self._settings.host, self._settings.port
        if not port and self._settings.former_port:
            with contextlib.suppress(OSError):
                listener.bind((host, self._settings.former_port))
                return
        listener.bind((host, port))

    def _accept_from(self, listener: socket.socket, *, secure: bool) -> None:
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._listeners.append(listener)
        self._loop.register(listener.fileno(), lambda _events: self._accept(listener, secure=secure))

    def _accept(self, listener: socket.socket, *, secure: bool) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            sock, _address = listener.accept()
            if secure and self._tls is None:
                sock.close()
                return
            if secure:
                assert self._tls is not None
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setblocking(False)
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            client = Client(self)
            self._clients.add(client)
            connection = Connection(
                self._loop,
                sock,
                on_frame=self._frame_of(client),
                on_close=client.on_close,
                name="client",
                max_queued_bytes=CLIENT_QUEUE_BYTES,
            )
            client.attach(connection)

    def _frame_of(self, client: Client) -> Callable[[Connection, Frame], None]:
        def on_frame(connection: Connection, frame: Frame) -> None:
            client.on_frame(connection, frame)
            if not self._busy_timer:
                self._start_busy_timer()

        return on_frame

    def _open_gang(self, spec: GangSpec) -> None:
        if spec.gang_id in self._gangs:
            return
        make = LeadGang if spec.lead else MemberGang
        gang = make(self._loop, spec, node_id=self.node_id, epoch=self._settings.epoch, emit=self._emit)
        if isinstance(gang, LeadGang):
            gang.work_began = self._start_busy_timer
        self._gangs[spec.gang_id] = gang
        self._start_busy_timer()

    def _ping_keepers(self) -> None:
        for gang in tuple(self._gangs.values()):
            gang.ping()

    def _close_gang(self, gang_id: str) -> None:
        gang = self._gangs.pop(gang_id, None)
        if gang is not None:
            gang.close()

    def _stop_gang(self, gang_id: str, reason: str, grace_ms: int, *, drain: bool) -> None:
        gang = self._gangs.get(gang_id)
        if gang is None:
            return
        if drain:
            gang.drain(reason, grace_ms)
        else:
            gang.stop_all(reason, grace_ms)

    def _blame(self, gang_id: str, reason: str) -> None:
        gang = self._gangs.get(gang_id)
        if gang is not None:
            gang.blame(reason)

    def _offer(self, gang_id: str, record: CallRecord) -> bool:
        gang = self._gangs.get(gang_id)
        if not isinstance(gang, LeadGang):
            return False
        gang.offer(record)
        self._start_busy_timer()
        return True

    def _cancel(self, gang_id: str, call_id: str, grace_ms: int, fence: int) -> bool:
        gang = self._gangs.get(gang_id)
        return isinstance(gang, LeadGang) and gang.cancel(id_raw(call_id), grace_ms, fence=fence)

    def _acknowledge(self, gang_id: str, call_id: str, attempt: int) -> None:
        gang = self._gangs.get(gang_id)
        if isinstance(gang, LeadGang):
            gang.outcomes.acknowledged_by_control(id_raw(call_id), attempt)

    def _snapshots(self) -> list[GangSnapshot]:
        out: list[GangSnapshot] = []
        for gang_id, gang in self._gangs.items():
            if isinstance(gang, LeadGang):
                out.append(gang.snapshot())
            else:
                out.append(GangSnapshot(gang_id=gang_id, step=gang.step, busy_ms=gang.keeper.busy_ms))
        return out

    def _take_direct(self) -> list[DirectEnded]:
        return [d for g in self._gangs.values() if isinstance(g, LeadGang) for d in g.outcomes.take_direct()]

    def _revoke(self, token_id: str) -> None:
        self.door.revoke(token_id)
        for client in [c for c in self._clients if token_id in c.token_ids]:
            client.close("its token was revoked")

    def _call_is_over(self, gang_id: str, call: bytes) -> bool:
        gang = self._gangs.get(gang_id)
        if not isinstance(gang, LeadGang):
            return gang is None or gang.ended
        record = gang.table.get(call)
        return record is None or record.step is Step.FINISHED or gang.ended

    def _step_followers(self) -> None:
        now = now_ns()
        for follower in self._followers:
            follower.step(now)
        self._followers = [f for f in self._followers if not f.done]
        if self._followers and not self._following:
            self._following = True
            self._loop.later(EVERY_MS, self._again_followers)

    def _again_followers(self) -> None:
        self._following = False
        self._step_followers()

    def _start_busy_timer(self) -> None:
        if not self._busy_timer:
            self._busy_timer = True
            self._loop.later(BUSY_CHECK_MS, self._busy_check)

    def _busy_check(self) -> None:
        self._busy_timer = False
        now = now_ns()
        for gang in tuple(self._gangs.values()):
            gang.check(now)
            if isinstance(gang, LeadGang) and gang.at_work:
                self._start_busy_timer()

    def _slow_check(self) -> None:
        self._busy_check()
        self._loop.later(IDLE_CHECK_MS, self._slow_check)

    def _close_all(self) -> None:
        for gang in self._gangs.values():
            gang.close()
        for client in tuple(self._clients):
            client.close("the agent is stopping")
        for listener in self._listeners:
            self._loop.unregister(listener.fileno())
            listener.close()
        self._settings.unix_path.unlink(missing_ok=True)
