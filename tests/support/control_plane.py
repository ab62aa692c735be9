"""Replicas of the control plane inside the test's own event loop, on a real store, and clients and agents of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from phalanx import wire
from phalanx.core.clock import SystemClock
from phalanx.core.ids import new_call_id
from phalanx.core.messages import FromAgent, GpuInfo, Hello, NodeInfo, ToAgent
from phalanx.core.spec import FunctionSpec, Resources
from phalanx_control.replica import Replica
from phalanx_control.settings import parse
from phalanx_proto.v1 import agent_pb2, agent_pb2_grpc, common_pb2, control_pb2, control_pb2_grpc
from tests.support.store import StoreServer

TIMEOUT_S = 10.0


@asynccontextmanager
async def running_replica(
    store: StoreServer, folder: Path, *, cell: str, replica_id: str = "a", blobs: str = "blobs"
) -> AsyncGenerator[Replica]:
    """Yields a replica that serves; replicas with one ``folder`` and ``cell`` belong together."""
    argv = ["--store", store.url, "--data-dir", str(folder / "data"), "--cell", cell, "--replica-id", replica_id]
    argv += ["--blobs", f"file://{folder / blobs}", "--bootstrap-token-file", str(folder / "token")]
    argv += ["--join-token-file", str(folder / "join")]
    replica = await Replica.make(parse(argv, {}), SystemClock())
    running = asyncio.create_task(replica.run())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await replica.ready()
        yield replica
    finally:
        await stop_replica(replica, running)


async def stop_replica(replica: Replica, running: asyncio.Task[None]) -> None:
    await replica.drain()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await replica.close()


class Client:
    """What an SDK would do, by hand: one channel, one token."""

    def __init__(self, replica: Replica, token: str) -> None:
        said = replica.addresses()
        self.ca = replica.ca_pem
        self.page = said["page"]
        self.agents_address = said["agents_address"]
        self.channel = grpc.aio.secure_channel(said["address"], grpc.ssl_channel_credentials(self.ca))
        self.stub: Any = control_pb2_grpc.ControlStub(self.channel)
        self.token = token

    def metadata(self, **more: str) -> tuple[tuple[str, str], ...]:
        shown = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        return (*shown, *((key.replace("_", "-"), value) for key, value in more.items()))

    async def ask(self, method: str, request: Any = None, **metadata: str) -> Any:
        """Returns the answer of a unary RPC."""
        call = getattr(self.stub, method)
        return await call(request or control_pb2.Empty(), metadata=self.metadata(**metadata), timeout=TIMEOUT_S)

    async def refused(self, method: str, request: Any = None) -> grpc.aio.AioRpcError:
        """Returns the error of a unary RPC that must fail."""
        try:
            await self.ask(method, request)
        except grpc.aio.AioRpcError as e:
            return e
        raise AssertionError(f"{method} was answered")

    def watch(self, call_id: str) -> AsyncIterator[control_pb2.CallView]:
        return self.stub.WatchCall(control_pb2.CallId(call_id=call_id), metadata=self.metadata(), timeout=TIMEOUT_S)

    async def put(self, name: str, data: bytes) -> common_pb2.BlobName:
        chunk = common_pb2.BlobChunk(name=name, data=data)
        return await self.stub.PutBlob(iter([chunk]), metadata=self.metadata(), timeout=TIMEOUT_S)

    async def get(self, name: str) -> bytes:
        stream = self.stub.GetBlob(common_pb2.BlobName(name=name), metadata=self.metadata(), timeout=TIMEOUT_S)
        return b"".join([chunk.data async for chunk in stream])

    async def register(self, name: str = "f", *, gpus: float = 1) -> str:
        spec = FunctionSpec(name=name, resources=Resources(gpus=gpus))
        request = control_pb2.RegisterFunctionRequest(function=wire.to_proto(spec))
        return (await self.ask("RegisterFunction", request)).function_id

    async def submit(self, function_id: str, data: bytes = b"args") -> str:
        call_id = new_call_id()
        body = common_pb2.Body(data=data, size=len(data))
        request = control_pb2.SubmitCallRequest(call_id=call_id, function_id=function_id, args=body)
        await self.ask("SubmitCall", request)
        return call_id

    async def token_for(self, workspace: str, role: str = "admin") -> str:
        request = control_pb2.CreateTokenRequest(workspace=workspace, user="ben", role=role)
        return (await self.ask("CreateToken", request)).token

    async def sign_in(self) -> httpx2.AsyncClient:
        """Returns a browser that is signed in to the page; close it with ``aclose``."""
        link = (await self.ask("CreateLoginLink")).url
        browser = httpx2.AsyncClient(base_url=self.page)
        (await browser.get(link)).raise_for_status()
        return browser

    async def close(self) -> None:
        await self.channel.close()


@asynccontextmanager
async def client_of(replica: Replica, token: str) -> AsyncGenerator[Client]:
    client = Client(replica, token)
    try:
        yield client
    finally:
        await client.close()


class FakeAgent:
    """An agent's side of enrolment and session: it says what the test tells it to say."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = b""
        self.received: list[ToAgent] = []
        self._stub: Any = None
        self._channel: grpc.aio.Channel | None = None
        self._session: Any = None
        self._reader: asyncio.Task[None] | None = None

    def request(self, join_token: str = "", *, node_id: str = "") -> agent_pb2.CertificateRequest:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ignored")])
        csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self.key, hashes.SHA256())
        pem = csr.public_bytes(serialization.Encoding.PEM)
        return agent_pb2.CertificateRequest(node_id=node_id or self.node_id, join_token=join_token, csr_pem=pem)

    async def enrol(self, client: Client, join_token: str) -> None:
        """Gets a certificate and opens a channel with it."""
        answer = await client.stub.Enroll(self.request(join_token), timeout=TIMEOUT_S)
        self.certificate = answer.certificate_pem
        credentials = grpc.ssl_channel_credentials(answer.ca_pem, self.private_key_pem(), answer.certificate_pem)
        self._channel = grpc.aio.secure_channel(client.agents_address, credentials)
        self._stub = agent_pb2_grpc.AgentsStub(self._channel)

    def private_key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def stub(self) -> Any:
        return self._stub

    def hello(self, *, node_id: str = "", gpus: int = 1) -> Hello:
        infos = tuple(
            GpuInfo(uuid=f"GPU-{self.node_id}-{i}", index=i, model="sim", simulated=True) for i in range(gpus)
        )
        info = NodeInfo(
            node_id=node_id or self.node_id,
            hostname=self.node_id,
            boot_id="b",
            agent_epoch=1,
            data_address="127.0.0.1:9",
            gpus=infos,
        )
        return Hello(node=info)

    async def begin(self, hello: Hello | None = None) -> None:
        """Opens the session and says Hello."""
        self._session = self._stub.Session()
        await self.say(hello or self.hello())
        self._reader = asyncio.create_task(self._read())

    async def say(self, message: FromAgent, *, seq: int = 0) -> None:
        await self._session.write(wire.wrap_from_agent(message, seq=seq))

    async def refused(self, hello: Hello | None = None) -> grpc.StatusCode:
        """Says Hello, which the refusal may overtake, and returns the status that ended the session."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.begin(hello)
        return await self.ended()

    async def ended(self) -> grpc.StatusCode:
        """Returns the status with which the control plane ended the session."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self._session.code()

    async def _read(self) -> None:
        try:
            async for envelope in self._session:
                message = wire.unwrap_to_agent(envelope)
                assert message is not None
                self.received.append(message)
        except grpc.aio.AioRpcError:
            return

    def heard(self, kind: type[ToAgent]) -> list[Any]:
        return [message for message in self.received if isinstance(message, kind)]

    async def close(self) -> None:
        if self._session is not None:
            self._session.cancel()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()


@asynccontextmanager
async def agent_of(client: Client, node_id: str, join_token: str) -> AsyncGenerator[FakeAgent]:
    """Yields an enrolled agent that has not begun its session."""
    agent = FakeAgent(node_id)
    try:
        await agent.enrol(client, join_token)
        yield agent
    finally:
        await agent.close()
