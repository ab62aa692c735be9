"""What is deleted in time, and what never is while somebody needs it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from phalanx.core.clock import ManualClock
from phalanx.core.spec import CodeRef, FunctionSpec
from phalanx_control.archive_calls import CallArchive
from phalanx_control.archive_index import ArchiveIndex
from phalanx_control.archive_keeper import oldest_month, surplus_calls
from phalanx_control.archive_sweep import PORTIONS, UNUSED_MS, Sweep
from phalanx_control.blobs import FolderBlobs
from phalanx_control.log.history import KEEP_BYTES, KEEP_MS
from phalanx_control.state.model import BodyRef, State
from tests.support.builders import World, call_id, spec

NOW_MS = 1_800_000_000_000
OLD_MS = NOW_MS - UNUSED_MS - 1


class Store:
    """Blobs in a folder, whose age the test sets, and an archive of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = FolderBlobs(folder, min_free_bytes=0)
        self.archive = CallArchive(self.blobs, ArchiveIndex(folder / "index.db"), ManualClock())
        self.sweep = Sweep(self.blobs, self.archive)

    async def put(self, data: bytes, *, used_ms: int, name: str = "") -> str:
        digest = hashlib.sha256(data).hexdigest()
        name = name or f"sha256:{digest}"
        await self.blobs.put(name, _once(data))
        path = self.folder / "sha256" / digest[:2] / digest if name.startswith("sha256:") else self.folder / name
        os.utime(path, ns=(used_ms * 1_000_000, used_ms * 1_000_000))
        return name

    async def sweep_all(self, state: State) -> int:
        return sum([await self.sweep.once(state, NOW_MS) for _ in range(PORTIONS)])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


async def test_content_that_nobody_refers_to_goes_a_day_after_its_last_use_with_its_grants(store: Store) -> None:
    old = await store.put(b"old", used_ms=OLD_MS)
    fresh = await store.put(b"fresh", used_ms=NOW_MS - 1000)
    await store.blobs.grant(old, "w")
    assert await store.sweep_all(State()) == 1
    assert await store.blobs.names("sha256:") == [fresh]
    assert not await store.blobs.is_granted(old, "w")


async def test_code_stays_for_as_long_as_a_function_refers_to_it(store: Store) -> None:
    names = [await store.put(data, used_ms=OLD_MS) for data in (b"callable", b"bundle")]
    world = World()
    world.register(FunctionSpec(name="f", code=CodeRef(callable_blob=names[0], bundle_blob=names[1])))
    assert await store.sweep_all(world.state) == 0


async def test_arguments_and_results_stay_while_their_call_is_known_and_go_after_it(store: Store) -> None:
    args, result = [await store.put(data, used_ms=OLD_MS) for data in (b"args", b"result")]
    world = World()
    world.submit(1, world.register(spec()))
    call = replace(world.call(call_id(1)), args=BodyRef(blob=args, size=4), result=BodyRef(blob=result, size=6))
    held = replace(world.state, calls=world.state.calls.set(call.id, call))
    assert await store.sweep_all(held) == 0
    await store.archive.file_calls([call])
    assert await store.sweep_all(State()) == 0
    await store.archive.drop(list(await store.archive.parts()))
    assert await store.sweep_all(State()) == 2


async def test_logs_stay_with_their_call_and_those_of_unknown_calls_for_as_long_as_history(store: Store) -> None:
    world = World()
    world.submit(1, world.register(spec()))
    for n, used_ms in ((1, 0), (2, 0), (3, NOW_MS - KEEP_MS + 1)):
        await store.put(b"x", name=f"logs/{call_id(n)}/n1/1", used_ms=used_ms)
        await store.blobs.grant(f"logs/{call_id(n)}", "w")
    assert await store.sweep_all(world.state) == 1
    assert await store.blobs.names("logs/") == [f"logs/{call_id(n)}/n1/1" for n in (1, 3)]
    assert not (store.folder / "logs" / call_id(2)).exists()
    assert not await store.blobs.is_granted(f"logs/{call_id(2)}", "w")


def test_the_oldest_calls_go_beyond_seven_days_or_ten_gigabytes() -> None:
    def name(age_ms: int) -> str:
        return f"archive/calls/{NOW_MS - age_ms:016}-{'0' * 16}"

    old, young, new = name(KEEP_MS + 1), name(KEEP_MS - 1), name(0)
    ledger = "archive/ledger/2020-01/0000000000000001-0000000000000000"
    assert surplus_calls({old: 1, young: 1, new: 1, ledger: 1}, NOW_MS) == [old]
    assert surplus_calls({young: KEEP_BYTES, new: 1}, NOW_MS) == [young]
    assert surplus_calls({}, NOW_MS) == []


@pytest.mark.parametrize(
    ("now_ms", "month"), [(1_767_225_600_000, "2024-12"), (1_735_689_599_000, "2023-11"), (NOW_MS, "2025-12")]
)
def test_thirteen_months_of_the_ledger_are_kept_besides_the_present_one(now_ms: int, month: str) -> None:
    assert oldest_month(now_ms) == month


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
