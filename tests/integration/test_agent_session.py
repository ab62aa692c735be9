"""The session and enrolment against a small control plane: real gRPC, real mutual TLS."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from phalanx.core.clock import ManualClock, SystemClock
from phalanx.core.messages import CallStarted, FromAgent, Hello, NodeInfo, Offer, Report, ToAgent, Welcome
from phalanx_agent.agent import Agent
from phalanx_agent.discovery.host import read_host
from phalanx_agent.discovery.simulated import SimulatedGpus
from phalanx_agent.discovery.watch import GpuWatch, Host
from phalanx_agent.enrol import Enrolment, Identity
from phalanx_agent.session import Session
from phalanx_agent.settings import read as read_settings
from tests.support.agents_server import AgentsServer
from tests.support.wait import wait_until_async


class FakeNode:
    """What the session asks of the agent."""

    def __init__(self) -> None:
        self.messages: list[ToAgent] = []
        self.identities: list[Identity] = []
        self.slow_hello_s = 0.0

    async def hello(self) -> Hello:
        await asyncio.sleep(self.slow_hello_s)
        return Hello(node=NodeInfo(node_id="n0"))

    async def report(self) -> tuple[Report, tuple[FromAgent, ...]]:
        return Report(), ()

    def heard(self, message: ToAgent) -> None:
        self.messages.append(message)

    def identity_changed(self, identity: Identity) -> None:
        if not self.identities or self.identities[-1] != identity:
            self.identities.append(identity)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for sockets, whose paths may not be long."""
    with tempfile.TemporaryDirectory(prefix="px") as folder:
        yield Path(folder)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[AgentsServer]:
    made = AgentsServer(tmp_path / "control")
    await made.start()
    yield made
    await made.stop()


def enrolment(server: AgentsServer, tmp_path: Path, *, node_id: str = "n0") -> Enrolment:
    state = tmp_path / f"state-{node_id}"
    state.mkdir(exist_ok=True)
    return Enrolment(
        node_id=node_id, state_dir=state, ca=server.ca, join_token_file=server.token_file, clock=SystemClock()
    )


@asynccontextmanager
async def session(*servers: AgentsServer, tmp_path: Path) -> AsyncGenerator[tuple[Session, FakeNode]]:
    node = FakeNode()
    made = Session(
        addresses=tuple(s.address for s in servers),
        enrolment=enrolment(servers[0], tmp_path),
        clock=SystemClock(),
        node=node,
    )
    task = asyncio.create_task(made.run())
    try:
        yield made, node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_agent_enrols_says_hello_and_is_welcomed(server: AgentsServer, tmp_path: Path) -> None:
    async with session(server, tmp_path=tmp_path) as (made, node):
        await wait_until_async(lambda: server.hellos, "Hello")
        await wait_until_async(lambda: node.messages, "Welcome")
        assert node.messages[0] == Welcome(ticket_key=b"key", report_every_ms=200)
        assert server.enrolled == ["n0"]
        assert made.silent_ms == 0
    assert (tmp_path / "state-n0" / "node.key").stat().st_mode & 0o777 == 0o600


async def test_a_second_start_uses_the_certificate_that_is_there(server: AgentsServer, tmp_path: Path) -> None:
    for _ in range(2):
        hellos = len(server.hellos)
        async with session(server, tmp_path=tmp_path):
            await wait_until_async(lambda n=hellos: len(server.hellos) > n, "Hello")
    assert server.enrolled == ["n0"]


async def test_reports_come_at_the_pace_that_welcome_asks_for(server: AgentsServer, tmp_path: Path) -> None:
    async with session(server, tmp_path=tmp_path):
        await wait_until_async(lambda: len(server.said(Report)) >= 3, "three reports", 5)
    assert all(seq == 0 for seq, m in server.heard if isinstance(m, Report))


async def test_a_session_that_is_refused_before_hello_is_said_is_tried_again(
    server: AgentsServer, tmp_path: Path
) -> None:
    """The stream has ended when Hello is written to it: grpc has an exception of its own for that."""
    server.leads = False
    async with session(server, tmp_path=tmp_path) as (_, node):
        node.slow_hello_s = 0.5
        await wait_until_async(lambda: server.refused >= 2, "it was refused twice")
        server.leads = True
        await wait_until_async(lambda: server.hellos, "Hello")


