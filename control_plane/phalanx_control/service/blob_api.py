"""Blobs over gRPC: streams of chunks of at most 1 MiB, the name in the first one.

Clients see the content that their workspace has put or been given, and the log segments of its calls; anything else
is not found, whether it exists or not. Agents see everything, and write content and their own node's log segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from phalanx.core.errors import AuthError, GetTimeoutError, InvalidSpecError, NotFoundError
from phalanx_control.blobs import BlobStore, check_name, is_content, segment_owner
from phalanx_control.service.blob_reach import BlobReach
from phalanx_control.service.caller import caller
from phalanx_control.service.limits import BLOB_CHUNK_BYTES
from phalanx_control.service.ports import ControllerPort
from phalanx_proto.v1 import common_pb2

IDLE_S = 30.0
MAX_NAMES = 10_000


class ClientBlobs:
    """Blobs as one workspace sees them."""

    def __init__(self, controller: ControllerPort, store: BlobStore, reach: BlobReach) -> None:
        self._controller = controller
        self._store = store
        self._reach = reach

    async def put(self, chunks: AsyncIterator[common_pb2.BlobChunk]) -> common_pb2.BlobName:
        """Stores content for the caller's workspace."""
        name, data = await _open_stream(chunks)
        if not is_content(name):
            raise InvalidSpecError(f"clients put content only: {name[:80]!r} is not sha256:<64 hex digits>")
        self._reach.require("a blob")
        await self._store.put(name, data)
        await self._store.grant(name, caller().owner.workspace)
        return common_pb2.BlobName(name=name)

    async def get(self, name: str) -> AsyncIterator[common_pb2.BlobChunk]:
        check_name(name)
        if not await self._may_read(name):
            raise NotFoundError(f"no blob {name!r}")
        async for chunk in _chunks(self._store, name):
            yield chunk

    async def missing(self, names: Iterable[str]) -> list[str]:
        """Returns the names that the caller's workspace must put before it may use them."""
        asked = list(dict.fromkeys(names))
        if len(asked) > MAX_NAMES:
            raise InvalidSpecError(f"{len(asked)} names at once: ask for at most {MAX_NAMES}")
        return [name for name in asked if not await self.has(name)]

    async def has(self, name: str) -> bool:
        """True when the content is there and the caller's workspace may use it; it stays there for a day from now."""
        check_name(name)
        granted = await self._store.is_granted(name, caller().owner.workspace)
        return granted and await self._store.renew(name)

    async def _may_read(self, name: str) -> bool:
        workspace = caller().owner.workspace
        segment = segment_owner(name)
        if segment is None:
            return await self._store.is_granted(name, workspace)
        call = self._controller.state.calls.get(segment[0])
        if call is not None:
            return call.owner.workspace == workspace
        return await self._store.is_granted(f"logs/{segment[0]}", workspace)


class AgentBlobs:
    """Blobs as agents see them."""

    def __init__(self, controller: ControllerPort, store: BlobStore) -> None:
        self._controller = controller
        self.store = store

    async def put(self, chunks: AsyncIterator[common_pb2.BlobChunk]) -> common_pb2.BlobName:
        """Stores content, or a log segment of the caller's own node."""
        name, data = await _open_stream(chunks)
        segment = segment_owner(name)
        if segment is not None and segment[1] != caller().node_id:
            raise AuthError(f"node {caller().node_id!r} may not write {name!r}, another node's log")
        await self.store.put(name, data)
        if segment is not None:
            await self._remember_owner(segment[0])
        return common_pb2.BlobName(name=name)

    async def get(self, name: str) -> AsyncIterator[common_pb2.BlobChunk]:
        check_name(name)
        async for chunk in _chunks(self.store, name):
            yield chunk

    async def _remember_owner(self, call_id: str) -> None:
        """Keeps the log readable for its workspace after the call has left the state."""
        call = self._controller.state.calls.get(call_id)
        if call is not None:
            await self.store.grant(f"logs/{call_id}", call.owner.workspace)


async def _open_stream(chunks: AsyncIterator[common_pb2.BlobChunk]) -> tuple[str, AsyncIterator[bytes]]:
    first = await _next(chunks)
    if first is None:
        raise InvalidSpecError("an empty stream: the first chunk names the blob")
    check_name(first.name)
    return first.name, _data(first, chunks)


async def _data(first: common_pb2.BlobChunk, rest: AsyncIterator[common_pb2.BlobChunk]) -> AsyncIterator[bytes]:
    chunk: common_pb2.BlobChunk | None = first
    while chunk is not None:
        if len(chunk.data) > BLOB_CHUNK_BYTES:
            raise InvalidSpecError(f"a chunk has {len(chunk.data)} bytes: at most {BLOB_CHUNK_BYTES}")
        if chunk.name not in ("", first.name):
            raise InvalidSpecError(f"one stream holds one blob, {first.name!r}; got a chunk of {chunk.name[:80]!r}")
        yield chunk.data
        chunk = await _next(rest)


async def _next(chunks: AsyncIterator[common_pb2.BlobChunk]) -> common_pb2.BlobChunk | None:
    try:
        async with asyncio.timeout(IDLE_S):
            return await anext(aiter(chunks), None)
    except TimeoutError as e:
        raise GetTimeoutError(f"no chunk came for {IDLE_S:.0f} s: the put is given up") from e


async def _chunks(store: BlobStore, name: str) -> AsyncIterator[common_pb2.BlobChunk]:
    """Yields at least one chunk, so that an empty blob has an answer too."""
    label = name
    async for data in store.get(name):
        yield common_pb2.BlobChunk(name=label, data=data)
        label = ""
    if label:
        yield common_pb2.BlobChunk(name=label)
