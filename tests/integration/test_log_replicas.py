"""A batch counts once the store's replicas have it: against a real server with a real replica that goes and comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from phalanx_control.log.errors import (
    AppendUncertainError,
    BodiesOverCapError,
    FencedOutError,
    OutOfOrderError,
    VolatileStoreError,
)
from phalanx_control.log.keys import Keys
from phalanx_control.log.log import NewBody
from phalanx_control.log.redis_log import RedisLog
from phalanx_control.log.surely import append_surely
from phalanx_control.state import events as ev
from tests.support.batches import batch
from tests.support.replicas import leading, submit
from tests.support.store import StoreServer, connected_replicas, ownerless_keys, replicated_store
from tests.support.wait import wait_until, wait_until_async

BACK_S = 30
"""A replica that comes back connects within a second or two; the machine may be busy."""
CAP_BYTES = 1000


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[StoreServer, StoreServer]]:
    with replicated_store() as both:
        yield both


@pytest.fixture
def primary(servers: tuple[StoreServer, StoreServer]) -> StoreServer:
    """The server, empty, with its replica connected."""
    wait_until(lambda: connected_replicas(servers[0]) == 1, "the replica is connected", BACK_S)
    ask(servers[0], "FLUSHALL")
    return servers[0]


@pytest.fixture
def replica(servers: tuple[StoreServer, StoreServer], primary: StoreServer) -> Iterator[StoreServer]:
    """The server's replica; runs again afterwards, whatever became of it."""
    yield servers[1]
    if not servers[1].pid:
        servers[1].start()
    servers[1].resume()


@pytest.fixture
async def log(primary: StoreServer) -> AsyncIterator[RedisLog]:
    """A log that waits for one replica and that "a" leads in epoch 1."""
    redis_log = RedisLog(primary.url, cell="t", replicas=1, cap_bytes=CAP_BYTES)
    await redis_log.open()
    await redis_log.acquire(await redis_log.leader(), leader_id="a", address="a:1")
    yield redis_log
    await redis_log.close()
    assert ownerless_keys(primary, Keys("t").permanent) == []


def ask(server: StoreServer, *words: str) -> Any:
    client = server.client()
    try:
        return client.execute_command(*words)
    finally:
        client.close()


