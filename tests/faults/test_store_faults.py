"""The store is killed, stopped, full or volatile, and the leader is killed: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from phalanx.core.errors import ConnectionFailedError, PhalanxError
from phalanx_control.controller import Controller
from phalanx_control.log.errors import StoreUnavailableError, VolatileStoreError
from phalanx_control.log.log import Batch
from phalanx_control.log.redis_log import RedisLog
from phalanx_control.state import events as ev
from tests.support.lead import LeaderProcess
from tests.support.replicas import leading, leads, start_replica, submit
from tests.support.store import StoreServer, replicated_store, running_store
from tests.support.wait import wait_until_async


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with running_store() as store:
        yield store


@pytest.fixture
async def log(server: StoreServer) -> AsyncIterator[RedisLog]:
    redis_log = RedisLog(server.url, cell="t")
    yield redis_log
    await redis_log.close()


class Load:
    """Submits calls without pause and remembers which were acknowledged."""

    def __init__(self, controller: Controller, submitters: int = 8) -> None:
        self.acknowledged: list[str] = []
        self.last_ack = 0.0
        self._controller = controller
        self._tasks = [asyncio.create_task(self._submit_for_ever()) for _ in range(submitters)]

    async def _submit_for_ever(self) -> None:
        while True:
            with suppress(ConnectionFailedError):
                self.acknowledged.append(await submit(self._controller, body=b"arguments"))
                self.last_ack = time.monotonic()
            await asyncio.sleep(0)

    async def more(self, count: int) -> None:
        target = len(self.acknowledged) + count
        await wait_until_async(lambda: len(self.acknowledged) >= target, f"{count} more acknowledged")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def accepted(batches: list[Batch]) -> list[str]:
    return [e.call.id for b in batches for e in b.events if isinstance(e, ev.CallAccepted)]


async def read_everything(log: RedisLog) -> list[Batch]:
    batches: list[Batch] = []
    while more := await log.read_after(batches[-1].seq if batches else 0):
        batches += more
    return batches


async def test_kill_nine_of_the_store_loses_nothing_acknowledged_and_writes_resume_within_three_seconds(
    server: StoreServer, log: RedisLog
) -> None:
    async with leading(log) as controller:
        load = Load(controller)
        for _ in range(3):
            await load.more(200)
            server.kill()
            server.start()
            restarted = time.monotonic()
            await load.more(1)
            assert time.monotonic() - restarted <= 3
        await load.stop()
        batches = await read_everything(log)
        assert set(load.acknowledged) <= set(accepted(batches))
        assert len(accepted(batches)) == len(set(accepted(batches)))
        assert [b.seq for b in batches] == list(range(1, len(batches) + 1))
        assert await log.body(f"{load.acknowledged[0]}/args") == b"arguments"


async def test_a_replica_that_is_promoted_has_all_that_was_acknowledged_and_the_next_leader_goes_on() -> None:
    with replicated_store() as (primary, replica):
        log = RedisLog(primary.url, cell="t", replicas=1)
        async with leading(log) as controller:
            load = Load(controller)
            await load.more(200)
            primary.kill()
            await load.stop()
        await log.close()
        client = replica.client()
        client.execute_command("REPLICAOF", "NO", "ONE")
        client.close()
        promoted = RedisLog(replica.url, cell="t")
        assert set(load.acknowledged) <= set(accepted(await read_everything(promoted)))
        async with leading(promoted, "b") as controller:
            await submit(controller)
            assert set(load.acknowledged) <= set(controller.state.calls)
        await promoted.close()


async def test_a_store_that_stands_still_for_three_seconds_costs_only_time(server: StoreServer, log: RedisLog) -> None:
    async with leading(log) as controller:
        standby = start_replica(log, "b")
        await standby.controller.wait_for_seq(controller.seq)
        load = Load(controller, submitters=2)
        await load.more(20)
        server.pause()
        stopped = time.monotonic()
        await wait_until_async(lambda: time.monotonic() - stopped > 3, "three seconds")
        server.resume()
        await load.more(20)
        await load.stop()
        assert set(load.acknowledged) <= set(accepted(await read_everything(log)))
        assert controller.is_leader
        await standby.stop()


async def test_while_the_store_is_away_askers_are_told_unavailable(server: StoreServer, log: RedisLog) -> None:
    async with leading(log) as controller:
        server.kill()
        with pytest.raises((StoreUnavailableError, TimeoutError)):
            async with asyncio.timeout(1):
                await submit(controller)
        server.start()
        await wait_until_async(lambda: _succeeds(controller), "submissions work again", 3)


async def test_a_store_without_memory_refuses_and_the_controller_lives(server: StoreServer, log: RedisLog) -> None:
    client = server.client()
    async with leading(log) as controller:
        client.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailableError, match="refused"):
            await submit(controller)
        client.config_set("maxmemory", "0")
        await submit(controller)
    client.close()


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({"appendonly": "no"}, "appendonly yes"),
        ({"appendfsync": "everysec"}, "appendfsync always"),
    ],
)
async def test_a_volatile_store_is_refused_with_the_fix_unless_allowed(settings: dict[str, str], fix: str) -> None:
    with running_store(**settings) as server:
        log = RedisLog(server.url, cell="t")
        with pytest.raises(VolatileStoreError, match=fix):
            await log.open()
        with pytest.raises(VolatileStoreError):
            await start_replica(log).task
        allowed = RedisLog(server.url, cell="t", allow_volatile=True)
        await allowed.open()
        await allowed.close()
        await log.close()


async def test_kill_nine_of_the_leader_is_followed_within_five_seconds(server: StoreServer, log: RedisLog) -> None:
    leader = LeaderProcess(server.url, "first")
    try:
        await wait_until_async(lambda: _has_leader(log), "the other process leads", 20)
        standby = start_replica(log, "second")
        await standby.controller.wait_for_seq(1)
        leader.kill()
        killed = time.monotonic()
        await leads(standby, timeout_s=5)
        assert time.monotonic() - killed <= 5
        assert standby.controller.state.epoch == 2
        await standby.stop()
    finally:
        leader.kill()


async def test_a_leader_that_was_stopped_and_wakes_up_writes_nothing_more(server: StoreServer, log: RedisLog) -> None:
    leader = LeaderProcess(server.url, "first")
    try:
        await wait_until_async(lambda: _has_leader(log), "the other process leads", 20)
        standby = start_replica(log, "second")
        await standby.controller.wait_for_seq(1)
        leader.pause()
        await leads(standby, timeout_s=5)
        leader.resume()
        seen = (await log.leader()).beat
        await wait_until_async(lambda: _beats_after(log, seen + 3), "the new leader goes on")
        assert [b.epoch for b in await log.read_after(0)] == [1, 2]
        assert standby.controller.is_leader
        await standby.stop()
    finally:
        leader.kill()


async def test_a_store_that_lost_acknowledged_batches_is_reported(
    server: StoreServer, log: RedisLog, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(log) as controller:
        await submit(controller)
        client = server.client()
        client.flushall()
        client.close()
        await wait_until_async(lambda: controller.seq == 1 and controller.is_leader, "it begins again")
        reasons = [str(getattr(record, "why", "")) for record in caplog.records]
        assert any("which it acknowledged" in why for why in reasons)


async def _succeeds(controller: Controller) -> bool:
    try:
        await submit(controller)
    except PhalanxError:
        return False
    return True


async def _has_leader(log: RedisLog) -> bool:
    return await log.last() >= 1


async def _beats_after(log: RedisLog, beat: int) -> bool:
    return (await log.leader()).beat >= beat
