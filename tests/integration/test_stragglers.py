"""Slow ranks on a real cluster of two nodes, as users meet them: the call's status, `Call.steps`, gpuctl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import phalanx
from phalanx.core.errors import NotFoundError
from phalanx.core.steps import SLOW_RATIO, RankSteps
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.training import WORK_S, train
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), agents=2, gpus_per_agent=2) as running:
        yield running


def rows_of(call: phalanx.Call[Any]) -> tuple[RankSteps, ...]:
    try:
        return call.steps()
    except NotFoundError:
        return ()


def known(call: phalanx.Call[Any]) -> bool:
    rows = rows_of(call)
    return len(rows) == 4 and all(row.own_ms is not None for row in rows)


def test_exactly_the_slow_rank_of_a_gang_of_two_nodes_is_marked(cluster: Cluster) -> None:
    call = phalanx.gpu_function(gpus=4, nodes=2, grace=0.2)(train).spawn(60.0, 3, 0.05)
    wait_until(lambda: "is slow" in call.status().reason or call.status().ended_ms, "the slow rank is told", 60)
    reason = call.status().reason
    assert reason.startswith("rank 3 on "), reason
    rows = rows_of(call)
    assert [row.rank for row in rows if row.slow] == [3]
    assert rows[3].ratio >= SLOW_RATIO
    assert max(row.step_ms for row in rows) < SLOW_RATIO * min(row.step_ms for row in rows)
    assert all((row.own_ms or 0) < (rows[3].own_ms or 0) - 1000 * WORK_S for row in rows[:3]), rows
    environment = {**os.environ, **cluster.env(), "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "phalanx.cli.main", "steps", call.id, "--json"]
    shown = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=True)
    told = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(row["rank"], row["slow"], bool(row["gpu"])) for row in told] == [(n, n == 3, True) for n in range(4)]
    call.cancel()
    assert "is slow" not in call.status().reason
    with pytest.raises(NotFoundError, match="only the steps of a running call are measured"):
        call.steps()


def test_nobody_is_marked_where_nobody_is_slow() -> None:
    call = phalanx.gpu_function(gpus=4, nodes=2, grace=0.2)(train).spawn(60.0, -1, 0.0)
    wait_until(lambda: known(call) or call.status().ended_ms, "what ranks wait is known", 60)
    assert [row for row in rows_of(call) if row.slow] == []
    assert call.status().reason == ""
    call.cancel()
