"""The SDK against a real cluster: control plane, agent, gangs. One cluster for all tests of this file."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phalanx
from phalanx.connection import Connection
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until


class MyError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), gpus_per_agent=4) as running:
        yield running


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def echo(value: Any = None) -> Any:
    return value


@phalanx.gpu_function(gpus=2, scaledown_window=5)
def where() -> tuple[int, int, str]:
    import torch.distributed as dist

    here = phalanx.current()
    total = torch.ones(1)
    dist.all_reduce(total)
    return here.rank, int(total.item()), here.call_id


@phalanx.gpu_function(gpus=2, returns="all", scaledown_window=5)
def ranks() -> int:
    return phalanx.current().rank


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def fail(kind: str) -> Any:
    if kind == "chain":
        try:
            raise KeyError("inner")
        except KeyError as e:
            raise MyError(7, "outer") from e
    if kind == "exit":
        raise SystemExit(3)
    if kind == "result":
        return {"a": [1, 2, threading.Lock()]}
    raise ValueError(kind)


@phalanx.gpu_function(gpus=0, scaledown_window=5)
def wait_for_file(path: str) -> str:
    from tests.support.wait import wait_until as wait

    wait(lambda: Path(path).exists(), "the file is there", 60)
    return "seen"


@phalanx.gpu_function(gpus=0, scaledown_window=5)
def talk(lines: int) -> None:
    for i in range(lines):
        print("line", i)


@phalanx.gpu_function(gpus=0, retries=2, scaledown_window=5)
def third_time() -> int:
    attempt = phalanx.current().attempt
    if attempt < 3:
        raise RuntimeError(f"attempt {attempt}")
    return attempt


def twice(x: int) -> int:
    return 2 * x


def is_warm(function: Any) -> bool:
    runner = current()
    return runner.route(function.definition.target(runner.client)) is not None


@pytest.mark.parametrize("value", [None, {}, {"error": 1}, [1, (2,)], "ü" * 100])
def test_values_come_back_equal(value: Any) -> None:
    assert echo.remote(value) == value


def test_a_gang_is_a_process_group() -> None:
    rank, total, call_id = where.remote()
    assert (rank, total) == (0, 2)
    assert call_id.startswith("c-")


def test_after_a_durable_call_the_next_one_goes_directly() -> None:
    echo.remote(1)
    assert is_warm(echo)
    before = current().client.list_calls(ended_too=True)
    assert [echo.remote(i) for i in range(20)] == list(range(20))
    assert len(current().client.list_calls(ended_too=True)) == len(before)


def test_every_ranks_value_comes_back_when_asked_for() -> None:
    assert ranks.remote() == [0, 1]
    assert ranks.remote() == [0, 1]
    assert ranks.spawn().get(60) == [0, 1]


def test_large_arrays_go_both_ways_and_may_be_written() -> None:
    array = np.arange(2_000_000, dtype=np.int64)
    for _ in range(3):
        back = echo.remote(array)
        assert np.array_equal(back, array)
        back[0] = 7
    tensor = torch.ones(500_000, dtype=torch.bfloat16)
    assert torch.equal(echo.remote({"t": tensor})["t"], tensor)


def test_large_arguments_go_the_durable_way_too() -> None:
    array = np.arange(100_000)
    assert np.array_equal(echo.spawn(array).get(60), array)


def test_the_users_own_exception_is_raised_with_its_cause() -> None:
    for _ in range(2):
        with pytest.raises(MyError, match="outer") as caught:
            fail.remote("chain")
        assert caught.value.code == 7
        assert isinstance(caught.value.__cause__, KeyError)
        assert getattr(caught.value, "call_id", "").startswith("c-")
        assert "remote traceback" in caught.value.__notes__[0]


def test_a_result_that_cannot_travel_is_named() -> None:
    with pytest.raises(phalanx.SerializationError, match=r'result\["a"\]\[2\] cannot travel'):
        fail.remote("result")
    with pytest.raises(ValueError, match="next"):
        fail.remote("next")


def test_sys_exit_in_a_function_is_a_failed_call() -> None:
    with pytest.raises(phalanx.CallError):
        fail.remote("exit")
    with pytest.raises(ValueError, match="next"):
        fail.remote("next")


def test_spawned_calls_are_found_by_id() -> None:
    call = echo.spawn("x")
    again = phalanx.Call.from_id(call.id)
    assert again.get("60s") == "x"
    assert again.status().state == "succeeded"
    with pytest.raises(phalanx.NotFoundError):
        phalanx.Call.from_id("c-" + "0" * 26).status()


def test_an_outcome_reaches_its_caller_past_a_wedged_agent(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "warm").touch()
    assert wait_for_file.remote(str(tmp_path / "warm")) == "seen"
    got: list[str] = []
    waiting = threading.Thread(target=lambda: got.append(wait_for_file.remote(str(tmp_path / "go"))))
    waiting.start()
    wait_until(lambda: bool([c for c in current().client.list_calls() if c.state == "running"]), "it runs")
    os.kill(cluster.nodes[0].pid, signal.SIGSTOP)
    try:
        (tmp_path / "go").touch()
        waiting.join(10)
        assert got == ["seen"]
    finally:
        os.kill(cluster.nodes[0].pid, signal.SIGCONT)


def test_get_gives_up_at_its_timeout_and_the_call_goes_on(tmp_path: Path) -> None:
    call = wait_for_file.spawn(str(tmp_path / "go"))
    with pytest.raises(phalanx.GetTimeoutError, match="did not end within"):
        call.get(0.2)
    (tmp_path / "go").touch()
    assert call.get(60) == "seen"


def test_a_cancelled_call_says_so(tmp_path: Path) -> None:
    call = wait_for_file.spawn(str(tmp_path / "never"))
    wait_until(lambda: call.status().state == "running", "it runs", 60)
    assert call.cancel().state == "cancelled"
    with pytest.raises(phalanx.CallCancelledError):
        call.get(10)
    assert call.cancel().state == "cancelled"


def test_retries_are_counted_and_visible() -> None:
    assert third_time.remote() == 3


def test_output_is_read_line_by_line() -> None:
    call = talk.spawn(3)
    call.get(60)
    wait_until(lambda: len(list(call.logs())) == 3, "three lines are there", 30)
    lines = list(call.logs())
    assert [line.text for line in lines] == ["line 0", "line 1", "line 2"]
    assert {(line.rank, line.stream, line.node_id) for line in lines} == {(0, "stdout", "n0")}


def test_output_is_followed_until_the_end() -> None:
    call = talk.spawn(5)
    assert [line.text for line in call.logs(follow=True)] == [f"line {i}" for i in range(5)]


def test_ranks_and_cost_of_a_call_are_known() -> None:
    call = where.spawn()
    call.get(60)
    assert call.cost().gpu_ms >= 0


def test_map_keeps_the_order_and_is_lazy() -> None:
    taken: list[int] = []

    def inputs() -> Iterator[int]:
        for i in range(1000):
            taken.append(i)
            yield i

    results = echo.map(inputs(), window=10)
    assert not taken
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(taken) <= 15
    assert list(results) == list(range(5, 1000))


def test_map_without_order_yields_everything_once() -> None:
    assert sorted(echo.map(range(200), order=False)) == list(range(200))


def test_map_over_nothing_is_done_at_once() -> None:
    assert list(echo.map([])) == []
    assert list(echo.map([], order=False)) == []


def test_starmap_spreads_its_inputs() -> None:
    assert list(echo.starmap([(1,), (2,)])) == [1, 2]


def test_an_error_of_the_inputs_reaches_the_caller() -> None:
    def inputs() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        list(echo.map(inputs()))


def test_a_failed_input_is_raised_or_yielded() -> None:
    with pytest.raises(ValueError, match="bad") as caught:
        list(fail.map(["bad"]))
    assert any("input 0 of the map" in note for note in caught.value.__notes__)
    got = list(fail.map(["a", "b"], return_exceptions=True))
    assert [str(e) for e in got] == ["a", "b"]


def test_leaving_a_map_early_leaves_the_gang_usable() -> None:
    for value in echo.map(range(1000)):
        if value == 3:
            break
    assert echo.remote("next") == "next"


def test_a_map_of_slow_calls_at_a_warm_gang_ends(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    wait_for_file.remote(str(tmp_path / "go"))
    assert list(wait_for_file.map([str(tmp_path / "go")] * 30)) == ["seen"] * 30


async def test_two_hundred_async_calls_in_one_loop() -> None:
    assert await asyncio.gather(*(echo.remote.aio(i) for i in range(200))) == list(range(200))


async def test_async_twins_of_spawn_get_status_and_map() -> None:
    call = await echo.spawn.aio(5)
    assert await call.get.aio(60) == 5
    assert (await call.status.aio()).state == "succeeded"
    assert [v async for v in echo.map.aio(range(5))] == [0, 1, 2, 3, 4]
    with pytest.raises(MyError):
        await fail.remote.aio("chain")


async def test_cancelling_the_task_cancels_the_call(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    await wait_for_file.remote.aio(str(tmp_path / "go"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait_for_file.remote.aio(str(tmp_path / "never")), 1)
    client = current().client

    def none_runs() -> bool:
        return not [c for c in client.list_calls() if "wait_for_file" in c.function]

    await asyncio.to_thread(wait_until, none_runs, "the call was cancelled", 30)
    assert await echo.remote.aio(1) == 1


def test_two_event_loops_one_after_the_other() -> None:
    assert asyncio.run(echo.remote.aio(1)) == 1
    assert asyncio.run(echo.remote.aio(2)) == 2


def test_an_app_is_deployed_and_called_by_name() -> None:
    app = phalanx.App("things")
    app.function(gpus=0, name="twice", scaledown_window=5)(twice)
    version, functions = app.deploy()
    assert version == 1
    assert [f.name for f in functions] == ["twice"]
    assert phalanx.Function.from_name("things", "twice").remote(21) == 42
    with pytest.raises(phalanx.NotFoundError):
        phalanx.Function.from_name("things", "other").remote()


def test_what_no_node_could_run_is_refused_at_submit() -> None:
    with pytest.raises(phalanx.UnschedulableError):
        phalanx.gpu_function(gpus=64)(lambda: 1).remote()


def test_a_wrong_token_is_an_auth_error(cluster: Cluster) -> None:
    from phalanx.client import Client

    client = Client(Connection(cluster.address(), "px_wrong_token", str(cluster.ca)), retry_s=1)
    with pytest.raises(phalanx.AuthError):
        client.list_nodes()
    client.close()


def test_a_cluster_that_is_not_there_is_a_connection_error(cluster: Cluster) -> None:
    from phalanx.client import Client

    client = Client(Connection("127.0.0.1:1", "px_x_y", str(cluster.ca)), retry_s=0.2)
    with pytest.raises(phalanx.ConnectionFailedError, match=r"127\.0\.0\.1:1 is not reachable"):
        client.list_nodes()
    client.close()


def test_a_short_call_that_failed_at_a_warm_gang_is_found_by_its_id() -> None:
    ids: list[str] = []
    for _ in range(2):
        with pytest.raises(ValueError, match="no") as caught:
            _fails.remote()
        ids.append(caught.value.call_id)  # pyright: ignore[reportAttributeAccessIssue]
    for call_id in ids:
        wait_until(lambda c=call_id: current().client.knows(c), "it is known", 10)
        wait_until(lambda c=call_id: phalanx.Call.from_id(c).status().state == "failed", "it is told as failed", 10)
        assert "ValueError: no" in str(phalanx.Call.from_id(call_id).report())


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def _fails() -> None:
    raise ValueError("no")
