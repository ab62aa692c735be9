"""Blobs: source bundles, large arguments and results, log segments. Bytes by name, and nothing about calls.

``sha256:<hex>`` names content, and what does not hash to its name is never stored. ``logs/<call>/<node>/<n>`` names a
log segment, ``logs/<call>/<node>/<gang>.report`` what a keeper wrote of a failed call. ``archive/…`` names what the
control plane itself files, out of reach of clients and agents. No other name exists, so no name can leave the folder.
Equal content is stored once, and *grants* remember which workspaces may know of it, so that a hash alone opens nothing.

Who reaches them: clients and agents put and get blobs through the replica that they are connected to, never through a
file system of their own. So a folder on the control plane's machine serves agents on every host, and a cell with one
replica needs nothing more. Only several replicas with *different* folders are in danger: what was put through one is
unknown to the others after a fail-over. Each folder therefore has an identity, replicas compare theirs with the
leader's, and where they differ large bodies are refused (`service/blob_reach.py`) unless ``--blobs-shared`` says that
all replicas see the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
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
_SEGMENT = re.compile(rf"logs/({_PART})/({_PART})/(?:(g-[0-9a-z]{{26}})\.)?[0-9]{{1,12}}")
_NUMBERED = re.compile(r"(.*[/.])([0-9]+)")
_REPORT = re.compile(rf"logs/({_PART})/({_PART})/g-[0-9a-z]{{26}}\.report")
_FILED = re.compile(r"archive/(calls|ledger/[0-9]{4}-[0-9]{2})/[0-9]{16}-[0-9a-f]{16}")
_PREFIX = re.compile(
    rf"logs/({_PART}(/({_PART}/)?)?)?|sha256:[0-9a-f]{{0,64}}|archive/(calls/?|ledger/([0-9]{{4}}-[0-9]{{2}}/)?)?"
)
_FAN_OUT = 2
"""Content lies in folders named by the first digits of its hash."""


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

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns a part of the blob, shorter where it ends. Raises NotFoundError."""
        ...

    async def exists(self, name: str) -> bool: ...

    async def renew(self, name: str) -> bool:
        """True when the blob is there; it then counts as used now."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """Returns the names that begin with ``prefix``, log segments in the order of their numbers."""
        ...

    async def delete(self, name: str) -> None:
        """Forgets the blob; one that is not there is no error."""
        ...

    async def discard(self, name: str, *, unused_since_ms: int) -> bool:
        """Forgets the blob where it was neither put nor renewed after this wall time; True when it is gone."""
        ...

    async def grant(self, subject: str, workspace: str) -> None:
        """Remembers that ``workspace`` has put or been given ``subject``: a content name, or ``logs/<call>``."""
        ...

    async def is_granted(self, subject: str, workspace: str) -> bool: ...

    async def revoke(self, subject: str) -> None:
        """Forgets every workspace's grant of ``subject``."""
        ...

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

    async def read(self, name: str, offset: int, size: int) -> bytes:
        try:
            return await asyncio.to_thread(_read_part, self._path(name), offset, size)
        except FileNotFoundError as e:
            raise NotFoundError(f"no blob {name!r}") from e

    async def renew(self, name: str) -> bool:
        try:
            await asyncio.to_thread(os.utime, self._path(name))
        except FileNotFoundError:
            return False
        return True

    async def exists(self, name: str) -> bool:
        return await asyncio.to_thread(self._path(name).is_file)

    async def names(self, prefix: str) -> list[str]:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidSpecError(f"{prefix[:80]!r} begins no blob name")
        return await asyncio.to_thread(self._names, prefix)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._path(name).unlink, missing_ok=True)

    async def discard(self, name: str, *, unused_since_ms: int) -> bool:
        return await asyncio.to_thread(self._discard, self._path(name), unused_since_ms)

    async def revoke(self, subject: str) -> None:
        await asyncio.to_thread(self._revoke, subject)

    async def grant(self, subject: str, workspace: str) -> None:
        await asyncio.to_thread(_touch, self._grant_path(subject, workspace))

    async def is_granted(self, subject: str, workspace: str) -> bool:
        return await asyncio.to_thread(self._grant_path(subject, workspace).is_file)

    async def identity(self) -> str:
        made = await asyncio.to_thread(keep_secret, self._root / "identity", lambda: new_raw_id().hex().encode())
        return made.decode()

    def _path(self, name: str) -> Path:
        if not _FILED.fullmatch(name):
            check_name(name)
        if match := _CONTENT.fullmatch(name):
            digest = match[1]
            return self._root / "sha256" / digest[:_FAN_OUT] / digest
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
        found = (path for folder in self._folders(prefix) for path in folder.rglob("*") if path.is_file())
        names = (self._name(path) for path in found)
        return sorted((name for name in names if name.startswith(prefix)), key=_natural)

    def _folders(self, prefix: str) -> list[Path]:
        """Returns the folders that hold every name that begins with ``prefix``, and few others."""
        if prefix.startswith("sha256:"):
            folder, begin = self._root / "sha256", prefix.removeprefix("sha256:")[:_FAN_OUT]
        else:
            above, _, begin = prefix.rpartition("/")
            folder = self._root / above
        if not begin:
            return [folder]
        return [path for path in folder.glob("*") if path.name.startswith(begin)]

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self._root).parts
        return f"sha256:{parts[-1]}" if parts[0] == "sha256" else "/".join(parts)

    def _discard(self, path: Path, unused_since_ms: int) -> bool:
        """Looks at its age once more out of the way: what is put meanwhile lies under the name already."""
        aside = self._drafts / f"old-{new_raw_id().hex()}"
        try:
            if _used_ms(path) > unused_since_ms:
                return False
            path.replace(aside)
        except FileNotFoundError:
            return True
        if _used_ms(aside) > unused_since_ms:
            _move_back(aside, path)
            return False
        aside.unlink()
        self._remove_empty(path.parent)
        return True

    def _remove_empty(self, folder: Path) -> None:
        """Calls come and go, and with them the folders of their logs."""
        with contextlib.suppress(OSError):
            while folder.is_relative_to(self._root / "logs") and folder != self._root / "logs":
                folder.rmdir()
                folder = folder.parent

    def _revoke(self, subject: str) -> None:
        for grant in (self._root / "grants").glob(f"*/{_short_hash(subject)}"):
            grant.unlink(missing_ok=True)


