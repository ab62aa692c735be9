"""The durable log: what a batch is, and what a store of batches must do.

Two stores keep this contract, `redis_log.RedisLog` and `memory.MemoryLog`, under one conformance suite. A store
compares and writes in one step; it never decides anything and knows no event by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from phalanx_control.log.errors import UnreadableLogError
from phalanx_control.log.leadership import LeaderRecord
from phalanx_control.state import events as ev
from phalanx_control.state.model import SCHEMA_VERSION

READ_LIMIT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One entry of the log. ``log_ms`` is the log's own time; ``wall_ms`` is for people."""

    seq: int
    epoch: int
    leader_id: str
    log_ms: int
    wall_ms: int
    events: ev.Events
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBody:
    """Bytes to be written with a batch. ``capped`` ones are refused beyond the workspace's cap; results never are."""

    name: str
    workspace: str
    data: bytes
    capped: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state after batch ``seq``, as `snapshot.encode_state` wrote it."""

    seq: int
    data: bytes


class LogStore(Protocol):
    """A store of batches, bodies, the leader's record and live facts. Any method may raise StoreUnavailableError."""

    async def open(self) -> None:
        """Connects. Raises VolatileStoreError where acknowledged writes could be lost and that was not allowed."""
        ...

    async def close(self) -> None: ...

    async def append(self, batch: Batch, bodies: Sequence[NewBody] = ()) -> None:
        """Writes batch and bodies together and returns when they are durable, or raises and wrote nothing:
        FencedOutError, OutOfOrderError, BodiesOverCapError, StoreUnavailableError. After AppendUncertainError
        either may be the case, or the batch is written and not yet durable.
        """
        ...

    async def confirm(self, batch: Batch) -> bool:
        """Returns True when ``batch``, which was found in the log, is durable there, False when it is there no longer.
        Raises AppendUncertainError while it is not durable, and FencedOutError.
        """
        ...

    async def read_after(self, seq: int, *, block_ms: int = 0, limit: int = READ_LIMIT) -> list[Batch]:
        """Returns up to ``limit`` batches after ``seq``, waiting up to ``block_ms`` for a first one.
        Raises UnreadableLogError where the first of them is beyond this version.
        """
        ...

    async def last(self) -> int:
        """Returns the sequence number of the last batch, 0 for none."""
        ...

    async def body(self, name: str) -> bytes:
        """Raises NotFoundError when it never was, or has expired."""
        ...

    async def leader(self) -> LeaderRecord: ...

    async def acquire(
        self, seen: LeaderRecord, *, leader_id: str, address: str, min_epoch: int = 0
    ) -> LeaderRecord | None:
        """Takes over from ``seen`` with an epoch above it and above ``min_epoch``; None where somebody was faster
        or the leader moved.
        """
        ...

    async def renew(self, epoch: int, leader_id: str) -> None:
        """Raises the beat. Raises FencedOutError when another one leads."""
        ...

    async def resign(self, epoch: int, leader_id: str) -> None:
        """Leaves the record without a leader, so that nobody has to wait; nothing where another one leads."""
        ...

    async def announce(self, replica: str, schema: int, *, ttl_ms: int) -> int:
        """Says for ``ttl_ms`` that ``replica`` lives and reads ``schema``. Returns the least version that a live
        replica reads.
        """
        ...

    async def put_live(self, fact: Mapping[str, Any]) -> None: ...

    async def read_live(self, after_id: str, *, block_ms: int = 0) -> list[tuple[str, dict[str, Any]]]:
        """Returns (id, fact) after ``after_id``; "0" is the oldest kept, "$" only what comes from now on."""
        ...

    async def snapshot(self) -> Snapshot | None:
        """Returns the newest one, None before the first."""
        ...

    async def trim(self, snapshot: Snapshot, *, epoch: int, leader_id: str) -> None:
        """Makes ``snapshot`` the one to start from and drops the batches before it. Raises FencedOutError."""
        ...


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as one line of JSON, as it stands in the archive."""

    seq: int
    epoch: int
    leader: str
    log_ms: int
    wall_ms: int
    schema: int
    events: msgspec.Raw


_line_encoder = msgspec.json.Encoder()
_line_decoder = msgspec.json.Decoder(BatchLine)


def batch_to_line(batch: Batch) -> bytes:
    """Returns the batch as one line of JSON, with its newline."""
    line = BatchLine(
        seq=batch.seq,
        epoch=batch.epoch,
        leader=batch.leader_id,
        log_ms=batch.log_ms,
        wall_ms=batch.wall_ms,
        schema=batch.schema,
        events=msgspec.Raw(ev.encode(batch.events)),
    )
    return _line_encoder.encode(line) + b"\n"


def batch_from_line(data: bytes) -> Batch:
    """Reads what :func:`batch_to_line` wrote. Raises UnreadableLogError."""
    try:
        line = _line_decoder.decode(data)
    except msgspec.DecodeError as e:
        raise UnreadableLogError(f"a line of the archive does not parse: {e}") from e
    return Batch(
        seq=line.seq,
        epoch=line.epoch,
        leader_id=line.leader,
        log_ms=line.log_ms,
        wall_ms=line.wall_ms,
        schema=line.schema,
        events=decode_events(bytes(line.events), seq=line.seq, schema=line.schema),
    )


def decode_events(data: bytes, *, seq: int, schema: int) -> ev.Events:
    """Reads the events of batch ``seq``. Raises UnreadableLogError on a newer schema or an unknown kind."""
    if schema > SCHEMA_VERSION:
        raise UnreadableLogError(f"batch {seq} has schema version {schema}; this replica reads up to {SCHEMA_VERSION}")
    try:
        return ev.decode(data)
    except msgspec.DecodeError as e:
        raise UnreadableLogError(f"batch {seq} holds an event that this replica does not know: {e}") from e