async def test_what_was_not_acknowledged_is_said_again_in_order(server: AgentsServer, tmp_path: Path) -> None:
    server.acknowledge = False
    stored: list[str] = []
    async with session(server, tmp_path=tmp_path) as (made, _):
        for call in ("c-1", "c-2"):
            made.say(CallStarted(call_id=call), lambda c=call: stored.append(c))
        await wait_until_async(lambda: len(server.said(CallStarted)) == 2, "both were said")
        server.acknowledge = True
        server.drop()
        await wait_until_async(lambda: len(stored) == 2, "both are stored")
    again = [m.call_id for m in server.said(CallStarted) if isinstance(m, CallStarted)]
    assert again == ["c-1", "c-2", "c-1", "c-2"]
    assert stored == ["c-1", "c-2"]


async def test_messages_reach_the_agent_again_after_a_reconnect(server: AgentsServer, tmp_path: Path) -> None:
    async with session(server, tmp_path=tmp_path) as (_, node):
        await wait_until_async(lambda: server.hellos and node.messages, "Hello and Welcome")
        for call in ("c-1", "c-2"):
            hellos = len(server.hellos)
            server.tell(Offer(call_id=call))
            await wait_until_async(lambda c=call: Offer(call_id=c) in node.messages, f"offer {call}")
            server.drop()
            await wait_until_async(lambda n=hellos: len(server.hellos) > n, "another Hello")


async def test_a_replica_that_does_not_lead_is_passed_over(server: AgentsServer, tmp_path: Path) -> None:
    other = AgentsServer(tmp_path / "control")
    await other.start()
    server.leads = False
    async with session(server, other, tmp_path=tmp_path):
        await wait_until_async(lambda: other.hellos, "Hello at the leader")
        other.leads, server.leads = False, True
        other.drop()
        await wait_until_async(lambda: server.hellos, "Hello at the new leader")
    await other.stop()


async def test_silence_is_counted_while_nobody_is_there(server: AgentsServer, tmp_path: Path) -> None:
    async with session(server, tmp_path=tmp_path) as (made, _):
        await wait_until_async(lambda: server.hellos, "Hello")
        await server.stop()
        await wait_until_async(lambda: made.silent_ms > 100, "silence")
        await server.start()
        await wait_until_async(lambda: made.silent_ms == 0, "heard again", 20)


async def test_blobs_go_both_ways_in_chunks(server: AgentsServer, tmp_path: Path) -> None:
    async with session(server, tmp_path=tmp_path) as (made, _):
        data = bytes(range(256)) * 12_000
        await made.put_blob("sha256:x", data)
        assert await made.get_blob("sha256:x") == data


async def test_a_blob_that_was_under_way_when_the_session_ended_comes_with_the_next(
    server: AgentsServer, tmp_path: Path
) -> None:
    """Else the gang that needs it would never be prepared."""
    server.blobs["sha256:x"], server.stuck = b"code", 1
    async with session(server, tmp_path=tmp_path) as (made, _):
        fetching = asyncio.create_task(made.get_blob("sha256:x"))
        await wait_until_async(lambda: len(server.asked) == 1, "it is asked for")
        server.drop()
        async with asyncio.timeout(20):
            assert await fetching == b"code"


async def test_a_fetch_that_is_given_up_ends(server: AgentsServer, tmp_path: Path) -> None:
    server.blobs["sha256:x"], server.stuck = b"code", 1
    async with session(server, tmp_path=tmp_path) as (made, _):
        fetching = asyncio.create_task(made.get_blob("sha256:x"))
        await wait_until_async(lambda: len(server.asked) == 1, "it is asked for")
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching


async def test_a_blob_that_is_refused_is_an_error_and_not_tried_for_ever(server: AgentsServer, tmp_path: Path) -> None:
    async with session(server, tmp_path=tmp_path) as (made, _):
        with pytest.raises(grpc.aio.AioRpcError, match="no blob"):
            await made.get_blob("sha256:none")