def open_blobs(url: str) -> BlobStore:
    """Returns the store that ``--blobs`` names. Raises InvalidSpecError on an address that none serves."""
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc or not parts.path.startswith("/"):
        raise InvalidSpecError(f"--blobs {url!r}: use file:///absolute/folder")
    return FolderBlobs(Path(unquote(parts.path)))


def check_name(name: str) -> None:
    """Refuses what is neither a content name nor a log segment's or a report's."""
    if not _CONTENT.fullmatch(name) and not _SEGMENT.fullmatch(name) and not is_report(name):
        raise InvalidSpecError(
            f"{name[:80]!r} is no blob name: use sha256:<64 hex digits>, or logs/<call>/<node>/<number>"
        )


def is_content(name: str) -> bool:
    """True for ``sha256:<hex>``."""
    return _CONTENT.fullmatch(name) is not None


def is_report(name: str) -> bool:
    """True for what a keeper wrote of a failed call, which lies beside the call's log segments."""
    return _REPORT.fullmatch(name) is not None


def segment_owner(name: str) -> tuple[str, str] | None:
    """Returns the call id and node id that a log segment's or a report's name holds; None for other names."""
    match = _SEGMENT.fullmatch(name) or _REPORT.fullmatch(name)
    return (match[1], match[2]) if match else None


def segment_gang(name: str) -> str:
    """Returns the id of the gang whose output a log segment holds; "" where its name does not say."""
    match = _SEGMENT.fullmatch(name)
    return (match[3] or "") if match else ""


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
    """Returns when the name, too, survives a loss of power: the log is about to speak of it."""
    _move(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _move(draft: Path, path: Path) -> None:
    """An empty folder may be removed at any time, so it is made again where it is missing."""
    for attempts_left in (2, 1, 0):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            draft.replace(path)
        except FileNotFoundError:
            if not attempts_left:
                raise
        else:
            return


def _move_back(aside: Path, path: Path) -> None:
    """Unless the same content was put again in between."""
    with contextlib.suppress(FileExistsError):
        os.link(aside, path)
    aside.unlink()


def _used_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000


def _read_part(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _touch(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _natural(name: str) -> tuple[str, int]:
    """Segments of one gang lie in the order of their numbers."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, 0)
