"""Two replicas of one cell on a real store: reads anywhere, changes forwarded, agents and blobs where they belong."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from phalanx.core.ids import new_call_id
from phalanx.wire_errors import LOG_SEQ_KEY, metadata_dict
from phalanx_control.replica import Replica
from phalanx_control.service.forward import FORWARDED_KEY
from phalanx_proto.v1 import common_pb2, control_pb2
from tests.support.control_plane import Client, agent_of, client_of, running_replica
from tests.support.store import StoreServer
from tests.support.wait import wait_until_async


@dataclass(frozen=True, slots=True)
class Pair:
    leader: Replica
    standby: Replica
    at_leader: Client
    at_standby: Client


@pytest.fixture
async def pair(store: StoreServer, tmp_path: Path, cell: str) -> AsyncIterator[Pair]:
    async with (
        running_replica(store, tmp_path, cell=cell, replica_id="a") as leader,
        running_replica(store, tmp_path, cell=cell, replica_id="b") as standby,
        client_of(leader, (tmp_path / "token").read_text()) as at_leader,
        client_of(standby, (tmp_path / "token").read_text()) as at_standby,
    ):
        assert leader.is_leader
        assert not standby.is_leader
        yield Pair(leader, standby, at_leader, at_standby)


async def test_what_is_asked_of_a_standby_is_done_by_the_leader(pair: Pair) -> None:
    call_id = await pair.at_standby.submit(await pair.at_standby.register())
    view = await pair.at_leader.ask("GetCall", control_pb2.CallId(call_id=call_id))
    assert view.state == "queued"
    assert (await pair.at_standby.ask("GetServerInfo")).role == "standby"


async def test_a_standby_lets_a_client_read_what_it_wrote(pair: Pair) -> None:
    function_id = await pair.at_standby.register()
    for _ in range(20):
        request = control_pb2.SubmitCallRequest(call_id=new_call_id(), function_id=function_id)
        call = pair.at_standby.stub.SubmitCall(request, metadata=pair.at_standby.metadata(), timeout=5)
        await call
        seq = metadata_dict(await call.trailing_metadata())[LOG_SEQ_KEY]
        by_id = control_pb2.CallId(call_id=request.call_id)
        assert (await pair.at_standby.ask("GetCall", by_id, min_seq=seq)).state == "queued"


async def test_a_refusal_of_the_leader_reaches_the_client_of_a_standby_unchanged(pair: Pair) -> None:
    unknown = control_pb2.SubmitCallRequest(call_id=new_call_id(), function_id="f-none")
    theirs = await pair.at_leader.refused("SubmitCall", unknown)
    ours = await pair.at_standby.refused("SubmitCall", unknown)
    assert (ours.code(), ours.details()) == (theirs.code(), theirs.details())
    assert metadata_dict(ours.trailing_metadata())["px-code"] == "NOT-FOUND"


async def test_a_standby_forwards_nothing_for_a_role_that_is_too_low(pair: Pair) -> None:
    async with client_of(pair.standby, await pair.at_leader.token_for("default", "viewer")) as viewer:
        await wait_until_async(lambda: _opens(viewer), "the standby knows the token")
        assert (await viewer.refused("CreateJoinToken")).code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_request_is_forwarded_once_and_not_in_circles(pair: Pair) -> None:
    metadata = (*pair.at_standby.metadata(), (FORWARDED_KEY, "c"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await pair.at_standby.stub.CreateJoinToken(control_pb2.Empty(), metadata=metadata, timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_watch_at_a_standby_ends_with_the_call(pair: Pair) -> None:
    call_id = await pair.at_leader.submit(await pair.at_leader.register())
    await wait_until_async(lambda: _sees(pair.at_standby, call_id), "the standby has the call")
    watch = pair.at_standby.watch(call_id)
    assert (await anext(aiter(watch))).state == "queued"
    await pair.at_leader.ask("CancelCall", control_pb2.CallId(call_id=call_id))
    assert [view.state async for view in watch][-1] == "cancelled"


async def test_a_revocation_counts_at_a_standby_within_five_seconds(pair: Pair) -> None:
    made = await pair.at_leader.ask("CreateToken", control_pb2.CreateTokenRequest(user="ben", role="member"))
    async with client_of(pair.standby, made.token) as ben:
        await wait_until_async(lambda: _opens(ben), "the standby knows the token")
        await pair.at_leader.ask("RevokeToken", control_pb2.RevokeTokenRequest(token_id=made.token_id))
        await wait_until_async(lambda: _is_shut(ben), "the standby knows of the revocation", timeout_s=5)


async def test_an_agent_is_sent_on_by_a_standby_and_enrols_through_it(pair: Pair, tmp_path: Path) -> None:
    async with agent_of(pair.at_standby, "n1", (tmp_path / "join").read_text()) as agent:
        assert await agent.refused() is grpc.StatusCode.UNAVAILABLE


async def test_the_standby_goes_on_alone_when_the_leader_stops(store: StoreServer, tmp_path: Path, cell: str) -> None:
    async with AsyncExitStack() as leaders, AsyncExitStack() as others:
        await leaders.enter_async_context(running_replica(store, tmp_path, cell=cell, replica_id="a"))
        standby = await others.enter_async_context(running_replica(store, tmp_path, cell=cell, replica_id="b"))
        client = await others.enter_async_context(client_of(standby, (tmp_path / "token").read_text()))
        call_id = await client.submit(await client.register())
        await leaders.aclose()
        await wait_until_async(lambda: standby.is_leader, "the standby leads", timeout_s=5)
        assert (await client.ask("GetCall", control_pb2.CallId(call_id=call_id))).state == "queued"
        await client.submit(await client.register())


async def test_replicas_with_different_blob_folders_take_no_large_values(
    store: StoreServer, tmp_path: Path, cell: str
) -> None:
    data = bytes(100_000)
    name = "sha256:" + hashlib.sha256(data).hexdigest()
    async with (
        running_replica(store, tmp_path, cell=cell, replica_id="a") as leader,
        running_replica(store, tmp_path, cell=cell, replica_id="b", blobs="elsewhere") as standby,
        client_of(leader, (tmp_path / "token").read_text()) as at_leader,
        client_of(standby, (tmp_path / "token").read_text()) as at_standby,
    ):
        await at_leader.put(name, data)
        function_id = await at_standby.register()
        for client in (at_leader, at_standby):
            assert not (await client.ask("GetServerInfo")).has_shared_blobs
        body = common_pb2.Body(blob=name, size=len(data))
        request = control_pb2.SubmitCallRequest(call_id=new_call_id(), function_id=function_id, args=body)
        refused = await at_leader.refused("SubmitCall", request)
    assert metadata_dict(refused.trailing_metadata())["px-code"] == "NO-BLOB-STORE"


async def test_replicas_with_one_blob_folder_are_not_in_doubt(pair: Pair) -> None:
    await pair.at_standby.register()
    for client in (pair.at_leader, pair.at_standby):
        assert (await client.ask("GetServerInfo")).has_shared_blobs


async def _opens(client: Client) -> bool:
    return not await _is_shut(client)


async def _is_shut(client: Client) -> bool:
    try:
        await client.ask("ListNodes")
    except grpc.aio.AioRpcError as e:
        return e.code() is grpc.StatusCode.UNAUTHENTICATED
    return False


async def _sees(client: Client, call_id: str) -> bool:
    try:
        await client.ask("GetCall", control_pb2.CallId(call_id=call_id))
    except grpc.aio.AioRpcError:
        return False
    return True
