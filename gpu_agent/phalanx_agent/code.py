"""Functions' code on this node: blobs fetched once, checked against their names, unpacked whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from phalanx.core.errors import SerializationError
from phalanx.core.files import replace_file
from phalanx.core.spec import CodeRef

Fetch = Callable[[str], Awaitable[bytes]]


class CodeStore:
    """``code/<sha256>.callable`` and ``code/<sha256>/`` below the run directory."""

    def __init__(self, directory: Path, fetch: Fetch) -> None:
        self._dir = directory
        self._fetch = fetch
        self._locks: dict[str, asyncio.Lock] = {}
        directory.mkdir(parents=True, exist_ok=True)

    async def get(self, code: CodeRef) -> tuple[Path, Path | None]:
        """Returns the callable's file and the bundle's directory.

        Raises SerializationError when there is no code or it is not what its name says.
        """
        if not code.callable_blob:
            raise SerializationError("the function was registered without its code: register it again")
        callable_path = await self._callable(code.callable_blob)
        return callable_path, await self._bundle(code.bundle_blob) if code.bundle_blob else None

    async def _callable(self, blob: str) -> Path:
        path = self._dir / f"{_digest(blob)}.callable"
        async with self._lock(blob):
            if not path.exists():
                replace_file(path, await self._checked(blob), mode=0o644)
        return path

    async def _bundle(self, blob: str) -> Path:
        path = self._dir / _digest(blob)
        async with self._lock(blob):
            if not path.exists():
                draft = path.with_suffix(".new")
                shutil.rmtree(draft, ignore_errors=True)
                data = await self._checked(blob)
                await asyncio.to_thread(_unpack, data, draft)
                draft.rename(path)
        return path

    async def _checked(self, blob: str) -> bytes:
        data = await self._fetch(blob)
        actual = hashlib.sha256(data).hexdigest()
        if actual != _digest(blob):
            raise SerializationError(f"blob {blob} holds other bytes: sha256 {actual}")
        return data

    def _lock(self, blob: str) -> asyncio.Lock:
        return self._locks.setdefault(blob, asyncio.Lock())


def _unpack(data: bytes, into: Path) -> None:
    from phalanx.loader import unpack_bundle  # the loader is needed only when a function brings source files

    into.mkdir(mode=0o755)
    unpack_bundle(data, into)


def _digest(blob: str) -> str:
    kind, _, digest = blob.partition(":")
    if kind != "sha256" or len(digest) != 64 or not all(c in "0123456789abcdef" for c in digest):
        raise SerializationError(f"{blob[:80]!r} is not the name of a content blob")
    return digest
