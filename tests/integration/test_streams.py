"""Streams and async functions against a real cluster: items as they are made, their ends, and readers that leave."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import os
import signal
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phalanx
from phalanx.core.states import CallState
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until

STREAMS = itertools.count()
"""Starts anew in every gang: the ranks import this file."""
LEFT = contextvars.ContextVar("left", default="nothing")


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), gpus_per_agent=4) as running:
        yield running


@phalanx.gpu_function(gpus=0, scaledown_window=30, grace=2)
def count(n: int, directory: str = "", kind: str = "") -> Generator[int, None, str]:  # noqa: C901  one function shows all ends
    try:
        for i in range(n):
            if kind == "waits" and i == 1:
                while not (Path(directory) / "go").exists():
                    time.sleep(0.01)
            if kind == "raises" and i == 3:
                raise KeyError("in the middle")
            if kind == "sleeps" and i == 1:
                time.sleep(60)
            if directory:
                (Path(directory) / "made").write_text(str(i + 1))
            yield i
        return "that is all"  # noqa: TRY300
    except GeneratorExit:
        if kind == "ignores":
            yield -1
        raise
    finally:
        if directory:
            (Path(directory) / "finally").write_text(str(next(STREAMS)))
        if kind == "spoils":
            raise ValueError("in finally")


@phalanx.gpu_function(gpus=0, scaledown_window=30)
async def count_slowly(n: int, directory: str = "") -> AsyncGenerator[int, None]:
    try:
        for i in range(n):
            await asyncio.sleep(0.001)
            yield i
    finally:
        if directory:
            (Path(directory) / "finally").write_text("async")


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def arrays(n: int, size: int) -> Generator[Any, None, None]:
    for i in range(n):
        yield np.full(size, i, np.uint8)


@phalanx.gpu_function(gpus=0, scaledown_window=30, grace=2)
async def sleep(seconds: float, directory: str = "") -> str:
    before = LEFT.get()
    LEFT.set("something")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        (Path(directory) / "cancelled").touch()
        raise
    return before


@phalanx.gpu_function(gpus=2, scaledown_window=5, grace=2)
def of_gang(n: int, die_at: int = -1) -> Generator[tuple[int, int], None, int]:
    import torch
    import torch.distributed as dist

    rank = phalanx.current().rank
    for i in range(n):
        if rank == 1 and i == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        total = torch.ones(1)
        dist.all_reduce(total)
        yield i, int(total.item())
    return next(STREAMS)


@phalanx.gpu_function(gpus=2, returns="all", scaledown_window=5)
def by_rank(fewer: int = 0) -> Generator[Any, None, int]:
    rank = phalanx.current().rank
    for i in range(40 - rank * fewer):
        yield np.full((1 << 20) if i == 20 else 4, rank * 100 + i, np.uint8) if i >= 20 else rank * 100 + i
    return rank


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def plain(x: int = 1) -> int:
    return x


def _slowly(item: Any) -> Any:
    time.sleep(0.01)
    return item


def ended(directory: Path, what: str = "finally") -> bool:
    return (directory / what).exists()


def state_of(call_id: str) -> str:
    return current().client.get_call(call_id).state


def test_items_come_in_order_and_then_the_value() -> None:
    items = count.stream(100)
    assert list(items) == list(range(100))
    assert items.value == "that is all"
    assert list(items) == []


def test_a_cold_start_waits_for_a_gang() -> None:
    items = arrays.stream(3, 10)
    assert [int(a[0]) for a in items] == [0, 1, 2]
    wait_until(lambda: state_of(items.call_id) == CallState.SUCCEEDED, "the durable call's end")


def test_the_first_item_comes_before_the_second_is_made(tmp_path: Path) -> None:
    items = count.stream(3, str(tmp_path), "waits")
    assert next(items) == 0
    assert (tmp_path / "made").read_text() == "1"
    (tmp_path / "go").touch()
    assert list(items) == [1, 2]


def test_a_slow_reader_pauses_the_generator(tmp_path: Path) -> None:
    items = count.stream(10**9, str(tmp_path))
    assert next(items) == 0
    wait_until(lambda: int((tmp_path / "made").read_text() or 0) >= 16, "the window is full")
    time.sleep(0.3)
    assert int((tmp_path / "made").read_text()) <= 17
    items.close()
    wait_until(lambda: ended(tmp_path), "the generator's finally block")


@pytest.mark.parametrize("size", [100, 1 << 20, 20 << 20], ids=["small", "a-mebibyte", "more-than-the-window"])
def test_items_of_any_size_come_whole(size: int) -> None:
    seen = [(len(a), int(a[0]), int(a[-1])) for a in arrays.stream(20, size)]
    assert seen == [(size, i, i) for i in range(20)]


def test_an_exception_in_the_middle_comes_after_the_items_before_it() -> None:
    items = count.stream(10, kind="raises")
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="in the middle"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)


def test_leaving_the_loop_reaches_the_generator_and_the_gang_stays_warm(tmp_path: Path) -> None:
    for _ in count.stream(10**9, str(tmp_path)):
        break
    wait_until(lambda: ended(tmp_path), "finally after break", timeout_s=2)
    before = int((tmp_path / "finally").read_text())
    again = tmp_path / "again"
    again.mkdir()
    assert list(count.stream(3, str(again))) == [0, 1, 2]
    assert int((again / "finally").read_text()) == before + 1


def test_a_left_call_is_told_as_cancelled_by_its_reader(tmp_path: Path) -> None:
    items = count.stream(10**9, str(tmp_path))
    assert [next(items), next(items)] == [0, 1]
    time.sleep(0.4)  # from 200 ms on it is a logged call
    items.close()
    items.close()
    wait_until(lambda: state_of(items.call_id) == CallState.CANCELLED, "the call's end")


def test_a_stream_that_is_dropped_or_never_begun_is_closed(tmp_path: Path) -> None:
    items = count.stream(10**9, str(tmp_path))
    next(items)
    del items
    gc.collect()
    wait_until(lambda: ended(tmp_path), "finally after the last reference")
    never = count.stream(3)
    never.close()
    assert list(never) == []


def test_leaving_after_the_last_item_is_its_end() -> None:
    for item in count.stream(3):
        if item == 2:
            break
    assert list(count.stream(2)) == [0, 1]


@pytest.mark.parametrize("kind", ["ignores", "spoils"])
def test_a_generator_that_fails_while_it_is_closed_harms_no_other_call(kind: str, tmp_path: Path) -> None:
    items = count.stream(10**9, str(tmp_path), kind)
    next(items)
    time.sleep(0.3)
    items.close()
    wait_until(lambda: state_of(items.call_id) == CallState.FAILED, "its failure")
    assert list(count.stream(2)) == [0, 1]


def test_a_step_that_does_not_end_is_interrupted_within_grace(tmp_path: Path) -> None:
    items = count.stream(3, str(tmp_path), "sleeps")
    next(items)
    began = time.monotonic()
    items.close()
    wait_until(lambda: ended(tmp_path), "finally", timeout_s=5)
    assert time.monotonic() - began < 2.5
    assert list(count.stream(2)) == [0, 1]


def test_cancelling_ends_a_stream_for_its_reader(tmp_path: Path) -> None:
    items = count.stream(10**9, str(tmp_path))
    next(items)
    time.sleep(0.4)
    phalanx.Call.from_id(items.call_id).cancel()
    with pytest.raises(phalanx.CallCancelledError):
        list(items)
    assert ended(tmp_path)


def test_the_time_limit_bounds_the_whole_stream() -> None:
    items = count.options(timeout=0.5).stream(10**9)
    with pytest.raises(phalanx.CallTimeoutError):
        list(map(_slowly, items))


def test_a_call_reads_another_functions_stream(cluster: Cluster) -> None:
    environment = cluster.env()
    known = {name: environment[name] for name in ("PHALANX_ADDRESS", "PHALANX_TOKEN", "PHALANX_CA")}

    @phalanx.gpu_function(gpus=0, scaledown_window=5, env=phalanx.env(vars=known))
    def adds_up(n: int) -> int:
        return sum(count.stream(n))

    call = adds_up.spawn(20)
    assert call.get(60) == sum(range(20))
    (child,) = call.children()
    assert (child.status().function.rpartition(".")[2], child.status().state) == ("count", "succeeded")


def test_a_deployed_generator_streams_by_its_name() -> None:
    app = phalanx.App("streams")
    app.function(gpus=0, scaledown_window=5, name="count")(count.wrapped)  # pyright: ignore[reportArgumentType]
    app.deploy()
    assert list(phalanx.Function.from_name("streams", "count").stream(5)) == list(range(5))


def test_an_async_function_is_ended_at_its_time_limit_and_may_clean_up(tmp_path: Path) -> None:
    with pytest.raises(phalanx.CallTimeoutError, match=r"0\.5 s"):
        sleep.options(timeout=0.5).remote(60, str(tmp_path))
    assert ended(tmp_path, "cancelled")


def test_what_is_no_stream_says_how_to_call_it() -> None:
    with pytest.raises(phalanx.InvalidSpecError, match=r"\.stream"):
        count.remote(3)
    with pytest.raises(phalanx.InvalidSpecError, match=r"\.stream"):
        list(count.map([3]))
    with pytest.raises(phalanx.InvalidSpecError, match=r"\.remote"):
        plain.stream(3)  # pyright: ignore[reportCallIssue, reportArgumentType, reportAttributeAccessIssue]


@pytest.mark.parametrize("which", [count, count_slowly], ids=["generator", "async-generator"])
async def test_async_for_over_any_generator(which: Any, tmp_path: Path) -> None:
    items = which.stream.aio(50)
    assert [item async for item in items] == list(range(50))
    left = which.stream.aio(10**9, str(tmp_path))
    async for _ in left:
        break
    await left.aclose()
    await asyncio.to_thread(wait_until, lambda: ended(tmp_path), "finally")


async def test_another_task_may_close_a_stream_that_is_waited_for(tmp_path: Path) -> None:
    items = count.stream.aio(3, str(tmp_path), "sleeps")
    assert await anext(items) == 0

    async def wait_on() -> list[int]:
        return [item async for item in items]

    task = asyncio.create_task(wait_on())
    await asyncio.sleep(0.1)
    await items.aclose()
    assert await asyncio.wait_for(task, 5) == []


async def test_cancelling_the_task_that_waits_leaves_the_stream(tmp_path: Path) -> None:
    items = count.stream.aio(3, str(tmp_path), "waits")
    assert await anext(items) == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(items), 0.2)
    (tmp_path / "go").touch()
    await asyncio.to_thread(wait_until, lambda: ended(tmp_path), "finally")


def test_an_async_function_runs_and_its_context_stays_its_own(tmp_path: Path) -> None:
    assert [sleep.remote(0), sleep.remote(0)] == ["nothing", "nothing"]
    assert sleep.spawn(0).get(60) == "nothing"
    assert list(sleep.map([0, 0])) == ["nothing", "nothing"]
    call = sleep.spawn(60, str(tmp_path))
    wait_until(lambda: call.status().state == CallState.RUNNING, "it runs")
    call.cancel()
    assert ended(tmp_path, "cancelled")


def test_a_gangs_ranks_go_in_step_and_leave_at_the_same_item() -> None:
    items = of_gang.stream(30)
    assert list(items) == [(i, 2) for i in range(30)]
    for i, _ in of_gang.stream(10**9):
        if i == 5:
            break
    again = of_gang.stream(3)
    assert list(again) == [(i, 2) for i in range(3)]
    assert again.value == items.value + 1


def test_a_rank_that_dies_in_the_middle_ends_the_stream_with_its_name() -> None:
    items = of_gang.stream(10, 4)
    with pytest.raises(phalanx.RankDiedError, match="rank 1"):
        list(items)
    assert "4 taken" in repr(items)


def test_with_returns_all_an_item_is_the_list_by_rank() -> None:
    items = by_rank.stream()
    seen = list(items)
    assert seen[:20] == [[i, 100 + i] for i in range(20)]
    assert [int(x[0]) for x in seen[20]] == [20, 120]
    assert items.value == [0, 1]


def test_ranks_that_yield_different_numbers_are_told() -> None:
    with pytest.raises(Exception, match="as many items"):
        list(by_rank.stream(30))


@phalanx.gpu_function(gpus=0, scaledown_window=5, hang_timeout=1.5, grace=2)
def hangs_at(n: int) -> Generator[int, None, None]:
    for i in range(10**9):
        if i == n:
            time.sleep(600)
        yield i


def test_a_stream_that_waits_for_its_reader_does_not_hang() -> None:
    items = hangs_at.stream(40)
    assert next(items) == 0
    time.sleep(4)
    assert next(items) == 1
    with pytest.raises(phalanx.GangHangError):
        list(items)
