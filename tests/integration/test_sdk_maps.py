"""Maps against a real cluster: how they are fed, left, limited and summed up, with nothing left running."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.core.errors import CallCancelledError
from phalanx.map_items import Item
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), gpus_per_agent=4) as running:
        yield running


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def double(value: Any) -> Any:
    return 2 * value


@phalanx.gpu_function(gpus=0, scaledown_window=5)
def wait_for(path: str) -> str:
    wait_until(lambda: Path(path).exists(), "the file is there", 60)
    return "seen"


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def even(value: int) -> None:
    if value % 2:
        raise ValueError(f"{value} is odd")


@phalanx.gpu_function(gpus=1, scaledown_window=30)
def work(value: int) -> int:
    time.sleep(0.2)
    return value


def nothing_runs() -> bool:
    return not current().client.list_calls()


def test_a_slow_source_does_not_hold_results_back() -> None:
    double.remote(0)
    first = threading.Event()

    def inputs() -> Iterator[int]:
        yield 1
        yield 2
        assert first.wait(20), "the first result is there before the third input"
        yield 3

    results = double.map(_late(inputs(), first))
    assert next(results) == 2
    first.set()
    assert list(results) == [4, 6]


def _late(inputs: Iterator[int], first: threading.Event) -> Iterator[int]:
    """Takes its time from the second input on, until a result was seen."""
    for number in inputs:
        yield number
        first.wait(0.2)


async def test_async_inputs_may_depend_on_results_and_come_when_they_come() -> None:
    asked: asyncio.Queue[int | None] = asyncio.Queue()
    asked.put_nowait(1)

    async def inputs() -> AsyncIterator[int]:
        while (value := await asked.get()) is not None:
            yield value

    got: list[int] = []
    async for value in double.map.aio(inputs()):
        got.append(value)
        asked.put_nowait(value if value < 100 else None)
    assert got == [2, 4, 8, 16, 32, 64, 128]


async def test_async_maps_take_both_kinds_of_inputs_and_keep_order() -> None:
    async def inputs() -> AsyncIterator[int]:
        for number in range(50):
            yield number

    assert [v async for v in double.map.aio(inputs())] == [2 * n for n in range(50)]
    assert sorted([v async for v in double.map.aio(inputs(), order=False)]) == [2 * n for n in range(50)]
    assert [v async for v in double.starmap.aio([(n,) for n in range(5)])] == [0, 2, 4, 6, 8]
    assert [v async for v in double.map.aio([])] == []


async def test_async_inputs_that_raise_reach_the_caller_and_end_what_runs(tmp_path: Path) -> None:
    async def inputs() -> AsyncIterator[str]:
        yield str(tmp_path / "never")
        raise LookupError("no more")

    with pytest.raises(LookupError, match=r"no more"):
        async for _ in wait_for.map.aio(inputs()):
            pass
    await asyncio.to_thread(wait_until, nothing_runs, "everything is cancelled", 30)


async def test_a_map_that_another_task_closes_raises_in_the_one_that_waits(tmp_path: Path) -> None:
    results = wait_for.map.aio([str(tmp_path / "never")] * 3)
    waiting = asyncio.ensure_future(anext(results))
    await asyncio.sleep(0.5)
    await results.aclose()
    await results.aclose()
    with pytest.raises(CallCancelledError, match=r"the map was left while it waited"):
        await waiting
    with pytest.raises(StopAsyncIteration):
        await anext(results)
    await asyncio.to_thread(wait_until, nothing_runs, "everything is cancelled", 30)


async def test_several_tasks_share_the_results_of_one_map() -> None:
    results = double.map.aio(range(100))

    async def consume() -> list[int]:
        return [value async for value in results]

    parts = await asyncio.gather(*(consume() for _ in range(3)))
    assert sorted(value for part in parts for value in part) == [2 * n for n in range(100)]


def items_alive() -> int:
    """Other tests may have left some behind, in tracebacks that pytest keeps."""
    gc.collect()
    return sum(isinstance(each, Item) for each in gc.get_objects())


@pytest.mark.parametrize("order", [True, False])
def test_memory_does_not_grow_with_the_number_of_inputs(order: bool) -> None:
    double.remote(0)
    others = items_alive()
    held: list[int] = []
    for number, _ in enumerate(double.map((n for n in range(3000)), order=order, window=16)):
        if number % 500 == 499:
            held.append(items_alive() - others)
    assert len(held) == 6
    assert max(held) <= 16 + 2


def test_for_each_counts_and_raises_the_first_failure_with_its_input() -> None:
    assert even.for_each(range(0, 40, 2)) == phalanx.ForEachSummary(calls=20, failed=0)
    assert even.for_each([]) == phalanx.ForEachSummary(calls=0, failed=0)
    with pytest.raises(ValueError, match=r"3 is odd") as caught:
        even.for_each([0, 2, 3, 4])
    assert "input 2 of the map" in caught.value.__notes__[-1]


async def test_for_each_runs_all_where_exceptions_are_wanted() -> None:
    summary = await even.for_each.aio(range(6), return_exceptions=True)
    assert (summary.calls, summary.failed) == (6, 3)
    assert sorted(str(e) for e in summary.failures) == ["1 is odd", "3 is odd", "5 is odd"]


def test_a_map_stops_before_its_limit_and_the_remainder_runs_exactly_the_rest() -> None:
    got: list[int] = []
    remainder: Any = range(12)
    stops = 0
    while remainder is not None:
        values, spent, remainder = run_limited(remainder)
        assert values
        assert spent <= Decimal("2.5")
        got += values
        stops += remainder is not None
    assert stops
    assert got == list(range(12))


def run_limited(inputs: Any) -> tuple[list[int], Decimal, Any]:
    """Returns what a map yielded before its limit, what that cost, and the inputs that were not run."""
    got: list[int] = []
    results = work.map(inputs, max_cost="2 gpu-s")
    try:
        for value in results:
            got += [value]
    except phalanx.CostLimitError as e:
        return got, Decimal(str(e.spent)), e.remainder
    return got, Decimal(0), None


def test_a_free_function_cannot_be_limited() -> None:
    with pytest.raises(phalanx.InvalidSpecError, match=r"these calls cost nothing"):
        list(double.map(range(10), max_cost=1))


SCRIPT = """
    import asyncio, os, sys, time
    import phalanx

    @phalanx.gpu_function(gpus=0, scaledown_window=1)
    def nap(s):
        time.sleep(s)
        return s

    def inputs():
        while True:
            yield 0.01 if len(sys.argv) < 3 else 30

    async def aleave():
        async for _ in nap.map.aio(inputs()):
            break

    async def atask():
        results = nap.map.aio(inputs())
        async def consume():
            async for _ in results:
                pass
        task = asyncio.create_task(consume())
        await asyncio.sleep(1)
        await results.aclose()
        try:
            await task
        except phalanx.CallCancelledError:
            pass

    if __name__ == "__main__":
        way = sys.argv[1]
        if way == "break":
            for _ in nap.map(inputs()):
                break
        elif way == "held":
            results = nap.map(inputs())
            next(results)
        elif way == "async break":
            asyncio.run(aleave())
        elif way == "async close":
            asyncio.run(atask())
        elif way == "interrupt":
            print("ready", flush=True)
            for n in nap.map(inputs()):
                pass
        print("left", way, flush=True)
"""


@pytest.mark.parametrize("way", ["break", "held", "async break", "async close"])
def test_leaving_a_map_is_silent_and_leaves_nothing_running(way: str, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(textwrap.dedent(SCRIPT))
    argv = [sys.executable, "-W", "always", "main.py", way]
    done = subprocess.run(
        argv, check=False, cwd=tmp_path, env=cluster.env(), capture_output=True, text=True, timeout=90
    )
    assert (done.returncode, done.stdout) == (0, f"left {way}\n")
    assert done.stderr == ""
    wait_until(nothing_runs, "everything is cancelled", 30)


def test_ctrl_c_in_a_map_is_a_keyboard_interrupt_and_leaves_nothing_running(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(textwrap.dedent(SCRIPT))
    argv = [sys.executable, "main.py", "interrupt", "slow"]
    with subprocess.Popen(argv, cwd=tmp_path, env=cluster.env(), stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: bool(current().client.list_calls(state="running")), "a call runs", 30)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(30) == -signal.SIGINT
    assert said.rstrip().splitlines()[-1].startswith(("call c-", "… and"))
    assert "KeyboardInterrupt" in said
    assert "Exception ignored" not in said
    wait_until(nothing_runs, "everything is cancelled", 30)
