"""The gate before every RPC: permission row, identity, deadline, read-your-writes, forwarding, errors as statuses.

Handlers behind it may trust `caller()` and raise PhalanxError; they never see a caller whose role is too low. What has
no row in the permission table is refused. An error that is no PhalanxError is logged here under a number, and the
caller is told the number alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, Protocol, cast

import grpc
import grpc.aio

from phalanx.core.clock import Clock
from phalanx.core.errors import AuthError, ConnectionFailedError, GetTimeoutError, InvalidSpecError, PhalanxError
from phalanx.core.ids import new_raw_id
from phalanx.wire_errors import LOG_SEQ_KEY, MIN_SEQ_KEY, metadata_dict, metadata_of, status_of
from phalanx_control.service.auth import NOBODY, Identity, agent, authenticate, bearer
from phalanx_control.service.blob_reach import BLOBS_KEY, BlobReach
from phalanx_control.service.caller import set_caller
from phalanx_control.service.permissions import RPCS, Need, Row
from phalanx_control.service.ports import ControllerPort

DEFAULT_DEADLINE_S = 30.0
MAX_DEADLINE_S = 120.0
"""For RPCs that do not stream; clients give their own, shorter ones."""
MIN_SEQ_WAIT_S = 5.0

logger = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]


class Forwarder(Protocol):
    """Takes RPCs that change state from a standby to the leader."""

    async def leader_elsewhere(self) -> str:
        """Returns the leader's address, "" where this replica leads."""
        ...

    async def forward(self, leader: str, method: str, request: Any, context: Context) -> Any: ...


class Gate(grpc.aio.ServerInterceptor):
    """Stands before all handlers of one gRPC server, which is made before the controller: its port is its address."""

    _controller: ControllerPort
    _forwarder: Forwarder
    _reach: BlobReach

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def open(self, controller: ControllerPort, forwarder: Forwarder, reach: BlobReach) -> None:
        """Says what stands behind the gate; before the server starts."""
        self._controller = controller
        self._forwarder = forwarder
        self._reach = reach

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        row = RPCS.get(method)
        if handler is None or row is None:
            return handler if handler is None else _refuse_all(handler, method)
        return self._wrap(handler, method, row)

    def _wrap(self, handler: Any, method: str, row: Row) -> Any:
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            make: Any = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return make(self._stream(inner, method, row), **coders)
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(self._unary(inner, method, row), **coders)

    def _unary(self, inner: Any, method: str, row: Row) -> Callable[[Any, Context], Awaitable[Any]]:
        async def answer(request: Any, context: Context) -> Any:
            try:
                async with asyncio.timeout(None if row.streams else _deadline_s(context)):
                    await self._admit(method, row, context)
                    if row.to_leader and (leader := await self._forwarder.leader_elsewhere()):
                        return await self._forwarder.forward(leader, method, request, context)
                    reply = await inner(request, context)
                    self._say_seq(context)
                    return reply
            except Exception as e:  # noqa: BLE001 the boundary of the RPC
                await _abort(context, method, e)

        return answer

    def _stream(self, inner: Any, method: str, row: Row) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def answer(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                await self._admit(method, row, context)
                async for reply in inner(request, context):
                    self._still_allowed(row, context)
                    yield reply
            except Exception as e:  # noqa: BLE001 the boundary of the RPC
                await _abort(context, method, e)
            self._say_seq(context)

        return answer

    async def _admit(self, method: str, row: Row, context: Context) -> None:
        metadata = metadata_dict(context.invocation_metadata())
        identity = self._identify(row, context, metadata)
        if row.need is not Need.AGENT:
            identity.need(row.need, method.rpartition("/")[2])
        set_caller(identity)
        self._reach.heard(metadata.get(BLOBS_KEY, ""))
        await self._catch_up(metadata.get(MIN_SEQ_KEY, ""))

    def _identify(self, row: Row, context: Context, metadata: dict[str, str]) -> Identity:
        if row.need is Need.NOTHING:
            return NOBODY
        if row.need is Need.AGENT:
            return agent(_certified_name(context))
        token = bearer(metadata.get("authorization"))
        return authenticate(self._controller.state, token, self._clock.wall_ms())

    def _still_allowed(self, row: Row, context: Context) -> None:
        """A token that was revoked, or has expired, ends the streams that it opened."""
        if row.need is not Need.AGENT:
            self._identify(row, context, metadata_dict(context.invocation_metadata()))

    async def _catch_up(self, min_seq: str) -> None:
        if not min_seq:
            return
        if not min_seq.isdecimal() or len(min_seq) > 18:
            raise InvalidSpecError(f"{MIN_SEQ_KEY} is {min_seq[:40]!r}: send the {LOG_SEQ_KEY} of a former answer")
        try:
            async with asyncio.timeout(MIN_SEQ_WAIT_S):
                await self._controller.wait_for_seq(int(min_seq))
        except TimeoutError as e:
            raise ConnectionFailedError(
                f"this replica has seen the log up to {self._controller.seq}, not yet {min_seq}",
                hint="ask again, or ask another replica",
            ) from e

    def _say_seq(self, context: Context) -> None:
        said = (LOG_SEQ_KEY, str(self._controller.seq)), (BLOBS_KEY, self._reach.statement())
        context.set_trailing_metadata(said)


def _certified_name(context: Context) -> str:
    names = context.auth_context().get("x509_common_name", ())
    if not names:
        raise AuthError("no node certificate was shown", hint="agents enrol first, and connect to the agents' port")
    return next(iter(names)).decode()


def _deadline_s(context: Context) -> float:
    remaining = cast("float | None", context.time_remaining())
    return DEFAULT_DEADLINE_S if remaining is None else min(MAX_DEADLINE_S, max(0.0, remaining))


async def _abort(context: Context, method: str, error: Exception) -> NoReturn:
    if isinstance(error, (grpc.aio.AbortError, grpc.aio.UsageError)):
        raise error
    if isinstance(error, TimeoutError) and not isinstance(error, PhalanxError):
        error = GetTimeoutError(f"{method} did not end before its deadline")
    if not isinstance(error, PhalanxError):
        number = new_raw_id().hex()[:12]
        logger.error("rpc failed", exc_info=error, extra={"method": method, "error_number": number})
        error = PhalanxError(f"the control plane failed inside; its log has more under {number}")
    await context.abort(status_of(error), str(error), metadata_of(error))
    raise AssertionError("abort returned")


def _refuse_all(handler: Any, method: str) -> Any:
    async def refuse(_request: Any, context: Context) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{method} has no row in the permission table")

    async def refuse_stream(request: Any, context: Context) -> AsyncIterator[Any]:
        await refuse(request, context)
        yield None

    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse_stream)
    return grpc.stream_unary_rpc_method_handler(refuse)
