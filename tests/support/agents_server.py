"""A small control plane for agents alone: enrols them, greets them, and writes down what they say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from phalanx import wire
from phalanx.core.clock import SystemClock
from phalanx.core.messages import Ack, FromAgent, Hello, ToAgent, Welcome
from phalanx_control.certificates import load_or_make
from phalanx_proto.v1 import agent_pb2, agent_pb2_grpc, common_pb2, control_pb2_grpc


class AgentsServer(agent_pb2_grpc.AgentsServicer, control_pb2_grpc.ControlServicer):
    """``acknowledge`` and ``answer`` False leave messages and reports without a word; ``drop()`` ends every session."""

    def __init__(self, directory: Path) -> None:
        self.clock = SystemClock()
        self.authority = load_or_make(directory, "test", self.clock.wall_ms())
        self.ca = self.authority.path
        self.token_file = directory / "join.token"
        self.token_file.write_text("join")
        self.acknowledge = True
        self.answer = True
        self.leads = True
        self.refused = 0
        self.heard: list[tuple[int, FromAgent]] = []
        self.hellos: list[Hello] = []
        self.enrolled: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        """Blobs that were asked for; the first ``stuck`` of these never come."""
        self.stuck = 0
        self._sessions: set[asyncio.Queue[ToAgent | None]] = set()
        self._server: Any = None
        self.port = 0
        self.agents_port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        pair = self.authority.server_pair(["127.0.0.1"], self.clock.wall_ms())
        chain = [(pair.key_pem, pair.certificate_pem)]
        self._server = grpc.aio.server()
        agent_pb2_grpc.add_AgentsServicer_to_server(self, self._server)
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        mutual = grpc.ssl_server_credentials(chain, root_certificates=self.authority.pem, require_client_auth=True)
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", grpc.ssl_server_credentials(chain))
        self.agents_port = self._server.add_secure_port(f"127.0.0.1:{self.agents_port}", mutual)
        await self._server.start()

    async def stop(self) -> None:
        self.drop()
        await self._server.stop(0)

    def tell(self, message: ToAgent) -> None:
        for queue in self._sessions:
            queue.put_nowait(message)

    def drop(self) -> None:
        for queue in self._sessions:
            queue.put_nowait(None)

    def said(self, kind: type) -> list[FromAgent]:
        return [m for _, m in self.heard if isinstance(m, kind)]

    # ---- the servicers ----

    async def Enroll(self, request: Any, context: Any) -> Any:
        if request.join_token != "join" and not request.certificate_pem:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such join token")
        self.enrolled.append(request.node_id)
        return self._certificate(request)

    async def RenewCertificate(self, request: Any, context: Any) -> Any:
        del context
        return self._certificate(request)

    async def Session(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        if not self.leads:
            self.refused += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this replica does not lead")
        queue: asyncio.Queue[ToAgent | None] = asyncio.Queue()
        self._sessions.add(queue)
        reader = asyncio.create_task(self._read(request_iterator, queue))
        try:
            yield wire.wrap_to_agent(Welcome(ticket_key=b"key", report_every_ms=200))
            while (message := await queue.get()) is not None:
                yield wire.wrap_to_agent(message)
        finally:
            reader.cancel()
            self._sessions.discard(queue)

    async def PutBlob(self, request_iterator: AsyncIterator[Any], context: Any) -> Any:
        del context
        name, data = "", b""
        async for chunk in request_iterator:
            name, data = name or chunk.name, data + chunk.data
        self.blobs[name] = data
        return common_pb2.BlobName(name=name)

    async def GetBlob(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if request.name not in self.blobs:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no blob {request.name}")
        self.asked.append(request.name)
        if len(self.asked) <= self.stuck:
            await asyncio.Event().wait()
        yield common_pb2.BlobChunk(name=request.name, data=self.blobs[request.name])

    async def _read(self, messages: AsyncIterator[Any], queue: asyncio.Queue[ToAgent | None]) -> None:
        async for envelope in messages:
            message = wire.unwrap_from_agent(envelope)
            if isinstance(message, Hello):
                self.hellos.append(message)
            elif message is not None:
                self.heard.append((envelope.seq, message))
                if self.acknowledge if envelope.seq else self.answer:
                    queue.put_nowait(Ack(seq=envelope.seq))

    def _certificate(self, request: Any) -> Any:
        signed = self.authority.sign_agent(request.csr_pem, request.node_id, self.clock.wall_ms())
        return agent_pb2.Certificate(
            certificate_pem=signed,
            ca_pem=self.authority.pem,
            agents_address=f"127.0.0.1:{self.agents_port}",
        )
