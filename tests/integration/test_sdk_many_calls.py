"""Many durable calls at once on a real cluster: spawned maps, gathered calls, calls found by id."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx import connection
from phalanx.connection import Connection
from phalanx.core.errors import CallCancelledError, InvalidSpecError, NotFoundError
from phalanx.core.ids import new_call_id
from phalanx.runner import current
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster, nothing_runs, wait_for
from tests.support.wait import wait_until


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), gpus_per_agent=4) as running:
        yield running


@phalanx.gpu_function(gpus=0, scaledown_window=30)
def double(value: Any) -> Any:
    if value == "bad":
        raise ValueError(value)
    return 2 * value


# ---- spawned maps ----


def test_a_spawned_map_is_found_by_id_from_another_process(cluster: Cluster) -> None:
    made = double.spawn_map(iter(range(70)))
    assert len(made) == 70
    assert list(made) == [2 * n for n in range(70)]
    code = f"import phalanx; print(sum(phalanx.MapCall.from_id({made.id!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=cluster.env(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{sum(2 * n for n in range(70))}\n"
    assert made.status() == phalanx.MapProgress(calls=70, ended=70, states={"succeeded": 70})


def test_a_map_over_nothing_is_over() -> None:
    made = double.spawn_map([])
    assert (len(made), list(made)) == (0, [])
    assert made.status() == phalanx.MapProgress(calls=0, ended=0)


def test_failures_of_a_spawned_map_are_raised_or_yielded_with_their_input() -> None:
    made = double.spawn_map([1, "bad", 3])
    with pytest.raises(ValueError, match=r"bad") as caught:
        list(made)
    assert f"input 1 of map {made.id}" in caught.value.__notes__[-1]
    assert [str(value) for value in made.results(return_exceptions=True)] == ["2", "bad", "6"]


def test_an_error_of_the_inputs_says_how_to_find_the_calls_that_were_made() -> None:
    def inputs() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError("no more")

    with pytest.raises(LookupError, match=r"no more") as caught:
        double.spawn_map(inputs())
    map_id = caught.value.__notes__[-1].partition("from_id('")[2].partition("'")[0]
    assert list(phalanx.MapCall.from_id(map_id)) == [2, 4]


def test_cancelling_a_map_ends_all_that_has_not_ended(tmp_path: Path) -> None:
    made = wait_for.spawn_map([str(tmp_path / "never")] * 40)
    progress = made.cancel()
    assert set(progress.states) <= {"cancelling", "cancelled"}
    wait_until(lambda: made.status().states == {"cancelled": 40}, "all are cancelled", 30)
    with pytest.raises(CallCancelledError):
        next(iter(made))


async def test_async_twins_of_spawned_maps() -> None:
    async def inputs() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    made = await double.spawn_map.aio(inputs())
    assert [value async for value in made.results.aio()] == [0, 2, 4, 6, 8]
    assert (await made.status.aio()).ended == 5
    assert (await made.cancel.aio()).states == {"succeeded": 5}


async def test_leaving_the_results_of_a_map_leaves_its_calls(tmp_path: Path) -> None:
    made = await wait_for.spawn_map.aio([str(tmp_path / "go")])
    results = made.results.aio()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(results), 0.5)
    (tmp_path / "go").touch()
    assert [value async for value in made.results.aio()] == ["seen"]


# ---- gather ----


def test_gather_returns_values_in_the_order_of_its_arguments() -> None:
    calls = [double.spawn(n) for n in range(10)]
    assert phalanx.gather(*calls) == [2 * n for n in range(10)]
    assert phalanx.gather() == []


def test_gather_raises_the_first_failure_at_once_and_the_others_go_on(tmp_path: Path) -> None:
    waiting, bad = wait_for.spawn(str(tmp_path / "go")), double.spawn("bad")
    with pytest.raises(ValueError, match=r"bad") as caught:
        phalanx.gather(waiting, bad)
    assert f"this was call {bad.id}" in caught.value.__notes__
    (tmp_path / "go").touch()
    assert waiting.get(60) == "seen"


def test_gather_waits_for_all_where_exceptions_are_wanted() -> None:
    values = phalanx.gather(double.spawn("bad"), double.spawn(2), return_exceptions=True)
    assert [str(value) for value in values] == ["bad", "4"]


def test_gather_cancels_the_others_where_that_is_asked_for(tmp_path: Path) -> None:
    waiting = wait_for.spawn(str(tmp_path / "never"))
    with pytest.raises(ValueError, match=r"bad"):
        phalanx.gather(waiting, double.spawn("bad"), cancel_others=True)
    with pytest.raises(CallCancelledError):
        waiting.get(30)


def test_gather_refuses_what_is_no_call() -> None:
    with pytest.raises(TypeError, match=r"argument 1 of gather is a int: give calls"):
        phalanx.gather(double.spawn(1), 2)  # pyright: ignore[reportArgumentType]


async def test_gather_takes_calls_and_coroutines_in_a_loop(tmp_path: Path) -> None:
    call = await double.spawn.aio(1)
    assert await phalanx.gather.aio(call, double.remote.aio(2), double.remote.aio(3)) == [2, 4, 6]
    with pytest.raises(ValueError, match=r"bad"):
        await phalanx.gather.aio(
            wait_for.remote.aio(str(tmp_path / "never")), double.remote.aio("bad"), cancel_others=True
        )
    await asyncio.to_thread(wait_until, nothing_runs, "the other one is cancelled", 30)


# ---- calls by id ----


@pytest.mark.parametrize("wrong", ["", "c-1", "g-60r30c1g60r30c1g60r30c1g60", "call"])
def test_what_is_no_call_id_is_refused_at_once(wrong: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"is not a call id: they look like c-0123"):
        phalanx.Call.from_id(wrong)


def test_an_unknown_call_is_told_at_the_first_question() -> None:
    call = phalanx.Call.from_id(new_call_id())
    for ask in (call.status, call.get, call.cancel, call.parent):
        with pytest.raises(NotFoundError, match=rf"no call '{call.id}'"):
            ask()


def test_a_call_of_another_workspace_is_as_unknown(cluster: Cluster) -> None:
    call = double.spawn(1)
    assert call.get(60) == 2
    token, _ = current().client.create_token(workspace="other", user="eve", role="member")
    connection.use(Connection(cluster.address(), token, str(cluster.ca)))
    try:
        with pytest.raises(NotFoundError, match=rf"no call '{call.id}'"):
            phalanx.Call.from_id(call.id).get(10)
        assert current().client.call_states([call.id]) == [""]
    finally:
        connection.use(Connection(cluster.address(), cluster.token, str(cluster.ca)))
