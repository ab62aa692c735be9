"""The gate before every RPC, on a real gRPC server in this process with a controller that only has a state."""

# ruff: noqa: ARG002 (handlers have the generated servicer's signatures)
from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from immutables import Map

from phalanx.core.clock import ManualClock
from phalanx.core.errors import NotFoundError
from phalanx.wire_errors import LOG_SEQ_KEY, metadata_dict
from phalanx_control.service.auth import new_token
from phalanx_control.service.blob_reach import BLOBS_KEY, BlobReach
from phalanx_control.service.caller import caller
from phalanx_control.service.gate import Gate
from phalanx_control.state.model import Owner, State, Token
from phalanx_proto.v1 import control_pb2, control_pb2_grpc

TOKEN = new_token()


class _Controller:
    """State and sequence number, nothing else."""

    def __init__(self) -> None:
        owner = Owner(workspace="w", user="ana")
        token = Token(id=TOKEN.id, sha256=TOKEN.sha256, owner=owner, role="member", created_wall_ms=0)
        self.state = msgspec.structs.replace(State(), seq=7, tokens=Map({TOKEN.id: token}))

    @property
    def seq(self) -> int:
        return self.state.seq

    async def wait_for_seq(self, seq: int) -> None:
        if self.seq < seq:
            await asyncio.Event().wait()


class _NoForwarder:
    async def leader_elsewhere(self) -> str:
        return ""

    async def forward(self, leader: str, method: str, request: Any, context: Any) -> Any:
        raise AssertionError("nothing is to be forwarded")


class _Handlers(control_pb2_grpc.ControlServicer):
    """Answers in the ways that a gate must cope with."""

    async def GetServerInfo(self, request: control_pb2.Empty, context: Any) -> control_pb2.ServerInfo:
        return control_pb2.ServerInfo(cell=f"{caller().owner.workspace}/{caller().owner.user}")

    async def ListNodes(self, request: control_pb2.Empty, context: Any) -> control_pb2.NodeList:
        raise RuntimeError("secret detail")

    async def ListGangs(self, request: control_pb2.Empty, context: Any) -> control_pb2.GangList:
        raise NotFoundError("nothing here", hint="look there")

    async def GetCall(self, request: control_pb2.CallId, context: Any) -> control_pb2.CallView:
        await asyncio.sleep(3600)
        return control_pb2.CallView()

    async def WatchCall(self, request: control_pb2.CallId, context: Any) -> AsyncIterator[control_pb2.CallView]:
        yield control_pb2.CallView(user=caller().owner.user)
        raise RuntimeError("secret detail")


@asynccontextmanager
async def _served() -> AsyncGenerator[tuple[Any, BlobReach, grpc.aio.Channel]]:
    gate = Gate(ManualClock())
    reach = BlobReach(b"secret", "mine", declared_shared=False)
    gate.open(_Controller(), _NoForwarder(), reach)  # pyright: ignore[reportArgumentType]
    server = grpc.aio.server(interceptors=[gate])
    control_pb2_grpc.add_ControlServicer_to_server(_Handlers(), server)
    server.add_generic_rpc_handlers((_Stray(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield control_pb2_grpc.ControlStub(channel), reach, channel
    await server.stop(0)


class _Stray(grpc.GenericRpcHandler):
    """A handler that nobody wrote a row for."""

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != "/phalanx.v1.Control/Stray":
            return None
        return grpc.unary_unary_rpc_method_handler(_echo)


async def _echo(request: bytes, context: Any) -> bytes:
    return request


def _metadata(**more: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {TOKEN.text}"), *((key.replace("_", "-"), more[key]) for key in more))


async def _refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


async def test_handlers_know_the_caller_and_answers_name_the_log_entry() -> None:
    async with _served() as (stub, _, _):
        call = stub.GetServerInfo(control_pb2.Empty(), metadata=_metadata())
        assert (await call).cell == "w/ana"
        assert metadata_dict(await call.trailing_metadata())[LOG_SEQ_KEY] == "7"


async def test_an_rpc_without_a_row_is_refused_even_with_a_handler() -> None:
    async with _served() as (_, _, channel):
        error = await _refused(channel.unary_unary("/phalanx.v1.Control/Stray")(b"x", metadata=_metadata()))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_an_error_from_inside_is_told_by_number_alone() -> None:
    async with _served() as (stub, _, _):
        error = await _refused(stub.ListNodes(control_pb2.Empty(), metadata=_metadata()))
        watch = stub.WatchCall(control_pb2.CallId(), metadata=_metadata())
        assert (await anext(aiter(watch))).user == "ana"
        streamed = await _refused(anext(aiter(watch)))
    for each in (error, streamed):
        assert each.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in (each.details() or "")


async def test_a_refusal_travels_with_code_and_hint() -> None:
    async with _served() as (stub, _, _):
        error = await _refused(stub.ListGangs(control_pb2.Empty(), metadata=_metadata()))
    said = metadata_dict(error.trailing_metadata())
    assert (error.code(), said["px-code"], said["px-hint-bin"]) == (
        grpc.StatusCode.NOT_FOUND,
        "NOT-FOUND",
        "look there",
    )


async def test_a_deadline_ends_a_handler_that_does_not() -> None:
    async with _served() as (stub, _, _):
        error = await _refused(stub.GetCall(control_pb2.CallId(), metadata=_metadata(), timeout=0.2))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("min_seq", ["x", "-1", "1e9", "9" * 30])
async def test_a_minimum_that_is_no_number_is_refused(min_seq: str) -> None:
    async with _served() as (stub, _, _):
        error = await _refused(stub.GetServerInfo(control_pb2.Empty(), metadata=_metadata(min_seq=min_seq)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_nobody_without_the_cells_secret_makes_blobs_doubtful() -> None:
    async with _served() as (stub, reach, _):
        for lie in ("theirs.", "theirs.0000", "theirs"):
            await stub.GetServerInfo(control_pb2.Empty(), metadata=(*_metadata(), (BLOBS_KEY, lie)))
        assert reach.shared
        truth = BlobReach(b"secret", "theirs", declared_shared=False).statement()
        await stub.GetServerInfo(control_pb2.Empty(), metadata=(*_metadata(), (BLOBS_KEY, truth)))
        assert not reach.shared
