"""Fixtures of the tests that run real processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gang_driver import Gangs


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
