"""Output of eight ranks at 10,000 lines a second and more: every line once, in order, and within a second."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from phalanx import connection
from phalanx.connection import Connection
from phalanx.logs import CallLogs
from phalanx.runner import current
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RANKS = 8
LINES = 5000
LINES_PER_S = 10_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, gpus_per_agent=RANKS) as running:
        connection.use(Connection(running.address(), running.token, str(running.ca)))
        yield running
        connection.disconnect()


@phalanx.gpu_function(gpus=RANKS, scaledown_window=5)
def talk(lines: int, per_s: float) -> None:
    began = time.time()
    for number in range(lines):
        print(f"{number} {time.time():.3f}")
        ahead = number / per_s - (time.time() - began)
        if ahead > 0.01:
            time.sleep(ahead)


def test_lines_of_eight_ranks_arrive_once_in_order_and_at_once(cluster: Cluster) -> None:
    call = talk.spawn(LINES, LINES_PER_S / RANKS)
    seen: dict[int, list[int]] = defaultdict(list)
    late_s: list[float] = []
    logs = CallLogs(current().client, call.id)
    for line in logs.live():
        number, written = line.text.split()
        seen[line.rank].append(int(number))
        late_s.append(time.time() - float(written))
    call.get()
    late_s.sort()
    print(
        f"{len(late_s)} lines, late p50 {late_s[len(late_s) // 2]:.3f} s, p99 {late_s[len(late_s) * 99 // 100]:.3f} s"
    )
    assert dict(seen) == {rank: list(range(LINES)) for rank in range(RANKS)}
    assert logs.tally.complete, logs.tally.words
    assert late_s[len(late_s) // 2] < 1
