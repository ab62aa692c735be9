"""Streams whose reader, agent or node goes away, and streams over TLS and over two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.core.states import CallState
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until

READER = """
import sys
from tests.faults.test_streams import endless
for item in endless.stream(sys.argv[1]):
    print(item, flush=True)
    if item == 3:
        input()
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), agents=2, gpus_per_agent=2) as running:
        yield running


@phalanx.gpu_function(gpus=0, scaledown_window=30, grace=2)
def endless(directory: str) -> Generator[int, None, None]:
    try:
        yield from range(10**9)
    finally:
        (Path(directory) / "finally").write_text(str(os.getpid()))


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def sized(n: int, size: int) -> Generator[bytes, None, None]:
    for i in range(n):
        yield bytes([i]) * size


@phalanx.gpu_function(gpus=4, nodes=2, scaledown_window=5)
def over_nodes(n: int) -> Generator[tuple[int, int], None, int]:
    import torch
    import torch.distributed as dist

    for i in range(n):
        total = torch.ones(1)
        dist.all_reduce(total)
        yield i, int(total.item())
    return phalanx.current().rank


@phalanx.gpu_function(gpus=4, nodes=2, returns="all", scaledown_window=5)
def all_over_nodes(n: int, die_at: int = -1) -> Generator[int, None, int]:
    rank = phalanx.current().rank
    for i in range(n):
        if rank == 3 and i == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        yield 100 * rank + i
    return rank


def test_the_generator_of_a_killed_reader_is_closed(cluster: Cluster, tmp_path: Path) -> None:
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path)],
        env={**os.environ, **cluster.env()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert reader.stdout is not None
    seen = [int(reader.stdout.readline()) for _ in range(4)]
    reader.kill()
    reader.communicate()
    wait_until((tmp_path / "finally").exists, "the generator's finally block", timeout_s=5)
    assert seen == [0, 1, 2, 3]
    assert [len(x) for x in sized.stream(3, 5)] == [5, 5, 5]


def test_over_tls_items_of_any_size_come_whole() -> None:
    list(sized.stream(1, 1))
    runner = current()
    target = sized.definition.target(runner.client)
    socket = Path(runner.client.gang_address(target.function_id).unix_path)
    runner.close()
    hidden = socket.with_suffix(".hidden")
    socket.rename(hidden)
    try:
        seen = [(item[0], len(item)) for item in sized.stream(20, 3 << 20)]
        left = sized.stream(200, 10)
        next(left)
        left.close()
        again = [item[0] for item in sized.stream(40, 10)]
    finally:
        hidden.rename(socket)
        runner.close()
    assert seen == [(i, 3 << 20) for i in range(20)]
    assert again == list(range(40))


def test_a_stream_over_two_nodes_goes_in_step_and_leaves_at_the_same_item() -> None:
    items = over_nodes.stream(20)
    assert list(items) == [(i, 4) for i in range(20)]
    assert items.value == 0
    for i, _ in over_nodes.stream(10**9):
        if i == 5:
            break
    assert list(over_nodes.stream(3)) == [(i, 4) for i in range(3)]


def test_over_two_nodes_an_item_may_be_the_list_by_rank() -> None:
    items = all_over_nodes.stream(20)
    assert list(items) == [[100 * rank + i for rank in range(4)] for i in range(20)]
    assert items.value == [0, 1, 2, 3]
    with pytest.raises(phalanx.RankDiedError, match="rank 3"):
        list(all_over_nodes.stream(20, 5))


def test_an_agent_that_is_killed_ends_the_stream_and_its_successor_closes_the_generator(
    cluster: Cluster, tmp_path: Path
) -> None:
    items = endless.stream(str(tmp_path))
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    wait_until(lambda: _state(items) == CallState.RUNNING, "a logged call")
    lead = current().client.get_call(items.call_id).gang_id
    assert lead
    for index in range(2):
        cluster.kill_agent(index)
    seen: list[Any] = []
    with pytest.raises(phalanx.OutcomeUnknownError, match="items had come"):
        seen.extend(items)
    assert seen == list(range(3, 3 + len(seen)))
    for index in range(2):
        cluster.start_agent(index)
    wait_until((tmp_path / "finally").exists, "the generator's finally block", timeout_s=30)
    wait_until(lambda: _state(items) == CallState.CANCELLED, "the call's end", timeout_s=30)
    began = time.monotonic()
    assert [len(x) for x in sized.stream(2, 5)] == [5, 5]
    assert time.monotonic() - began < 30


def _state(items: Any) -> str:
    try:
        return current().client.get_call(items.call_id).state
    except phalanx.NotFoundError:
        return ""
