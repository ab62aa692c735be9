"""From batches and snapshots to a state. The fold itself is `state.apply`; here its input is checked."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Iterator

import msgspec

from phalanx_control.log.errors import UnreadableLogError
from phalanx_control.log.history import Archive
from phalanx_control.log.log import READ_LIMIT, Batch, LogStore
from phalanx_control.state.apply import apply_batch
from phalanx_control.state.model import SCHEMA_VERSION, State, from_jsonable, to_jsonable

_GZIP_LEVEL = 1


def encode_state(state: State) -> bytes:
    """Returns the snapshot's bytes: JSON under gzip, with the schema version that a reader must know."""
    text = msgspec.json.encode({"schema": state.schema, "state": to_jsonable(state)})
    return gzip.compress(text, compresslevel=_GZIP_LEVEL, mtime=0)


def decode_state(data: bytes) -> State:
    """Reads what :func:`encode_state` wrote. Raises UnreadableLogError on damage or a newer schema."""
    try:
        content = msgspec.json.decode(gzip.decompress(data))
        if content["schema"] > SCHEMA_VERSION:
            raise UnreadableLogError(
                f"the snapshot has schema version {content['schema']}; this replica reads up to {SCHEMA_VERSION}"
            )
        return from_jsonable(content["state"])
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, KeyError, TypeError) as e:
        raise UnreadableLogError(f"the snapshot does not parse: {e}") from e


def fold_batch(state: State, batch: Batch) -> State:
    """Returns the state after ``batch``. Raises UnreadableLogError when it is not the next one, or does not fit."""
    if batch.seq != state.seq + 1:
        raise UnreadableLogError(f"batch {batch.seq} does not follow {state.seq}: batches between them are missing")
    try:
        return apply_batch(state, seq=batch.seq, log_ms=batch.log_ms, events=batch.events)
    except KeyError as e:
        raise UnreadableLogError(f"batch {batch.seq} speaks of {e}, which the batches before it do not know") from e


async def batches_up_to(log: LogStore, *, after: int, end: int) -> AsyncIterator[Batch]:
    """Yields the batches ``after`` + 1 to ``end``. Raises UnreadableLogError when the log does not have them."""
    while after < end:
        batches = await log.read_after(after, limit=min(READ_LIMIT, end - after))
        if not batches:
            raise UnreadableLogError(f"the log ends at {after}, before {end}")
        for batch in batches:
            after = batch.seq
            yield batch


async def load_snapshot(log: LogStore) -> State:
    """Returns the state of the newest snapshot, the empty state before the first. Raises UnreadableLogError."""
    snapshot = await log.snapshot()
    return State() if snapshot is None else await asyncio.to_thread(decode_state, snapshot.data)


def base_state(archive: Archive) -> State:
    """Returns the state that the archive's history begins after. Raises NotFoundError, UnreadableLogError."""
    seq = archive.base_seq()
    return decode_state(archive.snapshot_data(seq)) if seq else State()


def read_history(archive: Archive, *, after: int = 0) -> Iterator[Batch]:
    """Yields the archived batches after ``after``, in order. Raises UnreadableLogError at a gap."""
    expected = 0
    for segment in archive.segments():
        if segment.last <= after:
            continue
        for batch in segment.batches(after=max(after, expected - 1)):
            if expected and batch.seq != expected:
                raise UnreadableLogError(f"the history has no batch {expected}: {segment.path.name} has {batch.seq}")
            expected = batch.seq + 1
            yield batch


async def read_all(archive: Archive, log: LogStore | None, *, after: int = 0) -> AsyncIterator[Batch]:
    """Yields the history after ``after`` and then what the log has beyond it."""
    for batch in read_history(archive, after=after):
        after = batch.seq
        yield batch
    if log is not None:
        async for batch in batches_up_to(log, after=after, end=await log.last()):
            yield batch
