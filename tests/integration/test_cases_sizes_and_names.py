"""Much and odd: names of every kind, large values, long errors, many variables and many calls at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import phalanx
from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster

GPUCTL = (sys.executable, "-m", "phalanx.cli.main")
ODD_NAMES = {
    "unicode": "größe-大きさ",
    "spaces": " two  words ",
    "emoji": "🚀 liftoff",
    "sql": "x'; DROP TABLE calls; --",
    "html": "<img src=x onerror=alert(1)>"[:20] + "&amp;",
    "redis": "*?[a-z]{px:test}:",
    "prometheus": 'a="b",c{d}',
    "format": "%s{0}$HOME`id`",
    "long": "x" * 200,
}
REFUSED_NAMES = {
    "empty": "",
    "slash": "a/b",
    "backslash": "a\\b",
    "parent": "..",
    "dash": "-rf",
    "newline": "a\nb",
    "null": "a\0b",
    "escape": "a\x1b[31mb",
    "right-to-left": "a\u202eb",
    "300": "x" * 300,
}


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with judged_cluster(tmp_path_factory.mktemp("cluster"), agents=1) as running:
        yield running


def nothing() -> str:
    print("said")
    return "done"


@phalanx.gpu_function(gpus=0, scaledown_window=3)
def echo(value: Any) -> Any:
    return value


@phalanx.gpu_function(gpus=0, scaledown_window=1)
def fail_at_length(characters: int) -> None:
    raise ValueError("begin " + "m" * characters + " end")


def result_by_rank(kind: str) -> Any:
    import threading

    import torch

    rank = phalanx.current().rank
    match kind:
        case "first":
            return bytes(5 << 20) if rank == 0 else None
        case "tensor":
            return torch.arange(3) + rank
        case _:
            return threading.Lock() if rank == 1 else rank


first_rank = phalanx.gpu_function(gpus=2, scaledown_window=1)(result_by_rank)
every_rank = phalanx.gpu_function(gpus=2, scaledown_window=1, returns="all")(result_by_rank)


def told(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*GPUCTL, *words, "--json"], env=cluster.env(), capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_names_of_every_kind_run_are_listed_and_found_as_they_are(cluster: Cluster) -> None:
    calls = {}
    for kind, name in ODD_NAMES.items():
        calls[kind] = phalanx.gpu_function(gpus=0, scaledown_window=0.1, name=name)(nothing).spawn()
    assert [call.get(60) for call in calls.values()] == ["done"] * len(calls)
    names = {view["call_id"]: view["function"] for view in told(cluster, "ps", "--all")}
    for kind, name in ODD_NAMES.items():
        assert names[calls[kind].id].removeprefix(f"{__name__}.") == name
        assert [line.text for line in calls[kind].logs(follow=True)] == ["said"]
    name = names[calls["redis"].id]
    assert {view["function"] for view in told(cluster, "ps", "--all", "--function", name)} == {name}


def test_apps_with_odd_names_are_deployed_and_called_by_them() -> None:
    for name in ODD_NAMES.values():
        app = phalanx.App(name)
        app.function(gpus=0, scaledown_window=0.1, name=name)(nothing)
        app.deploy()
    last = ODD_NAMES["sql"]
    assert phalanx.Function.from_name(last, last).spawn().get(60) == "done"


@pytest.mark.parametrize("kind", REFUSED_NAMES)
def test_names_that_could_be_something_else_are_refused_where_they_are_written(kind: str) -> None:
    name = REFUSED_NAMES[kind]
    with pytest.raises(phalanx.InvalidSpecError, match="name"):
        phalanx.gpu_function(gpus=0, name=name)(nothing)
    with pytest.raises(phalanx.InvalidSpecError, match="name"):
        phalanx.App(name)


def test_five_megabytes_go_both_ways_by_both_paths() -> None:
    value = np.arange(5 << 17, dtype=np.float64)
    assert np.array_equal(echo.remote(value), value)
    assert np.array_equal(echo.spawn(value).get(60), value)


@pytest.mark.slow
def test_half_a_gigabyte_goes_both_ways_by_both_paths() -> None:
    value = np.arange(500 << 17, dtype=np.float64)
    assert np.array_equal(echo.remote(value), value)
    assert np.array_equal(echo.spawn(value).get(300), value)


def test_an_error_of_ten_megabytes_comes_with_its_type_its_begin_and_its_end() -> None:
    with pytest.raises(ValueError, match=r"^begin m+\n… [0-9,]+ of 10,000,010 characters left out …\nm+ end") as caught:
        fail_at_length.spawn(10_000_000).get(60)
    assert len(str(caught.value)) < 100_000


def test_a_thousand_variables_arrive() -> None:
    variables = {f"VARIABLE_{n}": f"value {n} ü=\n" for n in range(1000)}

    @phalanx.gpu_function(gpus=0, scaledown_window=0.1, env=phalanx.env(vars=variables))
    def look(names: list[str]) -> list[str]:
        import os

        return [os.environ[name] for name in names]

    assert look.spawn(list(variables)).get(60) == list(variables.values())


def test_a_hundred_submissions_at_once_all_end_and_are_listed(cluster: Cluster) -> None:
    with ThreadPoolExecutor(20) as pool:
        calls = list(pool.map(echo.spawn, range(100)))
    assert [call.get(60) for call in calls] == list(range(100))
    assert {call.id for call in calls} <= {view["call_id"] for view in told(cluster, "ps", "--all", "--limit", "500")}


def test_only_what_is_returned_to_the_caller_must_be_able_to_travel() -> None:
    assert len(first_rank.spawn("first").get(60)) == 5 << 20
    assert first_rank.spawn("lock").get(60) == 0


@pytest.mark.slow
def test_where_all_are_asked_for_the_rank_whose_result_cannot_travel_is_named() -> None:
    assert [value.tolist() for value in every_rank.spawn("tensor").get(60)] == [[r, r + 1, r + 2] for r in range(2)]
    call = every_rank.spawn("lock")
    with pytest.raises(phalanx.SerializationError, match="lock") as caught:
        call.get(60)
    assert caught.value.rank == 1  # pyright: ignore[reportAttributeAccessIssue]
