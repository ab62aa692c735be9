"""Deletes blobs that nothing refers to any more: a 256th of all names at a time, so that a round is short.

    content        kept while a function's code, a call of the state or an archived call refers to it, and for a day
                   after it was last put or asked for: whoever has just put it is about to refer to it
    logs/<call>    kept while the call is in the state or in the archive, and otherwise for as long as history is

The archive's index must be complete when a sweep begins: what it does not know, is not referred to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from phalanx_control.archive_calls import CallArchive
from phalanx_control.archive_index import blobs_of
from phalanx_control.blobs import BlobStore, segment_owner
from phalanx_control.log.history import KEEP_MS
from phalanx_control.state.model import State

_logger = logging.getLogger(__name__)

UNUSED_MS = 24 * 3600 * 1000
PORTIONS = 256
AT_MOST = 2_000
"""Blobs that one round looks at of each kind."""
_ID_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"


class Sweep:
    """Remembers which portion is next; begins anywhere after a restart."""

    def __init__(self, blobs: BlobStore, archive: CallArchive) -> None:
        self._blobs = blobs
        self._archive = archive
        self._portion = 0
        self._cycles = 0

    async def once(self, state: State, wall_ms: int) -> int:
        """Sweeps the next portion. Returns how many blobs were deleted."""
        portion = self._portion
        self._portion = (portion + 1) % PORTIONS
        self._cycles += self._portion == 0
        deleted = await self._content(f"sha256:{portion:02x}", state, wall_ms - UNUSED_MS)
        deleted += await self._logs(f"logs/c-{_ID_DIGITS[portion >> 5]}{_ID_DIGITS[portion & 31]}", state, wall_ms)
        if deleted:
            _logger.info("unused blobs deleted", extra={"blobs": deleted})
        return deleted

    async def _content(self, prefix: str, state: State, unused_since_ms: int) -> int:
        names = self._some_of(await self._blobs.names(prefix))
        in_use = set(_blobs_in_use(state)) if names else set[str]()
        deleted = 0
        for name in names:
            if name in in_use or await self._archive.is_referred_to(name):
                continue
            if await self._blobs.discard(name, unused_since_ms=unused_since_ms):
                await self._blobs.revoke(name)
                deleted += 1
        return deleted

    async def _logs(self, prefix: str, state: State, wall_ms: int) -> int:
        names = self._some_of(await self._blobs.names(prefix))
        kept: dict[str, bool] = {}
        deleted = 0
        for name in names:
            owner = segment_owner(name)
            call_id = owner[0] if owner is not None else ""
            if call_id not in kept:
                kept[call_id] = call_id in state.calls or await self._archive.known(call_id) is not None
            if not kept[call_id] and await self._blobs.discard(name, unused_since_ms=wall_ms - KEEP_MS):
                await self._blobs.revoke(f"logs/{call_id}")
                deleted += 1
        return deleted

    def _some_of(self, names: list[str]) -> list[str]:
        """Another part of a long list in each cycle."""
        start = self._cycles * AT_MOST % max(1, len(names))
        return names[start : start + AT_MOST]


def _blobs_in_use(state: State) -> Iterator[str]:
    for function in state.functions.values():
        yield from (function.spec.code.callable_blob, function.spec.code.bundle_blob)
    for call in state.calls.values():
        yield from blobs_of(call)
