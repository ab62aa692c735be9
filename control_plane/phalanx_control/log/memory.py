"""The log in this process's memory: for tests and simulations. Several controllers may share one object."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx.core.clock import Clock
from phalanx.core.errors import NotFoundError
from phalanx_control.log import keys as k
from phalanx_control.log.errors import BodiesOverCapError, FencedOutError, OutOfOrderError, UnreadableLogError
from phalanx_control.log.leadership import LeaderRecord
from phalanx_control.log.log import READ_LIMIT, Batch, NewBody, Snapshot, decode_events
from phalanx_control.state import events as ev

_Stored = tuple[NewBody, int]
"""A body and the wall ms at which it expires."""


class MemoryLog:
    """`LogStore` without a server. ``clock`` expires bodies."""

    def __init__(
        self, clock: Clock, *, body_ttl_ms: int = k.BODY_TTL_MS, cap_bytes: int = k.WORKSPACE_CAP_BYTES
    ) -> None:
        self._clock = clock
        self._body_ttl_ms = body_ttl_ms
        self._cap_bytes = cap_bytes
        self._batches: list[tuple[Batch, bytes]] = []
        self._bodies: dict[str, _Stored] = {}
        self._used: Counter[str] = Counter()
        self._record = LeaderRecord()
        self._replicas: dict[str, tuple[int, int]] = {}
        self._live: list[tuple[int, str]] = []
        self._live_seq = 0
        self._snapshot: Snapshot | None = None
        self._news = asyncio.Condition()

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def append(self, batch: Batch, bodies: Sequence[NewBody] = ()) -> None:
        self._check_fence(batch.epoch, batch.leader_id)
        last = await self.last()
        if batch.seq != last + 1:
            raise OutOfOrderError(batch.seq, last)
        self._check_cap(bodies)
        self._batches.append((batch, ev.encode(batch.events)))
        for body in bodies:
            self._keep(body)
        await self._tell()

    async def confirm(self, batch: Batch) -> bool:
        return await self.last() >= batch.seq

    async def read_after(self, seq: int, *, block_ms: int = 0, limit: int = READ_LIMIT) -> list[Batch]:
        await self._wait(lambda: bool(self._batches) and self._batches[-1][0].seq > seq, block_ms)
        batches: list[Batch] = []
        first = bisect_right(self._batches, seq, key=lambda entry: entry[0].seq)
        for batch, data in self._batches[first : first + limit]:
            try:
                decode_events(data, seq=batch.seq, schema=batch.schema)
            except UnreadableLogError:
                if not batches:
                    raise
                break
            batches.append(batch)
        return batches

    async def last(self) -> int:
        return self._batches[-1][0].seq if self._batches else 0

    async def body(self, name: str) -> bytes:
        self._expire()
        if name not in self._bodies:
            raise NotFoundError(f"the bytes of {name} are not in the store: they expire after {self._body_ttl_ms} ms")
        return self._bodies[name][0].data

    async def leader(self) -> LeaderRecord:
        return self._record

    async def acquire(
        self, seen: LeaderRecord, *, leader_id: str, address: str, min_epoch: int = 0
    ) -> LeaderRecord | None:
        if (self._record.epoch, self._record.beat) != (seen.epoch, seen.beat):
            return None
        epoch = max(self._record.epoch, min_epoch) + 1
        self._record = LeaderRecord(epoch=epoch, leader_id=leader_id, address=address)
        return self._record

    async def renew(self, epoch: int, leader_id: str) -> None:
        self._check_fence(epoch, leader_id)
        old = self._record
        self._record = LeaderRecord(epoch=epoch, leader_id=leader_id, beat=old.beat + 1, address=old.address)

    async def resign(self, epoch: int, leader_id: str) -> None:
        if (self._record.epoch, self._record.leader_id) == (epoch, leader_id):
            self._record = LeaderRecord(epoch=epoch, beat=self._record.beat)

    async def announce(self, replica: str, schema: int, *, ttl_ms: int) -> int:
        now = self._clock.wall_ms()
        self._replicas[replica] = (schema, now + ttl_ms)
        self._replicas = {name: said for name, said in self._replicas.items() if said[1] > now}
        return min(schema for schema, _ in self._replicas.values())

    async def put_live(self, fact: Mapping[str, Any]) -> None:
        self._live_seq += 1
        self._live = [*self._live[-k.LIVE_MAX_ENTRIES + 1 :], (self._live_seq, json.dumps(fact))]
        await self._tell()

    async def read_live(self, after_id: str, *, block_ms: int = 0) -> list[tuple[str, dict[str, Any]]]:
        after = self._live_seq if after_id == "$" else int(after_id.partition("-")[0])
        await self._wait(lambda: self._live_seq > after, block_ms)
        return [(f"{n}-0", json.loads(text)) for n, text in self._live if n > after][:READ_LIMIT]

    async def snapshot(self) -> Snapshot | None:
        return self._snapshot

    async def trim(self, snapshot: Snapshot, *, epoch: int, leader_id: str) -> None:
        self._check_fence(epoch, leader_id)
        self._snapshot = snapshot
        self._batches = [entry for entry in self._batches if entry[0].seq >= snapshot.seq]

    def _check_fence(self, epoch: int, leader_id: str) -> None:
        if (self._record.epoch, self._record.leader_id) != (epoch, leader_id):
            raise FencedOutError(self._record.epoch, self._record.leader_id)

    def _check_cap(self, bodies: Sequence[NewBody]) -> None:
        self._expire()
        used = Counter(self._used)
        for body in bodies:
            used[body.workspace] += len(body.data)
            if body.capped and used[body.workspace] > self._cap_bytes:
                raise BodiesOverCapError(body.workspace, self._cap_bytes)

    def _keep(self, body: NewBody) -> None:
        """Puts the body last: all live equally long, so the first one is the next to expire."""
        self._forget(body.name)
        self._bodies[body.name] = (body, self._clock.wall_ms() + self._body_ttl_ms)
        self._used[body.workspace] += len(body.data)

    def _forget(self, name: str) -> None:
        if name in self._bodies:
            body, _ = self._bodies.pop(name)
            self._used[body.workspace] -= len(body.data)

    def _expire(self) -> None:
        now = self._clock.wall_ms()
        while self._bodies:
            name, (_, expires_ms) = next(iter(self._bodies.items()))
            if expires_ms > now:
                return
            self._forget(name)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _wait(self, ready: Callable[[], bool], block_ms: int) -> None:
        if block_ms <= 0 or ready():
            return
        try:
            async with asyncio.timeout(block_ms / 1000), self._news:
                await self._news.wait_for(ready)
        except TimeoutError:
            return
