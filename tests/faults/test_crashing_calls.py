"""Calls that crash one after the other leave nothing behind: no process, memory, folder or port, and nobody grows.

PHALANX_CRASHES sets how many (50).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from phalanx.core.errors import RankDiedError
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until

COUNT = int(os.environ.get("PHALANX_CRASHES", "50"))
SETTLED_AFTER = 10
"""Crashes after which servers have loaded all they load."""
GROWTH_BYTES = 24 << 20
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 3 * COUNT)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with connected_cluster(tmp_path, gpus_per_agent=2) as running:
        yield running


@phalanx.gpu_function(gpus=1, scaledown_window=5)
def crash(number: int, told: str) -> None:
    import multiprocessing.shared_memory
    import signal
    import socket
    import subprocess
    import sys
    import tempfile

    folder = tempfile.mkdtemp()
    shared = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
    listening = socket.create_server(("127.0.0.1", 0))
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with Path(told).open("a") as file:
        file.write(f"{folder} /dev/shm/{shared.name} {listening.getsockname()[1]}\n")
    os.kill(os.getpid(), (signal.SIGKILL, signal.SIGSEGV)[number % 2])


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sizes(cluster: Cluster) -> dict[str, int]:
    return {server.name: rss_bytes(server.pid) for server in (*cluster.controls, *cluster.nodes)}


def marked(cluster: Cluster) -> set[int]:
    """Returns the cluster's processes: all that were started below it carry its mark."""
    mark = f"PHALANX_TEST_MARK={cluster.mark}".encode()
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def listening_ports() -> set[int]:
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {int(row.split()[1].rpartition(":")[2], 16) for row in rows if row.split()[3] == "0A"}


def crash_in_a_row(cluster: Cluster, count: int, told: Path) -> None:
    for number in range(count):
        with pytest.raises(RankDiedError):
            crash.spawn(number, str(told)).get()
    wait_until(lambda: not cluster.connect().list_gangs(), "the last gang is gone", 30)


def test_calls_that_crash_in_a_row_leave_nothing_behind(cluster: Cluster, tmp_path: Path) -> None:
    told = tmp_path / "told"
    crash_in_a_row(cluster, SETTLED_AFTER, told)
    processes, before = marked(cluster), sizes(cluster)
    crash_in_a_row(cluster, COUNT, told)
    wait_until(lambda: marked(cluster) <= processes, "no process is left", 15)
    made = [line.split() for line in told.read_text().splitlines()]
    assert len(made) == SETTLED_AFTER + COUNT
    assert not [path for *paths, _ in made for path in paths if Path(path).exists()]
    ports = {int(port) for *_, port in made}
    wait_until(
        lambda: not ports & listening_ports(), "no port is left; others may have one of the numbers for a while", 30
    )
    grown = {name: size - before[name] for name, size in sizes(cluster).items()}
    print({name: f"{size / 1e6:+.1f} MB" for name, size in grown.items()}, f"after {COUNT} crashes")
    assert max(grown.values()) < GROWTH_BYTES, grown
