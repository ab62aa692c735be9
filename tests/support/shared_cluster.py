"""One cluster for all tests of a file, with functions that many of them call."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import phalanx
from phalanx import connection
from phalanx.connection import Connection
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.wait import wait_until


@contextmanager
def connected_cluster(folder: Path, **options: Any) -> Generator[Cluster]:
    """Yields a running cluster that is this process's own. ``options``: those of `Cluster`."""
    with Cluster(folder, **options) as running:
        connection.use(Connection(running.address(), running.token, str(running.ca)))
        try:
            yield running
        finally:
            connection.disconnect()


@phalanx.gpu_function(gpus=0, scaledown_window=5)
def wait_for(path: str) -> str:
    wait_until(lambda: Path(path).exists(), "the file is there", 60)
    return "seen"


def nothing_runs() -> bool:
    return not current().client.list_calls()
