"""The atomic steps on the store: one typed function over one script each. What the answers mean is the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from phalanx_control.log.keys import Keys
from phalanx_control.log.leadership import LeaderRecord
from phalanx_control.log.log import Batch, NewBody, Snapshot
from phalanx_control.log.replicas import run_and_wait
from phalanx_control.state import events as ev

_FOLDER = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another leader's record stands in the store."""

    epoch: int
    leader_id: str


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    last_seq: int


@dataclass(frozen=True, slots=True)
class Full:
    """``body`` is the index of the first body beyond its workspace's cap."""

    body: int


@dataclass(frozen=True, slots=True)
class TooFew:
    """It is written, but fewer replicas than asked for are known to have it."""

    why: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The log does not hold the batch."""


class Scripts:
    """The scripts of one cell, loaded once and sent by digest. Batches wait for so many ``replicas`` of the store."""

    def __init__(self, client: Redis, keys: Keys, *, replicas: int = 0) -> None:
        self._client = client
        self._keys = keys
        self._replicas = replicas
        self._append = client.register_script(_source("append"))
        self._confirm = client.register_script(_source("confirm"))
        self._acquire = client.register_script(_source("acquire"))
        self._renew = client.register_script(_source("renew"))
        self._resign = client.register_script(_source("resign"))
        self._announce = client.register_script(_source("announce"))
        self._trim = client.register_script(_source("trim"))

    async def append(
        self, batch: Batch, bodies: Sequence[NewBody], *, ttl_ms: int, cap_bytes: int
    ) -> Fenced | OutOfOrder | Full | TooFew | None:
        """Compare-and-append; None when batch and bodies are written, and replicas have them."""
        keys = [self._keys.log, self._keys.leader]
        args: list[Any] = [batch.epoch, batch.leader_id, batch.seq, batch.log_ms, batch.wall_ms, batch.schema]
        args += [ev.encode(batch.events), ttl_ms, cap_bytes]
        for body in bodies:
            keys += [self._keys.body(body.name), self._keys.usage(body.workspace)]
            args += [body.data, int(body.capped)]
        answer, lacking = await self._write(self._append, keys, args)
        if answer[0] == b"order":
            return OutOfOrder(int(answer[1]))
        if answer[0] == b"full":
            return Full(int(float(answer[1])))
        return _fenced(answer) or (TooFew(lacking) if lacking else None)

    async def confirm(self, batch: Batch) -> Fenced | Absent | TooFew | None:
        """None when the log holds the batch, and replicas have it."""
        args = [batch.epoch, batch.leader_id, batch.seq]
        answer, lacking = await self._write(self._confirm, [self._keys.log, self._keys.leader], args)
        if answer[0] == b"absent":
            return Absent()
        return _fenced(answer) or (TooFew(lacking) if lacking else None)

    async def acquire(self, seen: LeaderRecord, *, leader_id: str, address: str, min_epoch: int) -> int:
        """Returns the new epoch, 0 where the record is no longer ``seen``."""
        args = [seen.epoch, seen.beat, min_epoch, leader_id, address]
        return int(await self._acquire(keys=[self._keys.leader], args=args))

    async def renew(self, epoch: int, leader_id: str) -> Fenced | None:
        return _fenced(await self._renew(keys=[self._keys.leader], args=[epoch, leader_id]))

    async def resign(self, epoch: int, leader_id: str) -> None:
        await self._resign(keys=[self._keys.leader], args=[epoch, leader_id])

    async def announce(self, replica: str, schema: int, ttl_ms: int) -> int:
        """Returns the least schema version among the replicas that live."""
        return int(await self._announce(keys=[self._keys.replicas], args=[replica, schema, ttl_ms]))

    async def trim(self, snapshot: Snapshot, *, epoch: int, leader_id: str) -> Fenced | None:
        keys = [self._keys.log, self._keys.leader, self._keys.snapshot]
        return _fenced(await self._trim(keys=keys, args=[epoch, leader_id, snapshot.seq, snapshot.data]))

    async def _write(self, script: AsyncScript, keys: list[str], args: list[Any]) -> tuple[list[bytes], str]:
        """Returns the script's answer, and what its replicas lack; empty where none are waited for."""
        if not self._replicas:
            return await script(keys=keys, args=args), ""
        return await run_and_wait(self._client, script, keys, args, replicas=self._replicas)


def _source(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()


def _fenced(answer: list[bytes]) -> Fenced | None:
    return None if answer[0] == b"ok" else Fenced(int(answer[1]), answer[2].decode())
