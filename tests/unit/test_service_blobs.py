"""Blobs in a folder: names, content, grants, limits."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx_control.blobs import FolderBlobs, check_name, open_blobs

CALL = "c-00000000000000000000000001"


async def _chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def _read(blobs: FolderBlobs, name: str) -> bytes:
    return b"".join([chunk async for chunk in blobs.get(name)])


def _name(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs", max_bytes=1000, min_free_bytes=0)


async def test_content_comes_back_as_it_was_put(blobs: FolderBlobs) -> None:
    assert await blobs.put(_name(b"abc"), _chunks(b"a", b"", b"bc")) == 3
    assert await _read(blobs, _name(b"abc")) == b"abc"


async def test_putting_twice_is_harmless(blobs: FolderBlobs) -> None:
    for _ in range(2):
        await blobs.put(_name(b"abc"), _chunks(b"abc"))
    assert await blobs.names("sha256:") == [_name(b"abc")]


async def test_content_under_another_contents_name_is_not_stored(blobs: FolderBlobs) -> None:
    with pytest.raises(InvalidSpecError, match="not stored"):
        await blobs.put(_name(b"abc"), _chunks(b"abd"))
    assert not await blobs.exists(_name(b"abc"))


async def test_a_stream_that_breaks_off_leaves_nothing(blobs: FolderBlobs, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await blobs.put(_name(b"abc"), broken())
    assert not await blobs.exists(_name(b"abc"))
    assert not list((tmp_path / "blobs" / "drafts").iterdir())


async def test_more_than_the_limit_is_refused(blobs: FolderBlobs) -> None:
    data = bytes(1001)
    with pytest.raises(InvalidSpecError, match="more than 1000 bytes"):
        await blobs.put(_name(data), _chunks(data))


async def test_a_disk_that_is_nearly_full_takes_no_more(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path, min_free_bytes=1 << 62)
    with pytest.raises(InvalidSpecError, match="MiB are free"):
        await blobs.put(_name(b"a"), _chunks(b"a"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/etc/passwd",
        "sha256:../../x",
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 64 + "\n",
        "logs",
        "logs/../x/1",
        "logs/a/../../etc/1",
        "logs/a/b/c",
        "logs/a//1",
        "logs/a/b/1/2",
        "logs/.a/b/1",
        "logs/a/b/-1",
        "logs/a\0/b/1",
        "logs/a/b/1\n",
        "drafts/x",
        "identity",
    ],
)
async def test_no_name_leaves_the_folder(blobs: FolderBlobs, name: str) -> None:
    with pytest.raises(InvalidSpecError):
        await blobs.put(name, _chunks(b"a"))
    with pytest.raises(InvalidSpecError):
        await _read(blobs, name)
    with pytest.raises(InvalidSpecError):
        await blobs.exists(name)
    with pytest.raises(InvalidSpecError):
        await blobs.delete(name)


@pytest.mark.parametrize("prefix", ["", "/", "..", "logs/../", "logs/a/b/1", "x"])
async def test_no_prefix_leaves_the_folder(blobs: FolderBlobs, prefix: str) -> None:
    with pytest.raises(InvalidSpecError):
        await blobs.names(prefix)


@pytest.mark.parametrize("gang", ["", f"g-{'0' * 26}."], ids=["no-gang", "gang"])
async def test_log_segments_are_listed_in_the_order_of_their_numbers(blobs: FolderBlobs, gang: str) -> None:
    for number in (10, 9, 1):
        await blobs.put(f"logs/{CALL}/n1/{gang}{number}", _chunks(b"x"))
    assert await blobs.names(f"logs/{CALL}/") == [f"logs/{CALL}/n1/{gang}{number}" for number in (1, 9, 10)]


async def test_a_call_whose_id_begins_like_anothers_is_another(blobs: FolderBlobs) -> None:
    await blobs.put("logs/ab/n1/1", _chunks(b"x"))
    assert await blobs.names("logs/a/") == []


async def test_what_was_deleted_is_not_found(blobs: FolderBlobs) -> None:
    await blobs.put(_name(b"a"), _chunks(b"a"))
    await blobs.delete(_name(b"a"))
    await blobs.delete(_name(b"a"))
    with pytest.raises(NotFoundError):
        await _read(blobs, _name(b"a"))


async def test_a_grant_holds_for_one_workspace(blobs: FolderBlobs) -> None:
    await blobs.grant(_name(b"a"), "w/../1")
    assert await blobs.is_granted(_name(b"a"), "w/../1")
    assert not await blobs.is_granted(_name(b"a"), "w2")


async def test_two_openings_of_one_folder_have_one_identity(tmp_path: Path) -> None:
    first, second = open_blobs(f"file://{tmp_path}/a"), open_blobs(f"file://{tmp_path}/a")
    assert await first.identity() == await second.identity()
    assert await first.identity() != await open_blobs(f"file://{tmp_path}/b").identity()


@pytest.mark.parametrize("url", ["", "s3://x/y", "file://host/x", "file:relative", "/x"])
def test_an_address_that_names_no_folder_is_refused(url: str) -> None:
    with pytest.raises(InvalidSpecError, match="--blobs"):
        open_blobs(url)


FILED = "archive/calls/0000000000000001-0123456789abcdef"


async def test_a_part_of_a_blob_can_be_read(blobs: FolderBlobs) -> None:
    await blobs.put(_name(b"abcdef"), _chunks(b"abcdef"))
    assert await blobs.read(_name(b"abcdef"), 2, 3) == b"cde"
    assert await blobs.read(_name(b"abcdef"), 4, 9) == b"ef"
    with pytest.raises(NotFoundError):
        await blobs.read(_name(b"other"), 0, 1)


async def test_names_are_found_by_any_beginning(blobs: FolderBlobs) -> None:
    names = [_name(b"abc"), f"logs/{CALL}/n1/1", f"logs/{CALL}/n2/1", FILED, FILED.replace("calls", "ledger/2025-11")]
    for name in names:
        await blobs.put(name, _chunks(b"abc"))
    assert await blobs.names(names[0][:9]) == names[:1]
    assert await blobs.names("sha256:00") == []
    assert await blobs.names("logs/c-00") == await blobs.names("logs/") == names[1:3]
    assert await blobs.names("logs/c-zz") == []
    assert await blobs.names("archive/calls") == names[3:4]
    assert await blobs.names("archive/ledger/") == await blobs.names("archive/ledger/2025-11/") == names[4:]


async def test_what_was_used_lately_is_not_discarded(blobs: FolderBlobs) -> None:
    name = _name(b"abc")
    await blobs.put(name, _chunks(b"abc"))
    assert not await blobs.discard(name, unused_since_ms=0)
    assert await blobs.renew(name)
    assert await blobs.exists(name)
    assert await blobs.discard(name, unused_since_ms=1 << 60)
    assert not await blobs.exists(name)
    assert not await blobs.renew(name)
    assert await blobs.discard(name, unused_since_ms=1 << 60)


async def test_a_grant_can_be_taken_from_everybody(blobs: FolderBlobs) -> None:
    for workspace in ("a", "b"):
        await blobs.grant(FILED, workspace)
    await blobs.revoke(FILED)
    assert not await blobs.is_granted(FILED, "a")
    assert not await blobs.is_granted(FILED, "b")


def test_what_the_control_plane_files_is_no_name_for_clients_and_agents() -> None:
    with pytest.raises(InvalidSpecError):
        check_name(FILED)