async def test_a_wrong_join_token_gets_no_certificate(server: AgentsServer, tmp_path: Path) -> None:
    server.token_file.write_text("wrong")
    with pytest.raises(grpc.aio.AioRpcError):
        await enrolment(server, tmp_path).ready(server.address)
    assert enrolment(server, tmp_path).identity is None


async def test_its_certificate_opens_the_other_replicas_when_the_join_token_is_used_up(
    server: AgentsServer, tmp_path: Path
) -> None:
    await enrolment(server, tmp_path).ready(server.address)
    server.token_file.unlink()
    elsewhere = server.address.replace("127.0.0.1", "localhost")
    _identity, address = await enrolment(server, tmp_path).ready(elsewhere)
    assert address == f"127.0.0.1:{server.agents_port}"
    assert server.enrolled == ["n0", "n0"]


async def test_a_certificate_of_another_node_or_cell_is_not_used(server: AgentsServer, tmp_path: Path) -> None:
    await enrolment(server, tmp_path).ready(server.address)
    state = tmp_path / "state-n0"
    clock = ManualClock()
    renamed = Enrolment(node_id="n9", state_dir=state, ca=server.ca, join_token_file=None, clock=clock)
    assert renamed.identity is None
    foreign = AgentsServer(tmp_path / "foreign")
    moved = Enrolment(node_id="n0", state_dir=state, ca=foreign.ca, join_token_file=None, clock=clock)
    assert moved.identity is None


async def test_renewal_gives_a_new_certificate_for_the_same_key(server: AgentsServer, tmp_path: Path) -> None:
    node = enrolment(server, tmp_path)
    first, address = await node.ready(server.address)
    credentials = grpc.ssl_channel_credentials(first.ca_pem, first.key_pem, first.certificate_pem)
    options = (("grpc.ssl_target_name_override", "phalanx-control"),)
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        second = await node.renew(channel)
    assert second.key_pem == first.key_pem
    assert second.fingerprint != first.fingerprint
    assert first.renew_at_wall_ms < first.ends_wall_ms


async def test_a_control_plane_that_no_longer_answers_is_left(server: AgentsServer, tmp_path: Path) -> None:
    async with session(server, tmp_path=tmp_path):
        await wait_until_async(lambda: len(server.said(Report)) >= 3, "three reports")
        server.answer = False
        await wait_until_async(lambda: len(server.hellos) == 2, "a second Hello", 20)


async def test_an_agent_that_cannot_do_all_of_its_work_ends(tmp_path: Path, short_path: Path) -> None:
    """Half an agent would hold its gangs and say nothing of them: the next one adopts them."""

    class Broken(GpuWatch):
        async def run(self, host: Host) -> None:
            del host
            raise RuntimeError("the driver is gone")

    clock = SystemClock()
    flags = {"control": "127.0.0.1:1", "ca": tmp_path / "ca.pem", "state-dir": tmp_path, "run-dir": short_path}
    settings = read_settings([*(f"--{name}={value}" for name, value in flags.items()), "--simulate-gpus=0"], {})
    (settings.run_dir / "gangs").mkdir()
    source = SimulatedGpus(node_id="n0", count=0, memory_bytes=0)
    watch = Broken(source, baseline_path=tmp_path / "baseline.json", boot_id="b", clock=clock)
    agent = Agent(settings, clock=clock, host=read_host(), gpus=watch)
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(agent.run(asyncio.Event()), 20)
    assert ended.group_contains(RuntimeError, match="the driver is gone")


async def test_a_node_whose_one_time_token_is_used_up_goes_where_agents_went_before(
    server: AgentsServer, tmp_path: Path
) -> None:
    node = enrolment(server, tmp_path)
    _, address = await node.ready(server.address)
    server.token_file.write_text("used up")
    node.doubt_address(server.address)
    identity, again = await node.ready(server.address)
    assert (again, identity) == (address, node.identity)


async def test_a_node_whose_address_is_in_doubt_asks_where_agents_go_now(server: AgentsServer, tmp_path: Path) -> None:
    node = enrolment(server, tmp_path)
    await node.ready(server.address)
    await server.stop()
    server.agents_port = 0
    await server.start()
    node.doubt_address(server.address)
    _, address = await node.ready(server.address)
    assert address == f"127.0.0.1:{server.agents_port}"