def waits(server: StoreServer) -> int:
    """Returns how often the server was asked to wait for replicas since its statistics began."""
    client = server.client()
    try:
        return int(client.info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"])
    finally:
        client.close()


async def length(log: RedisLog) -> int:
    return len(await log.read_after(0))


async def test_what_was_acknowledged_is_on_the_replica(log: RedisLog, replica: StoreServer) -> None:
    for seq in range(1, 21):
        await log.append(batch(seq), [NewBody(name=f"c{seq}", workspace="w", data=b"1")])
        assert ask(replica, "XLEN", Keys("t").log) == seq
        assert ask(replica, "GET", Keys("t").body(f"c{seq}")) == b"1"


async def test_without_the_replica_an_append_is_uncertain_and_says_why(log: RedisLog, replica: StoreServer) -> None:
    replica.pause()
    with pytest.raises(AppendUncertainError, match=r"batch 1 is in the log, but 0 of 1 replicas.*--store-replicas"):
        await log.append(batch(1))
    replica.kill()
    with pytest.raises(AppendUncertainError, match="0 of 1 replicas"):
        await log.append(batch(2))
    assert await log.read_after(0) == [batch(1), batch(2)]


async def test_a_batch_found_in_the_log_counts_only_once_the_replica_has_it(
    log: RedisLog, primary: StoreServer, replica: StoreServer
) -> None:
    replica.pause()
    with pytest.raises(AppendUncertainError):
        await log.append(batch(1))
    fresh = RedisLog(primary.url, cell="t", replicas=1)
    for asked in (log, fresh):
        with pytest.raises(AppendUncertainError, match="0 of 1 replicas"):
            await asked.confirm(batch(1))
    replica.resume()
    await wait_until_async(lambda: _is_confirmed(fresh), "the replica has the batch", BACK_S)
    assert ask(replica, "XLEN", Keys("t").log) == 1
    assert not await fresh.confirm(batch(2))
    await fresh.close()


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_an_append_waits_for_a_replica_that_is_away_and_happens_once(
    how: str, log: RedisLog, replica: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    _take_away(replica, how)
    appending = asyncio.create_task(append_surely(log, batch(1), (), retry_s=0.01))
    first_beat = (await log.leader()).beat
    await wait_until_async(lambda: _beats_after(log, first_beat + 1), "it was looked for twice")
    assert not appending.done()
    _bring_back(replica, how)
    await asyncio.wait_for(appending, BACK_S)
    assert await log.read_after(0) == [batch(1)]
    assert ask(replica, "XLEN", Keys("t").log) == 1
    reasons = [str(getattr(r, "why", "")) for r in caplog.records if r.message == "append uncertain"]
    assert len(reasons) == 1
    assert "0 of 1 replicas" in reasons[0]


async def test_a_controller_accepts_a_call_only_once_the_replica_has_it(
    primary: StoreServer, replica: StoreServer
) -> None:
    log = RedisLog(primary.url, cell="t", replicas=1)
    async with leading(log) as controller:
        before = await length(log)
        replica.kill()
        submitting = asyncio.create_task(submit(controller))
        await wait_until_async(lambda: _is_longer(log, before), "the batch is written")
        await wait_until_async(lambda: waits(primary) >= 1, "it waits for the replica")
        assert not submitting.done()
        assert controller.seq == before
        replica.start()
        call_id = await asyncio.wait_for(submitting, BACK_S)
        batches = await log.read_after(0)
        assert [e.call.id for b in batches for e in b.events if isinstance(e, ev.CallAccepted)] == [call_id]
        assert ask(replica, "XLEN", Keys("t").log) >= before + 1
        assert controller.is_leader
    await log.close()


@pytest.mark.parametrize("away", [False, True])
async def test_refusals_keep_their_names(log: RedisLog, replica: StoreServer, away: bool) -> None:
    await log.append(batch(1))
    if away:
        replica.pause()
    with pytest.raises(OutOfOrderError):
        await log.append(batch(1))
    with pytest.raises(BodiesOverCapError):
        await log.append(batch(2), [NewBody(name="c", workspace="w", data=bytes(CAP_BYTES + 1))])
    await log.acquire(await log.leader(), leader_id="b", address="b:1")
    with pytest.raises(FencedOutError) as fenced:
        await log.append(batch(2))
    assert fenced.value.leader_id == "b"
    with pytest.raises(FencedOutError):
        await log.confirm(batch(1))
    assert await length(log) == 1


async def test_a_server_that_forgot_the_scripts_is_given_them_again(log: RedisLog, primary: StoreServer) -> None:
    await log.append(batch(1))
    ask(primary, "SCRIPT", "FLUSH")
    await log.append(batch(2))
    ask(primary, "SCRIPT", "FLUSH")
    assert await log.confirm(batch(2))


async def test_a_server_that_takes_no_writes_refuses_and_nothing_is_uncertain(
    log: RedisLog, primary: StoreServer, replica: StoreServer
) -> None:
    ask(primary, "CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Exception, match="the store refused batch 1"):
        await log.append(batch(1))
    ask(primary, "CONFIG", "SET", "maxmemory", "0")
    await log.append(batch(1))


async def test_a_server_that_may_not_be_asked_to_wait_leaves_the_append_uncertain(
    log: RedisLog, primary: StoreServer
) -> None:
    ask(primary, "ACL", "SETUSER", "default", "-wait")
    try:
        with pytest.raises(AppendUncertainError, match="batch 1 is in the log, but the store refuses WAIT"):
            await log.append(batch(1))
    finally:
        ask(primary, "ACL", "SETUSER", "default", "+wait")
    assert await log.confirm(batch(1))


async def test_without_the_setting_nobody_is_waited_for(primary: StoreServer, replica: StoreServer) -> None:
    ask(primary, "CONFIG", "RESETSTAT")
    replica.pause()
    log = RedisLog(primary.url, cell="t")
    await log.open()
    await log.acquire(await log.leader(), leader_id="a", address="a:1")
    await log.append(batch(1))
    assert await log.confirm(batch(1))
    assert waits(primary) == 0
    await log.close()


async def test_a_store_with_fewer_replicas_than_asked_for_is_refused_with_the_fix_unless_allowed(
    primary: StoreServer,
) -> None:
    log = RedisLog(primary.url, cell="t", replicas=2)
    with pytest.raises(VolatileStoreError, match="1 of 2 replicas are connected: start them with `replicaof`"):
        await log.open()
    allowed = RedisLog(primary.url, cell="t", replicas=2, allow_volatile=True)
    await allowed.open()
    for opened in (log, allowed):
        await opened.close()


def _take_away(replica: StoreServer, how: str) -> None:
    if how == "killed":
        replica.kill()
    else:
        replica.pause()


def _bring_back(replica: StoreServer, how: str) -> None:
    if how == "killed":
        replica.start()
    else:
        replica.resume()


async def _is_confirmed(log: RedisLog) -> bool:
    try:
        return await log.confirm(batch(1))
    except AppendUncertainError:
        return False


async def _beats_after(log: RedisLog, beat: int) -> bool:
    return (await log.leader()).beat > beat


async def _is_longer(log: RedisLog, than: int) -> bool:
    return await length(log) > than
