"""Calls and ledger lines that have left the state: still there for everybody who asks, and in every bill."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from phalanx.core import messages as m
from phalanx.core.clock import SystemClock
from phalanx.core.ids import new_call_id
from phalanx.core.states import Outcome, Phase
from phalanx_control.archive_index import ArchiveIndex
from phalanx_control.archive_keeper import ArchiveKeeper
from phalanx_control.archive_sweep import PORTIONS, Sweep
from phalanx_control.lifecycle.filing import Keep
from phalanx_control.replica import Replica
from phalanx_control.service.pictures import load_price_book
from phalanx_control.state import commands as c
from phalanx_control.state.model import Gang
from phalanx_proto.v1 import control_pb2
from tests.support.builders import node_info
from tests.support.control_plane import Client, client_of, running_replica
from tests.support.store import StoreServer, running_store

NOTHING = Keep(calls=0, calls_at_most=0, ms=-60_000)
DAY_MS = 24 * 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with running_store() as store:
        yield store


class Cell:
    """A replica with one client, and a node whose agent says what the test lets it say."""

    def __init__(self, replica: Replica, client: Client, folder: Path) -> None:
        self.replica = replica
        self.client = client
        self.folder = folder
        self.controller = replica._controller

    def keeper(self, clock: SystemClock | None = None) -> ArchiveKeeper:
        replica = self.replica
        sweep = Sweep(replica._blobs, replica._archive)
        book = load_price_book(None)
        return ArchiveKeeper(self.controller, replica._archive, book, clock or SystemClock(), sweep, keep=NOTHING)

    async def say(self, message: m.FromAgent) -> None:
        await self.controller.execute(c.AgentSaid(node_id="n1", message=message))

    async def run_call(self, data: bytes = b"args") -> str:
        """Lets a call run on a gang of its own that is released afterwards."""
        await self.say(m.Hello(node=node_info("n1")))
        call_id = await self.client.submit(await self.client.register(gpus=2), data)
        gang = self.gang_of(call_id)
        named: dict[str, Any] = {"gang_id": gang.id, "fence": gang.fence}
        await self.say(m.MemberPrepared(**named))
        await self.say(m.MemberReady(**named))
        call = self.controller.state.calls[call_id]
        done = m.CallFinished(
            call_id=call_id,
            attempt=call.attempt,
            fence=call.fence,
            gang_id=gang.id,
            outcome=Outcome.SUCCEEDED,
            busy_ms=5,
        )
        await self.say(done)
        counters = tuple(m.Counter(gpu=g, phase=Phase.BUSY, ms=700) for g in gang.members[0].member.gpus)
        await self.say(m.MemberEnded(clean=True, counters=counters, **named))
        assert gang.id not in self.controller.state.gangs
        return call_id

    def gang_of(self, call_id: str) -> Gang:
        return next(g for g in self.controller.state.gangs.values() if g.for_call == call_id)

    async def costs(self, group_by: str) -> list[Any]:
        return list((await self.client.ask("GetCost", control_pb2.CostRequest(group_by=group_by))).costs)

    async def get(self, call_id: str) -> Any:
        return await self.client.ask("GetCall", control_pb2.CallId(call_id=call_id))


@pytest.fixture
async def cell(server: StoreServer, tmp_path: Path) -> AsyncIterator[Cell]:
    async with (
        running_replica(server, tmp_path, cell=f"c{tmp_path.name[-8:]}".replace("_", "-")) as replica,
        client_of(replica, (tmp_path / "token").read_text().strip()) as client,
    ):
        yield Cell(replica, client, tmp_path)


async def test_archived_calls_keep_their_states_and_their_parents(cell: Cell) -> None:
    parent = await cell.run_call()
    child = new_call_id()
    function_id = cell.controller.state.calls[parent].function_id
    request = control_pb2.SubmitCallRequest(call_id=child, function_id=function_id, parent=parent)
    await cell.client.ask("SubmitCall", request)
    await cell.client.ask("CancelCall", control_pb2.CallId(call_id=child))
    await cell.keeper().round()
    assert not cell.controller.state.calls
    found = await cell.client.ask("ListCalls", control_pb2.ListCallsRequest(all=True, parent=parent))
    assert [(view.call_id, view.parent) for view in found.calls] == [(child, parent)]
    asked = control_pb2.CallIds(call_ids=[child, new_call_id(), parent])
    assert list((await cell.client.ask("GetCallStates", asked)).states) == ["cancelled", "", "succeeded"]


async def test_an_archived_call_is_shown_as_before(cell: Cell) -> None:
    call_id = await cell.run_call()
    before = await cell.get(call_id)
    await cell.keeper().round()
    assert call_id not in cell.controller.state.calls
    assert await cell.get(call_id) == before
    assert [view async for view in cell.client.watch(call_id)] == [before]
    listed = await cell.client.ask("ListCalls", control_pb2.ListCallsRequest(all=True))
    assert [view.call_id for view in listed.calls] == [call_id]
    assert not (await cell.client.ask("ListCalls", control_pb2.ListCallsRequest())).calls
    assert (await cell.client.ask("GetCost", control_pb2.CostRequest(call_id=call_id))).costs[0] == before.cost


async def test_an_archived_calls_log_is_found_and_its_end_is_final(cell: Cell) -> None:
    call_id = await cell.run_call()
    await cell.replica._blobs.put(f"logs/{call_id}/n1/1", _bytes(b"hello"))
    await cell.keeper().round()
    sources = await cell.client.ask("GetLogSources", control_pb2.CallId(call_id=call_id))
    assert [source.blob for source in sources.sources] == [f"logs/{call_id}/n1/1"]
    assert (await cell.client.ask("CancelCall", control_pb2.CallId(call_id=call_id))).state == "succeeded"


async def test_an_archived_calls_id_is_not_run_again(cell: Cell) -> None:
    call_id = await cell.run_call()
    await cell.keeper().round()
    function_id = next(iter(cell.controller.state.functions))
    request = control_pb2.SubmitCallRequest(call_id=call_id, function_id=function_id)
    assert (await cell.client.ask("SubmitCall", request)).state == "succeeded"
    assert call_id not in cell.controller.state.calls


async def test_listing_filters_archived_calls_like_others(cell: Cell) -> None:
    ids = [await cell.run_call() for _ in range(3)]
    await cell.keeper().round()
    ids.append(await cell.run_call())

    async def listed(**wanted: Any) -> list[str]:
        answer = await cell.client.ask("ListCalls", control_pb2.ListCallsRequest(**wanted))
        return [view.call_id for view in answer.calls]

    assert await listed(all=True) == ids[::-1]
    assert await listed(all=True, limit=2) == ids[:1:-1]
    assert await listed(state="succeeded") == ids[::-1]
    assert await listed(state="failed") == []
    assert await listed(all=True, function="f") == ids[::-1]
    assert await listed(all=True, function="g") == []


async def test_another_workspace_sees_nothing_of_an_archived_call(cell: Cell) -> None:
    call_id = await cell.run_call()
    await cell.keeper().round()
    async with client_of(cell.replica, await cell.client.token_for("other")) as stranger:
        error = await stranger.refused("GetCall", control_pb2.CallId(call_id=call_id))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert not (await stranger.ask("ListCalls", control_pb2.ListCallsRequest(all=True))).calls


async def test_a_leader_that_ends_between_file_and_log_loses_and_doubles_nothing(cell: Cell) -> None:
    call_id = await cell.run_call()
    before, bills = await cell.get(call_id), [await cell.costs(by) for by in ("", "function", "user", "phase")]
    state = cell.controller.state
    await cell.replica._archive.file_calls(list(state.calls.values()))
    await cell.replica._archive.file_lines("2025-11", list(state.ledger.values()))
    assert await cell.get(call_id) == before
    for _ in range(2):
        await cell.keeper().round()
    assert not cell.controller.state.calls
    assert not cell.controller.state.ledger
    assert await cell.get(call_id) == before
    assert [await cell.costs(by) for by in ("", "function", "user", "phase")] == bills


async def test_a_standby_finds_what_the_leader_has_filed(cell: Cell, server: StoreServer) -> None:
    call_id = await cell.run_call()
    before = await cell.get(call_id)
    name = cell.replica._settings.cell
    async with (
        running_replica(server, cell.folder, cell=name, replica_id="b") as standby,
        client_of(standby, cell.client.token) as client,
    ):
        assert not standby.is_leader
        await cell.keeper().round()
        await standby._controller.wait_for_seq(cell.controller.seq)
        assert call_id not in standby._controller.state.calls
        assert await client.ask("GetCall", control_pb2.CallId(call_id=call_id)) == before


async def test_a_damaged_index_is_made_anew_from_the_parts(cell: Cell, tmp_path: Path) -> None:
    call_id = await cell.run_call()
    await cell.keeper().round()
    path = tmp_path / "other.db"
    path.write_bytes(b"no database, " * 1000)
    archive = type(cell.replica._archive)(cell.replica._blobs, ArchiveIndex(path), SystemClock())
    found = await archive.find(call_id)
    assert found is not None
    assert found.id == call_id
    assert len(await archive.lines_of([found.gang_id])) == 1


async def test_history_beyond_seven_days_is_dropped_and_its_blobs_with_it(cell: Cell) -> None:
    call_id = await cell.run_call()
    await cell.keeper().round()
    await cell.replica._blobs.put(f"logs/{call_id}/n1/1", _bytes(b"hello"))
    later = _Later(8 * DAY_MS)
    await cell.keeper(later).round()
    error = await cell.client.refused("GetCall", control_pb2.CallId(call_id=call_id))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    sweep = Sweep(cell.replica._blobs, cell.replica._archive)
    deleted = [await sweep.once(cell.controller.state, later.wall_ms()) for _ in range(PORTIONS)]
    assert sum(deleted) == 1
    assert await cell.replica._blobs.names("logs/") == []
    assert (await cell.costs(""))[0].gpu_ms == 1400


class _Later(SystemClock):
    """A clock whose wall time is some days ahead."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__()
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


async def _bytes(data: bytes) -> AsyncIterator[bytes]:
    yield data
