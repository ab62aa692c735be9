"""The clients' RPCs of one replica on a real store: calls, blobs, workspaces, tokens."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import grpc
import pytest

from phalanx.core import errors
from phalanx.wire_errors import LOG_SEQ_KEY, metadata_dict, to_exception
from phalanx_control.replica import Replica
from phalanx_proto.v1 import common_pb2, control_pb2
from tests.support.control_plane import Client, client_of, running_replica
from tests.support.store import StoreServer


async def test_a_submitted_call_is_there_with_a_reason_for_waiting(admin: Client) -> None:
    call_id = await admin.submit(await admin.register())
    view = await admin.ask("GetCall", control_pb2.CallId(call_id=call_id))
    assert (view.state, view.workspace, view.queue_position) == ("queued", "default", 1)
    assert view.reason


async def test_the_same_id_again_is_the_same_call(admin: Client) -> None:
    function_id = await admin.register()
    call_id = await admin.submit(function_id)
    request = control_pb2.SubmitCallRequest(
        call_id=call_id, function_id=function_id, args=common_pb2.Body(data=b"args", size=4)
    )
    assert (await admin.ask("SubmitCall", request)).state == "queued"
    assert len((await admin.ask("ListCalls")).calls) == 1


async def test_a_watch_shows_the_present_and_ends_with_the_call(admin: Client) -> None:
    call_id = await admin.submit(await admin.register())
    watch = admin.watch(call_id)
    assert (await anext(aiter(watch))).state == "queued"
    await admin.ask("CancelCall", control_pb2.CallId(call_id=call_id))
    assert [view.state async for view in watch][-1] == "cancelled"


async def test_an_id_that_is_none_is_refused(admin: Client) -> None:
    function_id = await admin.register()
    for call_id in ("", "c-1", "../../x", "g-" + "0" * 26):
        request = control_pb2.SubmitCallRequest(call_id=call_id, function_id=function_id)
        assert isinstance(to_exception(await admin.refused("SubmitCall", request)), errors.InvalidSpecError)


async def test_arguments_above_the_limit_must_be_a_blob_that_was_put(admin: Client) -> None:
    function_id = await admin.register()
    data = bytes(100_000)
    inline = common_pb2.Body(data=data, size=len(data))
    name = "sha256:" + hashlib.sha256(data).hexdigest()
    for body in (inline, common_pb2.Body(blob=name, size=len(data))):
        request = control_pb2.SubmitCallRequest(call_id="c-" + "0" * 26, function_id=function_id, args=body)
        assert (await admin.refused("SubmitCall", request)).code() is grpc.StatusCode.INVALID_ARGUMENT
    await admin.put(name, data)
    await admin.ask("SubmitCall", request)


async def test_an_app_is_deployed_whole_and_found_by_name(admin: Client) -> None:
    specs = [common_pb2.FunctionSpec(name=name, backend="auto", launch="per_gpu", returns="rank0") for name in "ab"]
    deployed = await admin.ask("DeployApp", control_pb2.DeployAppRequest(app="shop", functions=specs))
    assert (deployed.version, [view.name for view in deployed.functions]) == (1, ["a", "b"])
    resolved = await admin.ask("ResolveFunction", control_pb2.ResolveFunctionRequest(app="shop", name="b"))
    assert resolved.view.function_id == deployed.functions[1].function_id
    gone = await admin.refused("ResolveFunction", control_pb2.ResolveFunctionRequest(app="shop", name="c"))
    assert "it has a, b" in (gone.details() or "")


async def test_another_workspace_sees_nothing_of_it(admin: Client, replica: Replica) -> None:
    function_id = await admin.register()
    call_id = await admin.submit(function_id)
    name = "sha256:" + hashlib.sha256(b"secret").hexdigest()
    await admin.put(name, b"secret")
    async with client_of(replica, await admin.token_for("other")) as other:
        by_id = control_pb2.CallId(call_id=call_id)
        for method in ("GetCall", "CancelCall", "GetLogSources"):
            assert (await other.refused(method, by_id)).code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as watched:
            await anext(aiter(other.watch(call_id)))
        assert watched.value.code() is grpc.StatusCode.NOT_FOUND
        foreign = control_pb2.SubmitCallRequest(call_id="c-" + "0" * 26, function_id=function_id)
        assert (await other.refused("SubmitCall", foreign)).code() is grpc.StatusCode.NOT_FOUND
        address = control_pb2.GangAddressRequest(function_id=function_id)
        assert (await other.refused("GetGangAddress", address)).code() is grpc.StatusCode.NOT_FOUND
        assert not (await other.ask("ListCalls", control_pb2.ListCallsRequest(all=True))).calls
        assert list((await other.ask("MissingBlobs", control_pb2.BlobNames(names=[name]))).names) == [name]
        with pytest.raises(grpc.aio.AioRpcError) as read:
            await other.get(name)
        assert read.value.code() is grpc.StatusCode.NOT_FOUND


async def test_what_does_not_exist_is_refused_in_the_same_words_as_what_is_anothers(
    admin: Client, replica: Replica
) -> None:
    call_id = await admin.submit(await admin.register())
    async with client_of(replica, await admin.token_for("other")) as other:
        foreign = await other.refused("GetCall", control_pb2.CallId(call_id=call_id))
        absent = await other.refused("GetCall", control_pb2.CallId(call_id="c-" + "0" * 26))
    assert (foreign.details() or "").replace(call_id, "") == (absent.details() or "").replace("c-" + "0" * 26, "")


async def test_without_a_token_nothing_is_answered(replica: Replica) -> None:
    async with client_of(replica, "") as nobody:
        for method in ("GetServerInfo", "ListNodes", "ListTokens", "CreateLoginLink"):
            assert (await nobody.refused(method)).code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_viewer_reads_and_changes_nothing(admin: Client, replica: Replica) -> None:
    function_id = await admin.register()
    async with client_of(replica, await admin.token_for("default", "viewer")) as viewer:
        assert (await viewer.ask("GetServerInfo")).role == "leader"
        request = control_pb2.SubmitCallRequest(call_id="c-" + "0" * 26, function_id=function_id)
        assert (await viewer.refused("SubmitCall", request)).code() is grpc.StatusCode.PERMISSION_DENIED
        assert isinstance(to_exception(await viewer.refused("CreateJoinToken")), errors.AuthError)


async def test_a_revoked_token_opens_nothing_from_then_on(admin: Client, replica: Replica) -> None:
    request = control_pb2.CreateTokenRequest(user="ben", role="member")
    made = await admin.ask("CreateToken", request)
    async with client_of(replica, made.token) as ben:
        await ben.ask("ListNodes")
        await admin.ask("RevokeToken", control_pb2.RevokeTokenRequest(token_id=made.token_id))
        refused = to_exception(await ben.refused("ListNodes"))
    assert isinstance(refused, errors.AuthError)
    assert refused.hint


async def test_a_watch_ends_with_the_token_that_opened_it(admin: Client, replica: Replica) -> None:
    function_id = await admin.register()
    made = await admin.ask("CreateToken", control_pb2.CreateTokenRequest(user="ben", role="viewer"))
    async with client_of(replica, made.token) as ben:
        call_id = await admin.submit(function_id)
        watch = ben.watch(call_id)
        await anext(aiter(watch))
        await admin.ask("RevokeToken", control_pb2.RevokeTokenRequest(token_id=made.token_id))
        await admin.ask("CancelCall", control_pb2.CallId(call_id=call_id))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(watch))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def _for_ever(client: Client, method: str) -> None:
    while True:
        await client.ask(method)


async def test_a_token_of_a_short_life_expires(admin: Client, replica: Replica) -> None:
    request = control_pb2.CreateTokenRequest(user="ben", role="member", lifetime_ms=1500)
    token = (await admin.ask("CreateToken", request)).token
    async with client_of(replica, token) as ben, asyncio.timeout(30):
        with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
            await _for_ever(ben, "ListNodes")


async def test_only_operators_make_tokens_for_others_and_let_machines_join(admin: Client, replica: Replica) -> None:
    async with client_of(replica, await admin.token_for("other")) as other:
        request = control_pb2.CreateTokenRequest(workspace="default", role="admin")
        assert (await other.refused("CreateToken", request)).code() is grpc.StatusCode.PERMISSION_DENIED
        assert (await other.refused("CreateJoinToken")).code() is grpc.StatusCode.PERMISSION_DENIED
        mine = (await other.ask("ListTokens")).tokens
        assert {token.workspace for token in mine} == {"other"}


async def test_an_answer_names_the_log_entry_that_it_reflects_and_waits_for_one(admin: Client) -> None:
    await admin.register()
    call = admin.stub.ListNodes(control_pb2.Empty(), metadata=admin.metadata(), timeout=5)
    await call
    seq = int(metadata_dict(await call.trailing_metadata())[LOG_SEQ_KEY])
    assert seq >= 2
    await admin.ask("ListNodes", min_seq=str(seq))
    too_new = asyncio.create_task(admin.ask("ListNodes", min_seq=str(seq + 1)))
    await admin.register("g")
    await too_new


async def test_junk_in_a_request_is_refused_without_a_word_from_inside(admin: Client) -> None:
    spec = common_pb2.FunctionSpec(name="../x", backend="no", launch="per_gpu", returns="rank0")
    refused = await admin.refused("RegisterFunction", control_pb2.RegisterFunctionRequest(function=spec))
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Traceback" not in (refused.details() or "")


async def test_a_message_above_four_mebibytes_is_refused(admin: Client) -> None:
    request = control_pb2.SubmitCallRequest(args=common_pb2.Body(data=bytes((4 << 20) + 1)))
    assert (await admin.refused("SubmitCall", request)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_client_with_another_ca_is_told_nothing(replica: Replica, store: StoreServer, tmp_path: Path) -> None:
    async with running_replica(store, tmp_path / "second", cell="second") as stranger:
        ca = stranger.ca_pem
    channel = grpc.aio.secure_channel(replica.addresses()["address"], grpc.ssl_channel_credentials(ca))
    async with channel:
        call = channel.unary_unary("/phalanx.v1.Control/GetServerInfo")(b"", timeout=3)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_secret_whose_rotation_was_not_heard_of_is_not_rotated_again(admin: Client) -> None:
    first = await admin.ask("GetWebhookSecret")
    request = control_pb2.WebhookSecretRequest(rotate=True, from_version=first.version)
    second = await admin.ask("GetWebhookSecret", request)
    assert (second.version, second.secret != first.secret) == (first.version + 1, True)
    assert await admin.ask("GetWebhookSecret", request) == second
    assert await admin.ask("GetWebhookSecret") == second
