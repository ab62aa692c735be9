"""The agent's one conversation with the control plane: a gRPC stream over mutual TLS, and blobs beside it.

It reconnects for ever, to whichever address leads. What was said and not acknowledged is said again; what is heard may
be a repetition. The end of a connection changes nothing for gangs: only how long it has lasted does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from phalanx import wire
from phalanx.core.clock import Clock
from phalanx.core.messages import Ack, FromAgent, Hello, Report, ToAgent, Welcome
from phalanx.core.tasks import is_cancelled
from phalanx_agent.enrol import CHANNEL_OPTIONS, Enrolment, Identity
from phalanx_agent.outbox import Outbox
from phalanx_proto.v1 import agent_pb2, agent_pb2_grpc, common_pb2

log = logging.getLogger(__name__)

MAX_BACKOFF_S = 2.0
FIRST_WORD_S = 10.0
SILENT_S = 6.0
"""Every report is answered. A control plane that was silent for so long has stopped, and another may lead."""
BLOB_TIMEOUT_S = 600.0
CHUNK_BYTES = 1 << 20
_ASK_ADDRESS_AGAIN_AFTER = 3
_RENEW_CHECK_S = 60.0


class Node(Protocol):
    """The agent, as the session asks it."""

    async def hello(self) -> Hello: ...

    async def report(self) -> tuple[Report, tuple[FromAgent, ...]]:
        """Returns the report, and messages that are due with it and must be acknowledged."""
        ...

    def heard(self, message: ToAgent) -> None: ...

    def identity_changed(self, identity: Identity) -> None: ...


class Session:
    """Run ``run`` in a task; ``say`` and the blob methods may be used at any time."""

    def __init__(self, *, addresses: tuple[str, ...], enrolment: Enrolment, clock: Clock, node: Node) -> None:
        self._addresses = addresses
        self._enrolment = enrolment
        self._clock = clock
        self._node = node
        self._outbox = Outbox()
        self._to_say = asyncio.Event()
        self._stored = asyncio.Event()
        self._channel: grpc.aio.Channel | None = None
        self._connected = asyncio.Event()
        self._heard_ms = clock.monotonic_ms()
        self._report_every_ms = 2000
        self._hurry = asyncio.Event()
        self._failures: dict[str, int] = {}

    @property
    def silent_ms(self) -> int:
        """How long no control plane has been there."""
        return 0 if self._connected.is_set() else self._clock.monotonic_ms() - self._heard_ms

    def say(self, message: FromAgent, stored: Callable[[], None] | None = None) -> None:
        """Says ``message`` until it is acknowledged; then calls ``stored``."""
        self._outbox.add(message, stored)
        self._to_say.set()

    def hurry(self) -> None:
        """Makes the next report now: something that it says cannot wait."""
        self._hurry.set()

    async def flush(self, timeout_s: float) -> None:
        """Waits until everything said is acknowledged, for ``timeout_s`` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(self._outbox):
                    self._stored.clear()
                    await self._stored.wait()

    async def run(self) -> None:
        """Connects, and again when the connection ends; for ever."""
        attempt = 0
        while True:
            address = self._addresses[attempt % len(self._addresses)]
            started_ms = self._clock.monotonic_ms()
            try:
                await self._one_session(address)
            except (TimeoutError, grpc.aio.AioRpcError, OSError, _SessionOverError) as e:
                self._note_failure(address, e)
            if self._clock.monotonic_ms() - started_ms > 5000:
                attempt = 0
            attempt += 1
            await asyncio.sleep(_backoff_s(attempt, len(self._addresses)))

    async def get_blob(self, name: str) -> bytes:
        """Returns a blob's bytes. Raises grpc.aio.AioRpcError where the control plane refuses."""

        async def fetch(stub: Any) -> bytes:
            parts = [chunk.data async for chunk in stub.GetBlob(common_pb2.BlobName(name=name), timeout=BLOB_TIMEOUT_S)]
            return b"".join(parts)

        return await self._with_retries(fetch)

    async def put_blob(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Stores a blob. Raises grpc.aio.AioRpcError where the control plane refuses."""

        async def put(stub: Any) -> None:
            await stub.PutBlob(_chunks(name, memoryview(data)), timeout=BLOB_TIMEOUT_S)

        await self._with_retries(put)

    async def _with_retries(self, act: Callable[[Any], Awaitable[Any]]) -> Any:
        """Runs ``act`` on the present connection, and again on the next one while there is none."""
        attempt = 0
        while True:
            await self._connected.wait()
            channel = self._channel
            if channel is not None:
                try:
                    return await act(agent_pb2_grpc.AgentsStub(channel))
                except (grpc.aio.UsageError, asyncio.InvalidStateError):
                    log.info("a blob transfer lost its connection")
                except asyncio.CancelledError:
                    if is_cancelled():
                        raise
                    log.info("a blob transfer lost its connection")
                except grpc.aio.AioRpcError as e:
                    if e.code() not in _PASSING:
                        raise
            attempt += 1
            await asyncio.sleep(_backoff_s(attempt, 1))

    async def _one_session(self, control: str) -> None:
        identity, address = await self._enrolment.ready(control)
        self._node.identity_changed(identity)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=identity.ca_pem,
            private_key=identity.key_pem,
            certificate_chain=identity.certificate_pem,
        )
        async with grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS) as channel:
            stub: Any = agent_pb2_grpc.AgentsStub(channel)
            stream = stub.Session()
            try:
                await self._greet(stream)
                self._channel = channel
                self._connected.set()
                self._failures[control] = 0
                log.info("connected to the control plane", extra={"address": address})
                await self._talk(stream, channel, identity)
            except (grpc.aio.UsageError, asyncio.InvalidStateError) as e:
                raise _SessionOverError(f"the session ended while something was being said: {e}") from e
            finally:
                self._connected.clear()
                self._channel = None
                stream.cancel()

    async def _greet(self, stream: Any) -> None:
        async with asyncio.timeout(FIRST_WORD_S):
            await stream.write(wire.wrap_from_agent(await self._node.hello()))
            answer = await stream.read()
        welcome = wire.unwrap_to_agent(answer) if isinstance(answer, agent_pb2.ToAgent) else None
        if not isinstance(welcome, Welcome):
            raise _SessionOverError(f"the control plane answered Hello with {type(welcome).__name__}")
        self._heard_ms = self._clock.monotonic_ms()
        self._report_every_ms = max(100, welcome.report_every_ms)
        self._node.heard(welcome)
        self._outbox.restart()
        self._to_say.set()

    async def _talk(self, stream: Any, channel: grpc.aio.Channel, identity: Identity) -> None:
        """Listens, speaks and reports until one of them ends; then ends them all."""
        lock = asyncio.Lock()
        jobs = (
            self._listen(stream),
            self._speak(stream, lock),
            self._report(stream, lock),
            self._expect_answers(),
            self._renew(channel, identity),
        )
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _listen(self, stream: Any) -> None:
        while True:
            envelope = await stream.read()
            if not isinstance(envelope, agent_pb2.ToAgent):
                raise _SessionOverError("the control plane ended the session")
            self._heard_ms = self._clock.monotonic_ms()
            message = wire.unwrap_to_agent(envelope)
            if isinstance(message, Ack):
                self._outbox.acknowledge(message.seq)
                self._stored.set()
            elif message is not None:
                self._node.heard(message)

    async def _speak(self, stream: Any, lock: asyncio.Lock) -> None:
        while True:
            await self._to_say.wait()
            self._to_say.clear()
            async with lock:
                for entry in self._outbox.unsent():
                    await stream.write(wire.wrap_from_agent(entry.message, seq=entry.seq))

    async def _report(self, stream: Any, lock: asyncio.Lock) -> None:
        while True:
            self._hurry.clear()
            report, due = await self._node.report()
            for message in due:
                self.say(message)
            async with lock:
                await stream.write(wire.wrap_from_agent(report))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._report_every_ms / 1000):
                    await self._hurry.wait()

    async def _expect_answers(self) -> None:
        while True:
            heard_ms = self._heard_ms
            await asyncio.sleep(SILENT_S)
            if self._heard_ms == heard_ms:
                raise _SessionOverError(f"the control plane was silent for {SILENT_S:g} s")

    async def _renew(self, channel: grpc.aio.Channel, identity: Identity) -> None:
        """At half of the certificate's life gets the next one, and connects again to show it."""
        while self._clock.wall_ms() < identity.renew_at_wall_ms:  # noqa: ASYNC110 - wall clocks jump
            await asyncio.sleep(_RENEW_CHECK_S)
        await self._enrolment.renew(channel)
        raise _SessionOverError("the certificate was renewed")

    def _note_failure(self, control: str, error: BaseException) -> None:
        reason = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
        log.info("no session with the control plane", extra={"address": control, "reason": reason})
        self._failures[control] = self._failures.get(control, 0) + 1
        if self._failures[control] % _ASK_ADDRESS_AGAIN_AFTER == 0:
            self._enrolment.doubt_address(control)


class _SessionOverError(Exception):
    """The stream ended without an error of its own."""


_PASSING = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED}
)


def _backoff_s(attempt: int, addresses: int) -> float:
    """Returns a jittered pause: none before the first round's other addresses, MAX_BACKOFF_S at most."""
    rounds = max(0, (attempt - 1) // addresses)
    return min(MAX_BACKOFF_S, 0.1 * 2 ** min(rounds, 8)) * (0.5 + random.random() / 2)  # noqa: S311 - spreads load


async def _chunks(name: str, data: memoryview) -> AsyncIterator[common_pb2.BlobChunk]:
    yield common_pb2.BlobChunk(name=name, data=bytes(data[:CHUNK_BYTES]))
    for at in range(CHUNK_BYTES, len(data), CHUNK_BYTES):
        yield common_pb2.BlobChunk(data=bytes(data[at : at + CHUNK_BYTES]))
