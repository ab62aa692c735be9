"""What every store of the log must do, run against memory and a real server alike, with a replica and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.clock import SystemClock
from phalanx.core.errors import NotFoundError
from phalanx_control.log.errors import BodiesOverCapError, FencedOutError, OutOfOrderError, UnreadableLogError
from phalanx_control.log.keys import Keys
from phalanx_control.log.leadership import LeaderRecord
from phalanx_control.log.log import Batch, LogStore, NewBody, Snapshot
from phalanx_control.log.memory import MemoryLog
from phalanx_control.log.redis_log import RedisLog
from tests.support.batches import batch
from tests.support.store import StoreServer, ownerless_keys, replicated_store, running_store
from tests.support.wait import wait_until_async

CAP_BYTES = 1000
TTL_MS = 60_000


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with running_store() as store:
        yield store


@pytest.fixture(scope="module")
def replicated() -> Iterator[StoreServer]:
    with replicated_store() as (primary, _):
        yield primary


def make_log(kind: str, server: StoreServer, *, ttl_ms: int = TTL_MS) -> LogStore:
    if kind == "memory":
        return MemoryLog(SystemClock(), body_ttl_ms=ttl_ms, cap_bytes=CAP_BYTES)
    client = server.client()
    client.flushall()
    client.close()
    replicas = int(kind == "redis with a replica")
    return RedisLog(server.url, cell="t", replicas=replicas, body_ttl_ms=ttl_ms, cap_bytes=CAP_BYTES)


@pytest.fixture(params=["memory", "redis", "redis with a replica"])
async def log(request: pytest.FixtureRequest, server: StoreServer) -> AsyncIterator[LogStore]:
    """A log that "a" leads in epoch 1; afterwards no key may be left without TTL or owner."""
    if request.param == "redis with a replica":
        server = request.getfixturevalue("replicated")
    store = make_log(request.param, server)
    await store.open()
    assert await store.acquire(LeaderRecord(), leader_id="a", address="a:1")
    yield store
    await store.close()
    assert ownerless_keys(server, Keys("t").permanent) == []


async def test_what_was_appended_is_read_back_in_order(log: LogStore) -> None:
    batches = [batch(n, mark="ä\n\x00") for n in range(1, 6)]
    for b in batches:
        await log.append(b)
    assert await log.read_after(0) == batches
    assert await log.read_after(3) == batches[3:]
    assert await log.read_after(0, limit=2) == batches[:2]
    assert await log.last() == 5


async def test_an_empty_log_reads_as_nothing(log: LogStore) -> None:
    assert await log.read_after(0) == []
    assert await log.last() == 0


async def test_what_was_appended_is_confirmed_as_often_as_asked_and_led_on(log: LogStore) -> None:
    await log.append(batch(1))
    assert [await log.confirm(batch(1)) for _ in range(3)] == [True] * 3
    await log.renew(1, "a")
    await log.append(batch(2))
    assert await log.read_after(0) == [batch(1), batch(2)]


async def test_a_repeated_append_is_refused_whole(log: LogStore) -> None:
    await log.append(batch(1), [NewBody(name="c/args", workspace="w", data=b"first")])
    with pytest.raises(OutOfOrderError) as refused:
        await log.append(batch(1, mark="again"), [NewBody(name="c/args", workspace="w", data=b"second")])
    assert refused.value.last_seq == 1
    assert await log.read_after(0) == [batch(1)]
    assert await log.body("c/args") == b"first"


async def test_a_batch_that_skips_a_number_is_refused(log: LogStore) -> None:
    with pytest.raises(OutOfOrderError):
        await log.append(batch(2))
    assert await log.last() == 0


@pytest.mark.parametrize("stranger", [{"epoch": 2}, {"epoch": 0}, {"leader_id": "b"}])
async def test_nobody_but_the_leader_appends(log: LogStore, stranger: dict[str, int | str]) -> None:
    with pytest.raises(FencedOutError) as refused:
        await log.append(replace(batch(1), **stranger), [NewBody(name="c", workspace="w", data=b"x")])
    assert (refused.value.epoch, refused.value.leader_id) == (1, "a")
    assert await log.last() == 0
    with pytest.raises(NotFoundError):
        await log.body("c")


async def test_a_taken_over_leader_is_fenced_out_of_every_write(log: LogStore) -> None:
    taken = await log.acquire(await log.leader(), leader_id="b", address="b:1")
    assert taken == LeaderRecord(epoch=2, leader_id="b", address="b:1")
    snapshot = Snapshot(seq=0, data=b"")
    for write in (log.append(batch(1)), log.renew(1, "a"), log.trim(snapshot, epoch=1, leader_id="a")):
        with pytest.raises(FencedOutError):
            await write
    await log.append(batch(1, epoch=2, leader_id="b"))


async def test_only_one_of_two_that_saw_the_same_record_takes_over(log: LogStore) -> None:
    seen = await log.leader()
    got = await asyncio.gather(*(log.acquire(seen, leader_id=name, address="") for name in ("b", "c")))
    assert sorted(record is not None for record in got) == [False, True]


async def test_a_leader_that_still_beats_is_not_taken_over(log: LogStore) -> None:
    seen = await log.leader()
    await log.renew(1, "a")
    assert await log.acquire(seen, leader_id="b", address="") is None
    assert (await log.leader()).leader_id == "a"


async def test_a_new_epoch_is_above_every_epoch_in_the_log(log: LogStore) -> None:
    taken = await log.acquire(await log.leader(), leader_id="b", address="", min_epoch=41)
    assert taken is not None
    assert taken.epoch == 42


async def test_resigning_leaves_the_epoch_and_no_leader(log: LogStore) -> None:
    await log.resign(1, "somebody else")
    assert (await log.leader()).leader_id == "a"
    await log.resign(1, "a")
    record = await log.leader()
    assert (record.epoch, record.leader_id, record.address) == (1, "", "")
    with pytest.raises(FencedOutError):
        await log.append(batch(1))


async def test_a_blocking_read_returns_as_soon_as_there_is_a_batch(log: LogStore) -> None:
    reader = asyncio.create_task(log.read_after(0, block_ms=2000))
    await wait_until_async(lambda: not reader.done(), "the reader has begun")
    await log.append(batch(1))
    assert await reader == [batch(1)]


async def test_a_blocking_read_gives_up_after_its_time(log: LogStore) -> None:
    assert await log.read_after(0, block_ms=30) == []


async def test_bodies_are_read_by_name_and_expire(request: pytest.FixtureRequest, server: StoreServer) -> None:
    for kind in ("memory", "redis"):
        log = make_log(kind, server, ttl_ms=100)
        await log.acquire(LeaderRecord(), leader_id="a", address="")
        await log.append(batch(1), [NewBody(name="c/args", workspace="w", data=b"\x00\xff")])
        assert await log.body("c/args") == b"\x00\xff"
        await wait_until_async(lambda log=log: _is_absent(log, "c/args"), "the body has expired", 5)
        await log.close()


async def test_a_workspace_beyond_its_cap_is_refused_whole_and_others_are_not(log: LogStore) -> None:
    await log.append(batch(1), [NewBody(name="1", workspace="w", data=bytes(600))])
    bodies = [NewBody(name="o", workspace="other", data=bytes(600)), NewBody(name="2", workspace="w", data=bytes(600))]
    with pytest.raises(BodiesOverCapError) as refused:
        await log.append(batch(2), bodies)
    assert refused.value.workspace == "w"
    assert await _is_absent(log, "o")
    await log.append(batch(2), bodies[:1])


async def test_results_are_kept_even_where_the_workspace_is_full(log: LogStore) -> None:
    await log.append(batch(1), [NewBody(name="r", workspace="w", data=bytes(5000), capped=False)])
    assert len(await log.body("r")) == 5000
    with pytest.raises(BodiesOverCapError):
        await log.append(batch(2), [NewBody(name="a", workspace="w", data=b"1")])


async def test_expired_bodies_give_their_bytes_back(server: StoreServer) -> None:
    for kind in ("memory", "redis"):
        log = make_log(kind, server, ttl_ms=100)
        await log.acquire(LeaderRecord(), leader_id="a", address="")
        await log.append(batch(1), [NewBody(name="1", workspace="w", data=bytes(900))])
        bodies = [NewBody(name="2", workspace="w", data=bytes(900))]
        await wait_until_async(lambda log=log, bodies=bodies: _is_accepted(log, batch(2), bodies), "there is room", 5)
        await log.close()


async def test_an_unknown_kind_or_a_newer_schema_is_said_and_what_precedes_it_is_read(log: LogStore) -> None:
    await log.append(batch(1))
    await log.append(replace(batch(2), schema=99))
    assert await log.read_after(0) == [batch(1)]
    with pytest.raises(UnreadableLogError, match="schema version 99"):
        await log.read_after(1)


async def test_live_facts_are_read_after_an_id_and_capped(log: LogStore) -> None:
    for n in range(3):
        await log.put_live({"n": n, "text": "ü"})
    facts = await log.read_live("0")
    assert [fact["n"] for _, fact in facts] == [0, 1, 2]
    assert [fact["n"] for _, fact in await log.read_live(facts[1][0])] == [2]
    assert await log.read_live(facts[2][0]) == []


async def test_trimming_keeps_the_snapshot_and_what_follows(log: LogStore) -> None:
    assert await log.snapshot() is None
    for n in range(1, 6):
        await log.append(batch(n))
    await log.trim(Snapshot(seq=3, data=b"state"), epoch=1, leader_id="a")
    assert await log.snapshot() == Snapshot(seq=3, data=b"state")
    assert [b.seq for b in await log.read_after(0)] == [3, 4, 5]
    await log.append(batch(6))
    await log.trim(Snapshot(seq=6, data=b"state"), epoch=1, leader_id="a")
    assert await log.last() == 6
    await log.append(batch(7))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.sampled_from("ab")), max_size=30))
async def test_both_stores_answer_alike(server: StoreServer, steps: list[tuple[int, int, str]]) -> None:
    logs = [make_log(kind, server) for kind in ("memory", "redis")]
    try:
        for log in logs:
            await log.acquire(LeaderRecord(), leader_id="a", address="")
        for seq, epoch, leader_id in steps:
            step = batch(seq, epoch=epoch, leader_id=leader_id)
            answers = [await _outcome(log, step) for log in logs]
            assert answers[0] == answers[1]
        assert await logs[0].read_after(0) == await logs[1].read_after(0)
    finally:
        for log in logs:
            await log.close()


async def _outcome(log: LogStore, step: Batch) -> str:
    try:
        await log.append(step)
    except (FencedOutError, OutOfOrderError) as e:
        return str(e)
    return "appended"


async def _is_absent(log: LogStore, name: str) -> bool:
    try:
        await log.body(name)
    except NotFoundError:
        return True
    return False


async def _is_accepted(log: LogStore, new: Batch, bodies: list[NewBody]) -> bool:
    try:
        await log.append(new, bodies)
    except BodiesOverCapError:
        return False
    return True


async def test_replicas_agree_on_the_least_schema_version_that_a_live_one_reads(log: LogStore) -> None:
    assert await log.announce("new", 3, ttl_ms=TTL_MS) == 3
    assert await log.announce("old", 1, ttl_ms=50) == 1
    assert await log.announce("new", 3, ttl_ms=TTL_MS) == 1

    async def old_is_forgotten() -> bool:
        return await log.announce("new", 3, ttl_ms=TTL_MS) == 3

    await wait_until_async(old_is_forgotten, "the silent replica does not count any more")
