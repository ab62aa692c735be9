"""Much output: of eight ranks at 10,000 lines a second every line once, in order and within a second; of one 200 MB."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from phalanx.logs import CallLogs
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RANKS = 8
LINES = 5000
LINES_PER_S = 10_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with connected_cluster(tmp_path, gpus_per_agent=RANKS) as running:
        yield running


@phalanx.gpu_function(gpus=RANKS, scaledown_window=5)
def talk(lines: int, per_s: float) -> None:
    began = time.time()
    for number in range(lines):
        print(f"{number} {time.time():.3f}")
        ahead = number / per_s - (time.time() - began)
        if ahead > 0.01:
            time.sleep(ahead)


@phalanx.gpu_function(gpus=0, scaledown_window=1)
def pour(megabytes: int) -> None:
    for _ in range(megabytes):
        os.write(1, b"x" * 1_000_000)
    os.write(1, b"\nlast\n")


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


def test_200_mb_without_a_newline_are_counted_cut_and_in_order_while_the_gang_goes_and_afterwards(
    cluster: Cluster,
) -> None:
    client = current().client
    call = pour.spawn(200)
    call.get(timeout=120)
    for stored in (False, True):
        if stored:
            wait_until(lambda: any(source.blob for source in client.log_sources(call.id)), "its gang is gone", 60)
        logs = CallLogs(client, call.id)
        first, last = logs.now()
        assert last.text == "last"
        assert "more bytes of this line" in first.text
        assert logs.tally.received == 200_000_006
        assert logs.tally.complete, logs.tally.words
