"""The log in Redis (7 or later) or Valkey: the one file that opens a connection to the store.

Two clients share one connection pool's settings: one repeats what may be repeated (reads), one never does (writes),
because whether a lost write landed is for the controller to find out. Batches wait for the store's replicas where some
are configured (`replicas`). Leadership does not: a leader that a failover forgot is kept out by the fence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from phalanx.core.errors import NotFoundError
from phalanx_control.log import keys as k
from phalanx_control.log.durability import check_durability
from phalanx_control.log.errors import (
    AppendUncertainError,
    BodiesOverCapError,
    FencedOutError,
    OutOfOrderError,
    StoreUnavailableError,
    UnreadableLogError,
)
from phalanx_control.log.leadership import LeaderRecord
from phalanx_control.log.log import READ_LIMIT, Batch, NewBody, Snapshot, decode_events
from phalanx_control.log.lua import Absent, Fenced, Full, OutOfOrder, Scripts, TooFew

TIMEOUT_S = 5.0
"""A store that is silent for longer is treated as gone; blocking reads wait for less than this."""
MAX_BLOCK_MS = 2000
_READ_RETRIES = 6
_LOST = (RedisConnectionError, RedisTimeoutError, OSError)


class RedisLog:
    """`LogStore` on a Redis or Valkey server given by URL (``unix:///path`` or ``redis://host:port/db``).

    A batch is acknowledged when so many ``replicas`` of that server have it, too.
    """

    def __init__(
        self,
        url: str,
        *,
        cell: str,
        allow_volatile: bool = False,
        replicas: int = 0,
        body_ttl_ms: int = k.BODY_TTL_MS,
        cap_bytes: int = k.WORKSPACE_CAP_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._keys = k.Keys(cell)
        self._allow_volatile = allow_volatile
        self._replicas = replicas
        self._body_ttl_ms = body_ttl_ms
        self._cap_bytes = cap_bytes
        self._timeout_s = timeout_s
        self._reads = _client(url, Retry(ExponentialBackoff(cap=0.2, base=0.01), _READ_RETRIES), timeout_s)
        self._writes = _client(url, Retry(NoBackoff(), 0), timeout_s)
        self._scripts = Scripts(self._writes, self._keys, replicas=replicas)

    async def open(self) -> None:
        check = check_durability(self._reads, allow_volatile=self._allow_volatile, replicas=self._replicas)
        await self._ask(check)

    async def close(self) -> None:
        await self._reads.aclose()
        await self._writes.aclose()

    async def append(self, batch: Batch, bodies: Sequence[NewBody] = ()) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                refused = await self._scripts.append(batch, bodies, ttl_ms=self._body_ttl_ms, cap_bytes=self._cap_bytes)
        except _LOST as e:
            raise AppendUncertainError(f"batch {batch.seq}: {e}") from e
        except RedisError as e:
            raise StoreUnavailableError(f"the store refused batch {batch.seq}: {e}") from e
        match refused:
            case Fenced(epoch, leader_id):
                raise FencedOutError(epoch, leader_id)
            case OutOfOrder(last_seq):
                raise OutOfOrderError(batch.seq, last_seq)
            case Full(body):
                raise BodiesOverCapError(bodies[body].workspace, self._cap_bytes)
            case TooFew(why):
                raise _not_on_replicas(batch, why)
            case None:
                return

    async def confirm(self, batch: Batch) -> bool:
        if not self._replicas:
            return True
        match await self._ask(self._scripts.confirm(batch)):
            case Fenced(epoch, leader_id):
                raise FencedOutError(epoch, leader_id)
            case TooFew(why):
                raise _not_on_replicas(batch, why)
            case Absent():
                return False
            case _:
                return True

    async def read_after(self, seq: int, *, block_ms: int = 0, limit: int = READ_LIMIT) -> list[Batch]:
        entries = await self._read(self._keys.log, f"{seq}-0", block_ms, limit)
        batches: list[Batch] = []
        for entry_id, fields in entries:
            try:
                batches.append(_batch(entry_id, fields))
            except UnreadableLogError:
                if not batches:
                    raise
                break
        return batches

    async def last(self) -> int:
        entries = await self._ask(self._reads.xrevrange(self._keys.log, count=1))
        return _seq(entries[0][0]) if entries else 0

    async def body(self, name: str) -> bytes:
        data: bytes | None = await self._ask(self._reads.get(self._keys.body(name)))
        if data is None:
            raise NotFoundError(f"the bytes of {name} are not in the store: they expire after {self._body_ttl_ms} ms")
        return data

    async def leader(self) -> LeaderRecord:
        record: dict[bytes, bytes] = await self._ask(self._reads.hgetall(self._keys.leader))
        return LeaderRecord(
            epoch=int(record.get(b"epoch", 0)),
            leader_id=record.get(b"leader", b"").decode(),
            beat=int(record.get(b"beat", 0)),
            address=record.get(b"address", b"").decode(),
        )

    async def acquire(
        self, seen: LeaderRecord, *, leader_id: str, address: str, min_epoch: int = 0
    ) -> LeaderRecord | None:
        epoch = await self._ask(self._scripts.acquire(seen, leader_id=leader_id, address=address, min_epoch=min_epoch))
        return LeaderRecord(epoch=epoch, leader_id=leader_id, address=address) if epoch else None

    async def renew(self, epoch: int, leader_id: str) -> None:
        _check_fence(await self._ask(self._scripts.renew(epoch, leader_id)))

    async def resign(self, epoch: int, leader_id: str) -> None:
        await self._ask(self._scripts.resign(epoch, leader_id))

    async def announce(self, replica: str, schema: int, *, ttl_ms: int) -> int:
        least: int = await self._ask(self._scripts.announce(replica, schema, ttl_ms))
        return least

    async def put_live(self, fact: Mapping[str, Any]) -> None:
        data = json.dumps(fact, separators=(",", ":"))
        await self._ask(self._writes.xadd(self._keys.live, {"d": data}, maxlen=k.LIVE_MAX_ENTRIES))

    async def read_live(self, after_id: str, *, block_ms: int = 0) -> list[tuple[str, dict[str, Any]]]:
        entries = await self._read(self._keys.live, after_id, block_ms, READ_LIMIT)
        return [(entry_id.decode(), json.loads(fields[b"d"])) for entry_id, fields in entries]

    async def snapshot(self) -> Snapshot | None:
        seq, data = await self._ask(self._reads.hmget(self._keys.snapshot, ["seq", "data"]))
        return Snapshot(seq=int(seq), data=data) if seq is not None else None

    async def trim(self, snapshot: Snapshot, *, epoch: int, leader_id: str) -> None:
        _check_fence(await self._ask(self._scripts.trim(snapshot, epoch=epoch, leader_id=leader_id)))

    async def _ask(self, answer: Awaitable[Any]) -> Any:
        """Turns whatever the store or the way to it does wrong into StoreUnavailableError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except ResponseError as e:
            raise StoreUnavailableError(f"the store refused: {e}") from e
        except (RedisError, OSError) as e:
            raise StoreUnavailableError(f"the store does not answer: {e or 'timed out'}") from e

    async def _read(self, key: str, after_id: str, block_ms: int, limit: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        block = min(block_ms, MAX_BLOCK_MS) or None
        answer = await self._ask(self._reads.xread({key: after_id}, count=limit, block=block))
        if not answer:
            return []
        streams = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]
        return [entry for entries in streams for entry in entries]


def _client(url: str, retry: Retry, timeout_s: float) -> Redis:
    """The client's own ``socket_timeout`` stays off: it is built on `asyncio.wait_for`, which in Python 3.11 swallows
    a cancellation that meets an answer. The bound is `asyncio.timeout` around each request.
    """
    return Redis.from_url(
        url, retry=retry, socket_timeout=None, socket_connect_timeout=timeout_s, client_name="phalanx-control"
    )


def _not_on_replicas(batch: Batch, why: str) -> AppendUncertainError:
    return AppendUncertainError(
        f"batch {batch.seq} is in the log, but {why}: see to the store's replicas, or lower --store-replicas"
    )


def _check_fence(answer: Fenced | None) -> None:
    if answer is not None:
        raise FencedOutError(answer.epoch, answer.leader_id)


def _seq(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _batch(entry_id: bytes, fields: dict[bytes, bytes]) -> Batch:
    seq, schema = _seq(entry_id), int(fields[b"v"])
    return Batch(
        seq=seq,
        epoch=int(fields[b"e"]),
        leader_id=fields[b"l"].decode(),
        log_ms=int(fields[b"t"]),
        wall_ms=int(fields[b"w"]),
        schema=schema,
        events=decode_events(fields[b"d"], seq=seq, schema=schema),
    )
