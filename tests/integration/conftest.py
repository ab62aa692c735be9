"""Fixtures of the tests that run real processes."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from phalanx_control.log.redis_log import RedisLog
from phalanx_control.replica import Replica
from tests.support.control_plane import Client, client_of, running_replica
from tests.support.gang_driver import Gangs
from tests.support.plane import TestPlane
from tests.support.store import StoreServer, running_store


@pytest.fixture(scope="session")
def gangs() -> Iterator[Gangs]:
    """One launcher for all tests; its run directory has a short path, because Unix sockets need one."""
    run_dir = Path(tempfile.mkdtemp(prefix="px-run-"))
    made = Gangs(run_dir)
    yield made
    made.close()
    shutil.rmtree(run_dir, ignore_errors=True)


@pytest.fixture
def short_run_dir() -> Iterator[Path]:
    """A run directory of a test's own."""
    run_dir = Path(tempfile.mkdtemp(prefix="px-run-"))
    yield run_dir
    shutil.rmtree(run_dir, ignore_errors=True)


@pytest.fixture
def plane() -> Iterator[TestPlane]:
    """The data plane of one node, with fake keepers."""
    with tempfile.TemporaryDirectory(prefix="pxd", dir="/tmp") as directory:
        made = TestPlane(Path(directory))
        yield made
        made.close()


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    """One store for a file's tests; each test has a cell of its own in it."""
    with running_store() as server:
        yield server


@pytest.fixture
async def log(store: StoreServer) -> AsyncIterator[RedisLog]:
    """A log on a store that holds nothing else."""
    client = store.client()
    client.flushall()
    client.close()
    redis_log = RedisLog(store.url, cell="t")
    yield redis_log
    await redis_log.close()


@pytest.fixture
def cell(request: pytest.FixtureRequest) -> str:
    return hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture
async def replica(store: StoreServer, tmp_path: Path, cell: str) -> AsyncIterator[Replica]:
    """The only replica of the test's cell, so its leader."""
    async with running_replica(store, tmp_path, cell=cell) as running:
        yield running


@pytest.fixture
async def admin(replica: Replica, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of ``replica`` with the first admin token."""
    async with client_of(replica, (tmp_path / "token").read_text()) as client:
        yield client
