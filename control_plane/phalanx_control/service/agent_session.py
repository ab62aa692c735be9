"""One agent's session: its messages in order, each acknowledged once it is durable, and what it must be told.

Messages are handed to the controller in the order in which they came, several at a time, and acknowledged in that
order: group commit then serves many with one write. What the controller refuses for good is acknowledged too, since
saying it again would change nothing; what it could not make durable ends the session, and the agent says it again.
Every report is answered, so that an agent can tell a quiet control plane from one that has stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from phalanx import wire
from phalanx.core.errors import ConnectionFailedError, InvalidSpecError, PhalanxError
from phalanx.core.messages import Ack, CallFinished, FromAgent, Hello, Report, ToAgent, Welcome
from phalanx_control.blobs import BlobStore
from phalanx_control.scheduler.nearest import learn
from phalanx_control.service.bodies import split_finished
from phalanx_control.service.ports import ControllerPort
from phalanx_control.service.ticket_office import TicketOffice
from phalanx_control.state.commands import AgentSaid
from phalanx_control.state.events import Events
from phalanx_proto.v1 import agent_pb2

MAX_QUEUED = 4096
"""Messages to an agent that does not read them; beyond, the session ends and the next one is told everything again."""
MAX_IN_FLIGHT = 64
"""Messages of one agent that wait for the log at a time."""

logger = logging.getLogger(__name__)
_Pending = tuple[int, FromAgent, "asyncio.Task[Events]"]


class AgentSession:
    """Serves one connection of one node's agent."""

    def __init__(self, controller: ControllerPort, tickets: TicketOffice, blobs: BlobStore, node_id: str) -> None:
        self.node_id = node_id
        self._controller = controller
        self._tickets = tickets
        self._blobs = blobs
        self._out: deque[ToAgent] = deque()
        self._agent_epoch = 0
        self._acked = 0
        self._answer_due = False
        self._wake = asyncio.Event()
        self._pending: asyncio.Queue[_Pending] = asyncio.Queue(MAX_IN_FLIGHT)
        self._closed_for = ""

    def send(self, message: ToAgent) -> None:
        """Queues one message; never waits. An agent that has stopped reading loses its session."""
        if len(self._out) >= MAX_QUEUED:
            self.close("the agent does not read its messages")
            return
        self._out.append(message)
        self._wake.set()

    def close(self, reason: str) -> None:
        """Ends the session soon, for ``reason``."""
        self._closed_for = self._closed_for or reason
        self._wake.set()

    async def run(self, hello: Hello, messages: AsyncIterator[agent_pb2.FromAgent]) -> AsyncIterator[ToAgent]:
        """Yields what the agent is told, until either side ends."""
        self._agent_epoch = hello.node.agent_epoch
        yield Welcome(ticket_key=self._tickets.key(self.node_id))
        learn(hello.node.topology)
        self._controller.attach(self.node_id, self.send)
        workers: list[asyncio.Task[None]] = []
        try:
            await self._controller.execute(AgentSaid(node_id=self.node_id, message=hello))
            workers = [asyncio.create_task(self._read(messages)), asyncio.create_task(self._acknowledge())]
            for worker in workers:
                worker.add_done_callback(self._ended)
            async for message in self._outgoing():
                yield message
        finally:
            self._controller.detach(self.node_id, self.send)
            await self._stop(workers)

    async def _outgoing(self) -> AsyncIterator[ToAgent]:
        told = 0
        while not self._closed_for:
            await self._wake.wait()
            self._wake.clear()
            while self._out:
                yield self._out.popleft()
            if self._acked > told or self._answer_due:
                told, self._answer_due = self._acked, False
                yield Ack(seq=told)
        raise ConnectionFailedError(self._closed_for, hint="connect again")

    async def _read(self, messages: AsyncIterator[agent_pb2.FromAgent]) -> None:
        async for envelope in messages:
            message = wire.unwrap_from_agent(envelope)
            if message is None or isinstance(message, Hello):
                raise InvalidSpecError("a message that has no place here; a session begins with one Hello")
            if isinstance(message, Report):
                self._controller.note_report(self.node_id, message)
                self._answer_due = True
                self._wake.set()
                continue
            command, bodies = await self._command(envelope.seq, message)
            task = asyncio.create_task(self._controller.execute(command, bodies))
            await self._pending.put((envelope.seq, message, task))
        await self._pending.join()

    async def _command(self, seq: int, message: FromAgent) -> tuple[AgentSaid, dict[str, bytes]]:
        if not isinstance(message, CallFinished):
            return AgentSaid(node_id=self.node_id, message=message, agent_epoch=self._agent_epoch, seq=seq), {}
        call = self._controller.state.calls.get(message.call_id)
        if message.result.blob and call is not None:
            await self._blobs.grant(message.result.blob, call.owner.workspace)
        return split_finished(self.node_id, message)

    async def _acknowledge(self) -> None:
        while True:
            seq, message, task = await self._pending.get()
            try:
                await task
            except ConnectionFailedError:
                raise
            except PhalanxError as e:
                logger.warning(
                    "agent message refused",
                    extra={"node": self.node_id, "kind": type(message).__name__, "code": e.code, "why": str(e)},
                )
            if seq:
                self._acked = max(self._acked, seq)
                self._wake.set()
            self._pending.task_done()

    def _ended(self, worker: asyncio.Task[None]) -> None:
        if worker.cancelled():
            return
        error = worker.exception()
        if error is not None and not isinstance(error, PhalanxError):
            logger.error("agent session failed", exc_info=error, extra={"node": self.node_id})
        self.close(str(error) if isinstance(error, PhalanxError) else "the session has ended")

    async def _stop(self, workers: list[asyncio.Task[None]]) -> None:
        tasks: list[asyncio.Task[Any]] = list(workers)
        while not self._pending.empty():
            tasks.append(self._pending.get_nowait()[2])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Sessions:
    """At most one session per node: a newer one ends the former."""

    def __init__(self) -> None:
        self._by_node: dict[str, AgentSession] = {}

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes whose agents are connected to this replica."""
        return frozenset(self._by_node)

    @asynccontextmanager
    async def only(self, session: AgentSession) -> AsyncGenerator[None]:
        """Makes ``session`` its node's one session for as long as the block runs."""
        former = self._by_node.get(session.node_id)
        if former is not None:
            former.close("a newer session of this node has begun")
        self._by_node[session.node_id] = session
        try:
            yield
        finally:
            if self._by_node.get(session.node_id) is session:
                del self._by_node[session.node_id]

    def close_all(self, reason: str) -> None:
        """Ends every session, when this replica stops or no longer leads."""
        for session in list(self._by_node.values()):
            session.close(reason)
