"""The cell as it was: from snapshots, the history and what only the log has yet; and who may see what of it."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.errors import NotFoundError
from phalanx.core.ids import new_call_id
from phalanx.wire_errors import to_exception
from phalanx_control.log.history import Archive
from phalanx_control.log.past import state_at
from phalanx_control.log.redis_log import RedisLog
from phalanx_control.log.snapshot import take_snapshot
from phalanx_control.replica import Replica
from phalanx_proto.v1 import control_pb2
from tests.support.control_plane import Client, client_of
from tests.support.replicas import leading, submit, trim
from tests.support.wait import wait_until_async


async def test_each_moment_shows_what_the_entries_before_it_made(log: RedisLog, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "archive")
    seen: dict[int, int] = {}
    for part in range(3):
        async with leading(log) as controller:
            for _ in range(5):
                await submit(controller, body=b"x")
        for batch in await log.read_after(0):
            seen[batch.seq] = batch.wall_ms
        if part < 2:
            await trim(log, await take_snapshot(log, archive))
    times = sorted(set(seen.values()))
    for wall_ms in times:
        moment, state = await state_at(archive, log, wall_ms)
        assert moment.seq == state.seq == max(seq for seq, at_ms in seen.items() if at_ms <= wall_ms)
        assert moment.wall_ms == wall_ms
    moment, state = await state_at(archive, log, times[-1] + 60_000)
    assert (moment.wall_ms, len(state.calls)) == (times[-1], 15)


async def test_before_the_history_nothing_is_known(log: RedisLog, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "archive")
    with pytest.raises(NotFoundError, match="no history yet"):
        await state_at(archive, log, 1)
    async with leading(log) as controller:
        await submit(controller, body=b"x")
    with pytest.raises(NotFoundError, match="begins at 20"):
        await state_at(archive, log, 1)


async def test_callers_see_of_the_past_what_they_may_see_of_the_present(admin: Client, replica: Replica) -> None:
    function = await admin.register()
    call_id = new_call_id()
    await admin.ask("SubmitCall", control_pb2.SubmitCallRequest(call_id=call_id, function_id=function))
    while_waiting = SystemClock().wall_ms()
    await wait_until_async(lambda: SystemClock().wall_ms() > while_waiting, "it is later")
    await admin.ask("CancelCall", control_pb2.CallId(call_id=call_id))
    past = await admin.ask("GetPast", control_pb2.PastRequest(at_ms=while_waiting))
    assert [(call.call_id, call.state) for call in past.calls] == [(call_id, "queued")]
    assert [each.call_id for each in past.queue.waiting] == [call_id]
    assert 0 < past.at_ms <= while_waiting
    assert not (await admin.ask("GetPast", control_pb2.PastRequest(at_ms=SystemClock().wall_ms()))).calls
    async with client_of(replica, await admin.token_for("other", "viewer")) as viewer:
        seen = await viewer.ask("GetPast", control_pb2.PastRequest(at_ms=while_waiting))
        assert (list(seen.calls), list(seen.queue.waiting), seen.queue.others) == ([], [], 1)


@pytest.mark.parametrize("at_ms", [0, -1, 1 << 50])
async def test_a_time_that_was_never_is_refused(admin: Client, at_ms: int) -> None:
    refused = await admin.refused("GetPast", control_pb2.PastRequest(at_ms=at_ms))
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is not in the past" in str(to_exception(refused))


async def test_a_time_before_the_cell_says_when_its_history_begins(admin: Client) -> None:
    refused = await admin.refused("GetPast", control_pb2.PastRequest(at_ms=1_000))
    assert "the history that is kept begins at" in str(to_exception(refused))
