"""Event loops of every kind, and the ranks' output where a call is waited for, on a real cluster."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster, nothing_runs, wait_for
from tests.support.wait import wait_until, wait_until_async


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), gpus_per_agent=4) as running:
        yield running


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def echo(value: Any) -> Any:
    return value


def others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # pyright: ignore[reportReturnType]


async def test_one_of_two_hundred_that_times_out_is_cancelled_and_the_loop_is_clean(tmp_path: Path) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    slow = asyncio.ensure_future(asyncio.wait_for(wait_for.remote.aio(str(tmp_path / "never")), 1))
    values = await asyncio.gather(*(echo.remote.aio(n) for n in range(200)))
    with pytest.raises(TimeoutError):
        await slow
    assert values == list(range(200))
    await asyncio.to_thread(wait_until, nothing_runs, "the slow one is cancelled", 30)
    gc.collect()
    await asyncio.sleep(0)
    assert not others()
    assert not complaints


async def test_cancelled_waits_give_their_threads_back(tmp_path: Path) -> None:
    """More than there are threads: each wait would hold one until its call ends."""
    call = await wait_for.spawn.aio(str(tmp_path / "go"))
    for _ in range(3):
        waits = [asyncio.ensure_future(call.get.aio()) for _ in range(100)]
        await asyncio.sleep(0.3)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    assert (await asyncio.wait_for(call.status.aio(), 20)).state == "running"
    (tmp_path / "go").touch()
    assert await call.get.aio(60) == "seen"


def test_two_event_loops_at_the_same_time() -> None:
    got: dict[int, list[int]] = {}

    def run(which: int) -> None:
        async def all_of_them() -> list[int]:
            return list(await asyncio.gather(*(echo.remote.aio(n) for n in range(50))))

        got[which] = asyncio.run(all_of_them())

    threads = [threading.Thread(target=run, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {0: list(range(50)), 1: list(range(50))}


async def test_blocking_verbs_work_where_a_loop_runs_already_as_in_a_notebook() -> None:
    assert echo.remote(1) == 1
    assert list(echo.map(range(5))) == [0, 1, 2, 3, 4]
    assert phalanx.gather(echo.spawn(2), echo.spawn(3)) == [2, 3]
    assert await echo.remote.aio(4) == 4


async def test_a_map_in_a_task_that_is_cancelled_cancels_its_calls(tmp_path: Path) -> None:
    async def consume() -> None:
        async for _ in wait_for.map.aio([str(tmp_path / "never")] * 3):
            pass

    task = asyncio.ensure_future(consume())
    await asyncio.to_thread(wait_until, lambda: bool(current().client.list_calls()), "a call is there", 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_until, nothing_runs, "everything is cancelled", 30)
    await wait_until_async(lambda: not others(), "no task is left")


# ---- the ranks' output ----

SCRIPT = """
    import asyncio, sys, time
    import phalanx

    @phalanx.gpu_function(gpus=2, scaledown_window=5)
    def talk(s):
        rank = phalanx.current().rank
        print("hello from", rank)
        time.sleep(s)
        print("bye", file=sys.stderr)
        return rank

    @phalanx.gpu_function(gpus=0, scaledown_window=5)
    def fail():
        print("before it failed")
        raise ValueError("no")

    @phalanx.gpu_function(gpus=0, scaledown_window=5)
    def count(n, s):
        for i in range(n):
            print("makes", i)
            time.sleep(s)
            yield i
        print("made all")
        assert n < 3

    async def later():
        return await talk.remote.aio(0.5)

    async def items():
        return [i async for i in count.stream.aio(2, 0.3)]

    if __name__ == "__main__" and "stream" in sys.argv:
        print(list(count.stream(2, 0.3)))
        print(list(count.stream(1, 0)))
        print(asyncio.run(items()))
        try:
            list(count.stream(3, 0.2))
        except AssertionError:
            print("failed")
    elif __name__ == "__main__" and len(sys.argv) > 1:
        talk.remote(0)
        print(asyncio.run(later()))
        print(list(talk.map([0.6, 0.7])))
    elif __name__ == "__main__":
        print(talk.remote(0.5))
        print(talk.remote(1))
        print(talk.remote(0))
        try:
            fail.remote()
        except ValueError as e:
            print("failed:", e)
"""


def run_script(cluster: Cluster, tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "main.py").write_text(textwrap.dedent(SCRIPT))
    return subprocess.run(
        [sys.executable, "main.py", *words],
        cwd=tmp_path,
        env=cluster.env() | environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )


def test_what_ranks_print_is_shown_on_standard_error_while_it_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    done = run_script(cluster, tmp_path, PHALANX_LOGS="1")
    assert done.stdout == "0\n0\n0\nfailed: no\n"
    lines = done.stderr.splitlines()
    for rank in (0, 1):
        assert lines.count(f"[r{rank}] hello from {rank}") == 2
        assert lines.count(f"[r{rank}] bye") == 2
    assert lines.count("[r0] before it failed") == 1


def test_it_is_shown_for_maps_and_async_calls_too(cluster: Cluster, tmp_path: Path) -> None:
    done = run_script(cluster, tmp_path, "side by side", PHALANX_LOGS="1")
    assert done.stdout == "0\n[0, 0]\n"
    lines = done.stderr.splitlines()
    for rank in (0, 1):
        assert lines.count(f"[r{rank}] hello from {rank}") >= 1
        for number in (0, 1):
            assert lines.count(f"[{number} r{rank}] hello from {rank}") == 1
            assert lines.count(f"[{number} r{rank}] bye") == 1


def test_it_is_shown_for_streams_while_they_last(cluster: Cluster, tmp_path: Path) -> None:
    done = run_script(cluster, tmp_path, "stream", PHALANX_LOGS="1")
    assert done.stdout == "[0, 1]\n[0]\n[0, 1]\nfailed\n"
    lines = done.stderr.splitlines()
    assert lines.count("[r0] makes 1") == 3
    assert lines.count("[r0] makes 2") == 1
    assert lines.count("[r0] made all") == 3, "what was written at the end, too; not that of one that ended at once"


def test_without_a_terminal_nothing_is_shown(cluster: Cluster, tmp_path: Path) -> None:
    assert run_script(cluster, tmp_path).stderr == ""
