"""Blobs: source bundles, large arguments and results, log segments. Bytes by name, and nothing about calls.

``sha256:<hex>`` names content, and what does not hash to its name is never stored. ``logs/<call>/<node>/<n>`` names a
log segment. No other name exists, so no name can leave the folder. Equal content is stored once, and *grants* remember
which workspaces may know of it, so that a hash alone opens nothing.

Who reaches them: clients and agents put and get blobs through the replica that they are connected to, never through a
file system of their own. So a folder on the control plane's machine serves agents on every host, and a cell with one
replica needs nothing more. Only several replicas with *different* folders are in danger: what was put through one is
unknown to the others after a fail-over. Each folder therefore has an identity, replicas compare theirs with the
leader's, and where they differ large bodies are refused (`service/blob_reach.py`) unless ``--blobs-shared`` says that
all replicas see the same bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.core.ids import new_raw_id
from phalanx_control.certificates import keep_secret

CHUNK_BYTES = 1 << 20
MAX_BLOB_BYTES = 64 << 30
MIN_FREE_BYTES = 256 << 20
"""A put that would leave less than this on the disk is refused: the log lives on the same machine in small cells."""
_CONTENT = re.compile(r"sha256:([0-9a-f]{64})")
_PART = r"[A-Za-z0-9][A-Za-z0-9._\-]{0,127}"
_SEGMENT = re.compile(rf"logs/({_PART})/({_PART})/([0-9]{{1,12}})")
_PREFIX = re.compile(rf"logs/({_PART}/({_PART}/)?)?|sha256:[0-9a-f]{{0,64}}")


class BlobStore(Protocol):
    """Where blobs are kept. All methods raise InvalidSpecError on a name that is none."""

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> int:
        """Stores the stream under ``name`` and returns its bytes; storing again is harmless.

        Raises InvalidSpecError when content does not hash to its name, or is too large.
        """
        ...

    def get(self, name: str) -> AsyncIterator[bytes]:
        """Yields the blob in chunks of at most 1 MiB. Raises NotFoundError."""
        ...

    async def exists(self, name: str) -> bool: ...

    async def names(self, prefix: str) -> list[str]:
        """Returns the names that begin with ``prefix``, log segments in the order of their numbers."""
        ...

    async def delete(self, name: str) -> None:
        """Forgets the blob; one that is not there is no error."""
        ...

    async def grant(self, subject: str, workspace: str) -> None:
        """Remembers that ``workspace`` has put or been given ``subject``: a content name, or ``logs/<call>``."""
        ...

    async def is_granted(self, subject: str, workspace: str) -> bool: ...

    async def identity(self) -> str:
        """Returns what names this store: equal for two replicas exactly when they see the same bytes."""
        ...


class FolderBlobs:
    """Blobs as files below one folder. Drafts are renamed into place, so a crash leaves no half blob."""

    def __init__(self, root: Path, *, max_bytes: int = MAX_BLOB_BYTES, min_free_bytes: int = MIN_FREE_BYTES) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._drafts = root / "drafts"
        self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> int:
        path = self._path(name)
        await asyncio.to_thread(self._check_space, name)
        handle, draft = await asyncio.to_thread(tempfile.mkstemp, dir=self._drafts)
        try:
            with os.fdopen(handle, "wb") as file:
                size, digest = await self._receive(name, file, chunks)
            _check_content(name, digest)
            await asyncio.to_thread(_move_into_place, Path(draft), path)
        finally:
            await asyncio.to_thread(Path(draft).unlink, missing_ok=True)
        return size

    async def get(self, name: str) -> AsyncIterator[bytes]:
        path = self._path(name)
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except FileNotFoundError as e:
            raise NotFoundError(f"no blob {name!r}") from e
        with file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk

    async def exists(self, name: str) -> bool:
        return await asyncio.to_thread(self._path(name).is_file)

    async def names(self, prefix: str) -> list[str]:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidSpecError(f"{prefix[:80]!r} begins no blob name")
        return await asyncio.to_thread(self._names, prefix)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._path(name).unlink, missing_ok=True)

    async def grant(self, subject: str, workspace: str) -> None:
        await asyncio.to_thread(_touch, self._grant_path(subject, workspace))

    async def is_granted(self, subject: str, workspace: str) -> bool:
        return await asyncio.to_thread(self._grant_path(subject, workspace).is_file)

    async def identity(self) -> str:
        made = await asyncio.to_thread(keep_secret, self._root / "identity", lambda: new_raw_id().hex().encode())
        return made.decode()

    def _path(self, name: str) -> Path:
        check_name(name)
        if match := _CONTENT.fullmatch(name):
            digest = match[1]
            return self._root / "sha256" / digest[:2] / digest
        return self._root / name

    def _grant_path(self, subject: str, workspace: str) -> Path:
        """Both parts are hashed: workspaces may have any name."""
        return self._root / "grants" / _short_hash(workspace) / _short_hash(subject)

    def _check_space(self, name: str) -> None:
        free = shutil.disk_usage(self._root).free
        if free < self._min_free_bytes:
            raise InvalidSpecError(
                f"blob {name!r} is refused: {free >> 20} MiB are free on the control plane's blob disk",
                hint="free some space there, or move --blobs to a larger disk",
            )

    async def _receive(self, name: str, file: BinaryIO, chunks: AsyncIterator[bytes]) -> tuple[int, str]:
        size, digest = 0, hashlib.sha256()
        async for chunk in chunks:
            size += len(chunk)
            if size > self._max_bytes:
                raise InvalidSpecError(f"blob {name!r} has more than {self._max_bytes} bytes, the most that is stored")
            await asyncio.to_thread(_write, file, digest, chunk)
        await asyncio.to_thread(_sync, file)
        return size, digest.hexdigest()

    def _names(self, prefix: str) -> list[str]:
        top = "sha256" if prefix.startswith("sha256:") else "logs"
        found = (path.relative_to(self._root) for path in (self._root / top).rglob("*") if path.is_file())
        names = [f"sha256:{path.name}" if top == "sha256" else path.as_posix() for path in found]
        return sorted((name for name in names if name.startswith(prefix)), key=_natural)


def open_blobs(url: str) -> BlobStore:
    """Returns the store that ``--blobs`` names. Raises InvalidSpecError on an address that none serves."""
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc or not parts.path.startswith("/"):
        raise InvalidSpecError(f"--blobs {url!r}: use file:///absolute/folder")
    return FolderBlobs(Path(unquote(parts.path)))


def check_name(name: str) -> None:
    """Refuses what is neither a content name nor a log segment's."""
    if not _CONTENT.fullmatch(name) and not _SEGMENT.fullmatch(name):
        raise InvalidSpecError(
            f"{name[:80]!r} is no blob name: use sha256:<64 hex digits>, or logs/<call>/<node>/<number>"
        )


def is_content(name: str) -> bool:
    """True for ``sha256:<hex>``."""
    return _CONTENT.fullmatch(name) is not None


def segment_owner(name: str) -> tuple[str, str] | None:
    """Returns the call id and node id that a log segment's name holds; None for other names."""
    match = _SEGMENT.fullmatch(name)
    return (match[1], match[2]) if match else None


def _check_content(name: str, digest: str) -> None:
    match = _CONTENT.fullmatch(name)
    if match and match[1] != digest:
        raise InvalidSpecError(f"the bytes put as {name!r} hash to sha256:{digest}: they are not stored")


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def _write(file: BinaryIO, digest: _Digest, chunk: bytes) -> None:
    digest.update(chunk)
    file.write(chunk)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _move_into_place(draft: Path, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft.replace(path)


def _touch(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _natural(name: str) -> tuple[str, int]:
    head, _, tail = name.rpartition("/")
    return (head, int(tail)) if tail.isdecimal() else (name, 0)
