"""A cluster for fault tests: connected, left to come to rest, and then judged by a checker that shares no code with it.

    with judged_cluster(tmp_path, agents=2) as cluster:
        ...

Leaving the context waits until no call, gang or held GPU is left, and fails on every broken invariant, on a state that
is not the fold of its history, and on whatever the cluster leaves behind on the machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx import connection
from phalanx.client import Client
from phalanx.connection import Connection
from tests.support.cluster import CELL, Cluster
from tests.support.history_checker import Batch, Marker, batch_of_entry, check_batches, read_markers
from tests.support.wait import wait_until

REST_S = 60.0
_OVER = ("released", "lost")


@contextmanager
def judged_cluster(tmp_path: Path, **options: Any) -> Generator[Cluster]:
    """Yields a running cluster that is this process's own, and judges it when the tests are over."""
    with Cluster(tmp_path, **options) as cluster:
        use(cluster)
        try:
            yield cluster
            come_to_rest(cluster)
            assert_history_holds(cluster)
        finally:
            connection.disconnect()


def use(cluster: Cluster, replica: int = 0) -> Client:
    """Makes the cluster the one that decorated functions of this process use."""
    return connection.use(Connection(cluster.address(replica), cluster.token, str(cluster.ca)))


def come_to_rest(cluster: Cluster) -> None:
    """Waits until every call has ended and every GPU is free."""
    client = cluster.connect(cluster.leader())
    try:
        wait_until(lambda: not client.list_calls(), "every call has ended", REST_S)
        wait_until(lambda: not live_gangs(client), "every gang was given back", REST_S)
    except AssertionError as e:
        names = [*(c.call_id for c in client.list_calls()), *live_gangs(client)]
        told = evidence([batch_of_entry(entry) for entry in cluster.history()], read_markers(cluster.markers), names)
        raise AssertionError("\n".join([str(e), *told])) from None
    busy = [g for node in client.list_nodes() for g in node.gpus if g.gang_id or g.info.state != "free"]
    assert not busy, f"GPUs are not free: {busy}"


def live_gangs(client: Client) -> list[str]:
    return [g.gang_id for g in client.list_gangs() if g.state not in _OVER]


def assert_history_holds(cluster: Cluster) -> None:
    """Fails on every invariant that the history and the ranks' own marks show to be broken."""
    batches, markers = [batch_of_entry(e) for e in cluster.history()], read_markers(cluster.markers)
    violations = check_batches(batches, markers)
    names = [word for v in violations for word in re.findall(r"[cg]-[0-9a-z]{26}", v.text)]
    assert not violations, "\n".join([*map(str, violations), *evidence(batches, markers, names)])
    said = archive_check(cluster)
    assert said.returncode == 0, said.stdout + said.stderr


def evidence(batches: list[Batch], markers: list[Marker], names: list[str]) -> Iterator[str]:
    """Yields all that the history and the ranks say of the named calls and gangs."""
    for batch in batches:
        for event in batch.events:
            text = json.dumps(event)
            if any(name in text for name in names):
                yield f"{batch.seq} by {batch.leader} at {batch.wall_ms}: {text[:600]}"
    yield from (f"rank: {marker}" for marker in markers if marker.call in names)


def archive_check(cluster: Cluster) -> subprocess.CompletedProcess[str]:
    """Runs the product's own proof that the state is the fold of its history."""
    words = ["check", "--folder", str(cluster.tmp_path / "control" / "archive"), "--store", cluster.store.url]
    command = [sys.executable, "-m", "phalanx_control.archive", *words, "--cell", CELL]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
