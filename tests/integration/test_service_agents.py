"""Agents: enrolment, the session, and that none may speak for another."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.messages import (
    Ack,
    Body,
    CallFinished,
    CallStarted,
    ErrorInfo,
    MemberPrepared,
    MemberReady,
    Offer,
    Prepare,
    Report,
    RevokeToken,
    Start,
    Welcome,
)
from phalanx.core.states import Cause, Outcome
from phalanx.core.tickets import verify
from phalanx_control.certificates import fingerprint
from phalanx_control.replica import Replica
from phalanx_proto.v1 import agent_pb2, agent_pb2_grpc, common_pb2, control_pb2
from tests.support.control_plane import Client, FakeAgent, agent_of, client_of, running_replica
from tests.support.store import StoreServer
from tests.support.wait import wait_until_async


@pytest.fixture
def join_token(replica: Replica, tmp_path: Path) -> str:
    return (tmp_path / "join").read_text()


@pytest.fixture
async def agent(admin: Client, join_token: str) -> AsyncIterator[FakeAgent]:
    async with agent_of(admin, "n1", join_token) as enrolled:
        await enrolled.begin()
        await wait_until_async(lambda: enrolled.heard(Welcome), "the agent is welcome")
        yield enrolled


async def _run_gang(agent: FakeAgent, admin: Client) -> Prepare:
    """Brings up the one gang that a queued call needs."""
    await wait_until_async(lambda: agent.heard(Prepare), "the agent is asked to prepare")
    prepare = agent.heard(Prepare)[0]
    await agent.say(MemberPrepared(gang_id=prepare.gang_id, fence=prepare.fence, rendezvous="127.0.0.1:1"), seq=1)
    await wait_until_async(lambda: agent.heard(Start), "the agent is told to start")
    await agent.say(MemberReady(gang_id=prepare.gang_id, fence=prepare.fence, pids=(7,), backend="gloo"), seq=2)
    await wait_until_async(lambda: agent.heard(Offer), "the agent is offered the call")
    return prepare


def _finished(call_id: str, offer: Offer, result: Body) -> CallFinished:
    return CallFinished(
        call_id=call_id,
        attempt=offer.attempt,
        fence=offer.fence,
        gang_id=offer.gang_id,
        result=result,
        busy_ms=5,
    )


async def test_a_node_appears_with_the_fingerprint_that_was_really_shown(agent: FakeAgent, admin: Client) -> None:
    async def nodes() -> list[control_pb2.NodeView]:
        return list((await admin.ask("ListNodes")).nodes)

    await wait_until_async(nodes, "the node is listed")
    node = (await nodes())[0]
    assert (node.node_id, node.state, len(node.gpus)) == ("n1", "ready", 1)
    assert (await admin.ask("GetServerInfo")).simulated_gpus


async def test_a_call_runs_from_submit_to_result(agent: FakeAgent, admin: Client) -> None:
    call_id = await admin.submit(await admin.register(), b"the arguments")
    prepare = await _run_gang(agent, admin)
    offer = agent.heard(Offer)[0]
    assert offer.args.data == b"the arguments"
    attempt, fence, gang_id = offer.attempt, offer.fence, prepare.gang_id
    await agent.say(CallStarted(call_id=call_id, attempt=attempt, fence=fence, gang_id=gang_id), seq=3)
    await agent.say(_finished(call_id, offer, Body(data=b"42", size=2)), seq=4)
    views = [view async for view in admin.watch(call_id)]
    assert (views[-1].state, views[-1].result.data, views[-1].busy_ms) == ("succeeded", b"42", 5)


async def test_messages_are_acknowledged_in_order_once_they_are_durable(agent: FakeAgent, admin: Client) -> None:
    await admin.submit(await admin.register())
    await _run_gang(agent, admin)
    await wait_until_async(lambda: Ack(seq=2) in agent.heard(Ack), "the second message is acknowledged")
    seqs = [ack.seq for ack in agent.heard(Ack)]
    assert seqs == sorted(seqs)


async def test_a_failed_call_brings_its_pickled_exception_and_its_text(agent: FakeAgent, admin: Client) -> None:
    call_id = await admin.submit(await admin.register())
    prepare = await _run_gang(agent, admin)
    offer = agent.heard(Offer)[0]
    error = ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="E", message="no", pickled=b"\x80pickle", rank=0)
    finished = CallFinished(
        call_id=call_id,
        attempt=offer.attempt,
        fence=offer.fence,
        gang_id=prepare.gang_id,
        outcome=Outcome.FAILED,
        error=error,
    )
    await agent.say(finished, seq=3)
    last = [view async for view in admin.watch(call_id)][-1]
    assert (last.state, last.error.type_name, last.error.pickled) == ("failed", "E", b"\x80pickle")


async def test_a_large_result_is_a_blob_that_only_its_workspace_reads(
    agent: FakeAgent, admin: Client, replica: Replica
) -> None:
    call_id = await admin.submit(await admin.register())
    await _run_gang(agent, admin)
    offer = agent.heard(Offer)[0]
    data = bytes(200_000)
    name = "sha256:" + hashlib.sha256(data).hexdigest()
    await agent.stub.PutBlob(iter([common_pb2.BlobChunk(name=name, data=data)]), timeout=5)
    await agent.say(_finished(call_id, offer, Body(blob=name, size=len(data))), seq=3)
    last = [view async for view in admin.watch(call_id)][-1]
    assert await admin.get(last.result.blob) == data
    async with client_of(replica, await admin.token_for("other")) as other:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await other.get(name)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_warm_gang_is_found_with_a_ticket_that_its_agent_can_check(agent: FakeAgent, admin: Client) -> None:
    function_id = await admin.register()
    assert not (await admin.ask("GetGangAddress", control_pb2.GangAddressRequest(function_id=function_id))).ticket
    await admin.submit(function_id)
    prepare = await _run_gang(agent, admin)
    address = await admin.ask("GetGangAddress", control_pb2.GangAddressRequest(function_id=function_id))
    key = agent.heard(Welcome)[0].ticket_key
    ticket = verify(address.ticket, key, kind="call", now_wall_ms=SystemClock().wall_ms())
    assert (ticket.gang_id, ticket.workspace, ticket.node_id) == (prepare.gang_id, "default", "n1")
    assert address.fingerprint == fingerprint(agent.certificate)


async def test_output_is_read_from_the_living_agent_and_from_segments_afterwards(
    agent: FakeAgent, admin: Client
) -> None:
    call_id = await admin.submit(await admin.register())
    segment = f"logs/{call_id}/n1/1"
    await agent.stub.PutBlob(iter([common_pb2.BlobChunk(name=segment, data=b"line\n")]), timeout=5)
    by_id = control_pb2.CallId(call_id=call_id)
    assert [source.blob for source in (await admin.ask("GetLogSources", by_id)).sources] == [segment]
    assert await admin.get(segment) == b"line\n"
    await _run_gang(agent, admin)
    live = (await admin.ask("GetLogSources", by_id)).sources
    assert [(source.node_id, bool(source.ticket), source.blob) for source in live] == [("n1", True, "")]


async def test_an_agent_may_not_write_another_nodes_log(agent: FakeAgent, admin: Client) -> None:
    call_id = await admin.submit(await admin.register())
    chunk = common_pb2.BlobChunk(name=f"logs/{call_id}/n2/1", data=b"x")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await agent.stub.PutBlob(iter([chunk]), timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_an_agent_that_says_hello_for_another_node_is_refused(admin: Client, join_token: str) -> None:
    async with agent_of(admin, "n1", join_token) as agent:
        assert await agent.refused(agent.hello(node_id="n2")) is grpc.StatusCode.UNAUTHENTICATED
    assert not (await admin.ask("ListNodes")).nodes


async def test_a_session_that_does_not_begin_with_hello_is_refused(admin: Client, join_token: str) -> None:
    async with agent_of(admin, "n1", join_token) as agent:
        status = await agent.refused(Report())  # pyright: ignore[reportArgumentType]
    assert status is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_newer_session_of_a_node_ends_the_former(agent: FakeAgent, admin: Client, join_token: str) -> None:
    async with agent_of(admin, "n1", join_token) as newer:
        await newer.begin()
        assert await agent.ended() is grpc.StatusCode.UNAVAILABLE
        await admin.submit(await admin.register())
        await wait_until_async(lambda: newer.heard(Prepare), "the newer session is the one that is told")


async def test_after_a_reconnect_everything_is_said_again(agent: FakeAgent, admin: Client, join_token: str) -> None:
    await admin.submit(await admin.register())
    await wait_until_async(lambda: agent.heard(Prepare), "the first session is told to prepare")
    await agent.close()
    async with agent_of(admin, "n1", join_token) as again:
        await again.begin()
        await wait_until_async(lambda: again.heard(Prepare), "the second session is told to prepare")


async def test_a_revoked_token_is_told_to_every_agent(agent: FakeAgent, admin: Client) -> None:
    made = await admin.ask("CreateToken", control_pb2.CreateTokenRequest(user="ben", role="member"))
    await admin.ask("RevokeToken", control_pb2.RevokeTokenRequest(token_id=made.token_id))
    expected = RevokeToken(token_id=made.token_id)
    await wait_until_async(lambda: expected in agent.heard(RevokeToken), "the agent knows of the revocation")


async def test_a_one_time_join_token_works_once(admin: Client) -> None:
    made = await admin.ask("CreateJoinToken")
    first, second = FakeAgent("n1"), FakeAgent("n2")
    await first.enrol(admin, made.join_token)
    await first.close()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await second.enrol(admin, made.join_token)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_node_that_has_a_certificate_needs_no_second_token(admin: Client) -> None:
    """At another replica, or after the first one has moved, its one-time token is used up."""
    made = await admin.ask("CreateJoinToken")
    agent, thief = FakeAgent("n1"), FakeAgent("n1")
    await agent.enrol(admin, made.join_token)
    await agent.close()
    again = agent.request(made.join_token)
    again.certificate_pem = agent.certificate
    assert (await admin.stub.Enroll(again, timeout=5)).agents_address == admin.agents_address
    for request in (thief.request(made.join_token), agent.request(node_id="n2")):
        request.certificate_pem = agent.certificate
        refused = await admin.refused("Enroll", request)
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("node_id", ["", "../x", "a/b", "a b", "n" * 65, "-n", "n\n"])
async def test_a_node_id_that_could_be_something_else_gets_no_certificate(
    admin: Client, join_token: str, node_id: str
) -> None:
    request = FakeAgent("n1").request(join_token)
    request.node_id = node_id
    refused = await admin.refused("Enroll", request)
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_wrong_join_token_gets_no_certificate(admin: Client) -> None:
    refused = await admin.refused("Enroll", FakeAgent("n1").request("pxjoin_guess"))
    assert refused.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_certificate_is_renewed_for_its_own_node_only(agent: FakeAgent) -> None:
    renewed = await agent.stub.RenewCertificate(agent.request(), timeout=5)
    assert renewed.certificate_pem.startswith(b"-----BEGIN CERTIFICATE")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await agent.stub.RenewCertificate(agent.request(node_id="n2"), timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_agents_port_is_closed_to_those_without_a_certificate(admin: Client) -> None:
    channel = grpc.aio.secure_channel(admin.agents_address, grpc.ssl_channel_credentials(admin.ca))
    async with channel:
        stub = agent_pb2_grpc.AgentsStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.RenewCertificate(
                agent_pb2.CertificateRequest(node_id="n1"), metadata=admin.metadata(), timeout=3
            )
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_that_another_ca_signed_is_refused(
    admin: Client, store: StoreServer, tmp_path: Path
) -> None:
    impostor = FakeAgent("n1")
    async with (
        running_replica(store, tmp_path / "second", cell="second") as stranger,
        client_of(stranger, "") as theirs,
    ):
        await impostor.enrol(theirs, (tmp_path / "second" / "join").read_text())
    key = impostor.private_key_pem()
    credentials = grpc.ssl_channel_credentials(admin.ca, key, impostor.certificate)
    async with grpc.aio.secure_channel(admin.agents_address, credentials) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await agent_pb2_grpc.AgentsStub(channel).RenewCertificate(impostor.request(), timeout=3)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await impostor.close()


async def test_agents_rpcs_are_not_on_the_clients_port(admin: Client) -> None:
    call = admin.channel.unary_unary("/phalanx.v1.Agents/RenewCertificate")(b"", metadata=admin.metadata(), timeout=3)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
