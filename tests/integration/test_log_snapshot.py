"""Snapshots and history: start = newest snapshot + tail, and the state is what the history folds to."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from phalanx_control import archive as archive_command
from phalanx_control.archive import batches_about, check
from phalanx_control.controller_rules import Timing
from phalanx_control.log.errors import UnreadableLogError
from phalanx_control.log.folding import decode_state, encode_state, fold_batch, load_snapshot, read_history
from phalanx_control.log.history import KEEP_MS, Archive
from phalanx_control.log.log import Snapshot
from phalanx_control.log.redis_log import RedisLog
from phalanx_control.log.snapshot import prune_history, snapshot_in_process, take_snapshot
from phalanx_control.state.model import State, to_jsonable
from tests.support.history_checker.records import read_history as read_independently
from tests.support.replicas import leading, leads, start_replica, submit, trim
from tests.support.store import StoreServer
from tests.support.wait import wait_until_async


async def filled(log: RedisLog, calls: int = 30) -> State:
    """Leads for a while and returns the state that it came to."""
    async with leading(log) as controller:
        for _ in range(calls):
            await submit(controller, body=b"x")
        return controller.state


async def test_a_state_survives_being_written_and_read(log: RedisLog) -> None:
    state = await filled(log, 5)
    assert to_jsonable(decode_state(encode_state(state))) == to_jsonable(state)


async def test_snapshot_and_tail_are_the_full_fold(log: RedisLog, tmp_path: Path) -> None:
    await filled(log, 20)
    snapshot = await take_snapshot(log, Archive(tmp_path))
    whole = State()
    await trim(log, snapshot)
    state = await filled(log, 7)
    for batch in read_history(Archive(tmp_path)):
        whole = fold_batch(whole, batch)
    tail = await log.read_after(snapshot.seq)
    for batch in tail:
        whole = fold_batch(whole, batch)
    assert len(tail) >= 7
    assert to_jsonable(whole) == to_jsonable(state)


async def test_a_replica_starts_from_a_trimmed_log(log: RedisLog, tmp_path: Path) -> None:
    before = await filled(log)
    snapshot = await take_snapshot(log, Archive(tmp_path))
    await trim(log, snapshot)
    assert len(await log.read_after(0)) == 1
    async with leading(log, "later") as controller:
        assert set(before.calls) == set(controller.state.calls)
        await submit(controller)


async def test_a_standby_that_missed_trimmed_batches_starts_again_from_the_snapshot(
    log: RedisLog, tmp_path: Path
) -> None:
    async with leading(log, timing=Timing(stale_after_ms=60_000)) as controller:
        standby = start_replica(log, "b", timing=Timing(poll_s=2))
        await standby.controller.wait_for_seq(controller.seq)
        changes = standby.controller.changes()
        record = await log.leader()
        for _ in range(10):
            await submit(controller)
        snapshot = await take_snapshot(log, Archive(tmp_path))
        await log.trim(snapshot, epoch=record.epoch, leader_id=record.leader_id)
        await submit(controller)
        await standby.controller.wait_for_seq(controller.seq)
        assert to_jsonable(standby.controller.state) == to_jsonable(controller.state)
        assert (await anext(changes)).after.seq <= controller.seq
        await standby.stop()


async def test_the_snapshot_program_runs_apart_and_the_leader_trims(
    store: StoreServer, log: RedisLog, tmp_path: Path
) -> None:
    async def make_snapshot() -> Snapshot:
        return await snapshot_in_process(store=store.url, cell="t", folder=tmp_path)

    timing = Timing(snapshot_every=10, snapshot_check_s=0.05)
    replica = start_replica(log, timing=timing, make_snapshot=make_snapshot)
    await leads(replica)
    async with asyncio.timeout(60):
        await replica.stop()
        async with leading(log, "b", timing=timing, make_snapshot=make_snapshot) as controller:
            for _ in range(20):
                await submit(controller)
            await wait_until_async(lambda: _has_snapshot(log), "the log is trimmed", 30)
            snapshot = await log.snapshot()
            assert snapshot is not None
            assert (await log.read_after(0))[0].seq == snapshot.seq
            assert Archive(tmp_path).last_seq() == snapshot.seq
            assert (await check(Archive(tmp_path), log)).problems == ()


async def test_history_goes_on_where_it_ended_and_an_outsider_can_read_it(log: RedisLog, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for _ in range(3):
        await filled(log, 5)
        await trim(log, await take_snapshot(log, archive))
    batches = list(read_history(archive))
    assert [b.seq for b in batches] == list(range(1, archive.last_seq() + 1))
    assert len(archive.segments()) == 3
    outside = [b for segment in archive.segments() for b in read_independently(segment.path)]
    assert [(b.seq, b.epoch, b.leader, len(b.events)) for b in outside] == [
        (b.seq, b.epoch, b.leader_id, len(b.events)) for b in batches
    ]


async def test_one_calls_history_is_found(log: RedisLog, tmp_path: Path) -> None:
    state = await filled(log, 5)
    await take_snapshot(log, Archive(tmp_path))
    call_id = next(iter(state.calls))
    assert len(list(batches_about(Archive(tmp_path), call_id))) >= 1
    assert list(batches_about(Archive(tmp_path), "c-none")) == []


async def test_the_check_passes_on_the_truth_and_names_what_was_tampered_with(log: RedisLog, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    state = await filled(log, 10)
    snapshot = await take_snapshot(log, archive)
    assert await check(archive, log) == await check(archive)
    assert (await check(archive)).problems == ()
    call_id = next(iter(state.calls))
    segment = archive.segments()[0].path
    segment.write_bytes(segment.read_bytes().replace(b'"user":"ana"', b'"user":"eve"'))
    found = await check(archive, log)
    assert any(f"snapshot {snapshot.seq} differs at /calls/" in p for p in found.problems)
    assert any("the store's snapshot and log differs" in p for p in found.problems)
    assert call_id in " ".join(found.problems)


async def test_a_gap_in_the_history_is_found(log: RedisLog, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for _ in range(3):
        await filled(log, 3)
        await trim(log, await take_snapshot(log, archive))
    archive.segments()[1].path.unlink()
    assert "the history has no batch" in (await check(archive)).problems[0]


async def test_old_history_is_dropped_and_the_check_still_holds(log: RedisLog, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for _ in range(5):
        await filled(log, 3)
        await trim(log, await take_snapshot(log, archive))
    old, now_ms = archive.segments()[:2], 2_000_000_000_000
    for segment in archive.segments():
        wall_ms = now_ms - (2 * KEEP_MS if segment in old else 0)
        os.utime(segment.path, ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))
    prune_history(archive, wall_ms=now_ms)
    assert archive.segments()[0].first == old[-1].last + 1
    assert await check(archive, log) == await check(archive)
    assert (await check(archive)).problems == ()


async def test_a_damaged_snapshot_is_refused(log: RedisLog) -> None:
    await filled(log, 2)
    await trim(log, Snapshot(seq=2, data=b"not a snapshot"))
    with pytest.raises(UnreadableLogError):
        await load_snapshot(log)


async def test_the_check_is_a_command(
    store: StoreServer, log: RedisLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await filled(log, 3)
    await take_snapshot(log, Archive(tmp_path))
    arguments = ["--folder", str(tmp_path), "--store", store.url, "--cell", "t"]
    assert await asyncio.to_thread(archive_command.main, ["check", *arguments]) == 0
    assert "the state is what the history says" in capsys.readouterr().out
    assert await asyncio.to_thread(archive_command.main, ["history", *arguments]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))


async def _has_snapshot(log: RedisLog) -> bool:
    return await log.snapshot() is not None
