"""Hangs, stalls and stacks on a real cluster of two nodes, as users meet them: errors, reasons, gpuctl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

import phalanx
from tests.faults.culprits import drawn, run_trial
from tests.support.cluster import Cluster
from tests.support.gang_table import Trial, go_wrong
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)
HANG_S = 1.5


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster"), agents=2, gpus_per_agent=4) as running:
        yield running


def gpuctl(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **cluster.env(), "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "phalanx.cli.main", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def wrong(trial: Trial) -> phalanx.Call[Any]:
    function = phalanx.gpu_function(gpus=trial.world, nodes=trial.nodes, hang_timeout=HANG_S, grace=1)(go_wrong)
    return function.spawn(trial.culprit, trial.how, trial.moment, trial.rounds, trial.collective)


@pytest.mark.parametrize("how", ["hang", "skip", "early return"])
@pytest.mark.parametrize("culprit", [0, 3])
def test_the_rank_that_hangs_a_gang_of_two_nodes_is_named(culprit: int, how: str) -> None:
    call = wrong(Trial(4, 2, culprit, how))
    with pytest.raises(phalanx.GangHangError, match=rf"rank {culprit} did not go on with the others") as raised:
        call.get(timeout=40)
    assert raised.value.rank == culprit
    error = call.status().error
    assert [r.rank for r in error.ranks if r.culprit] == [culprit]
    assert len({r.node_id for r in error.ranks}) == 2


TRIALS = {
    "skips the first collective of eight": (6, Trial(8, 2, 7, "skip", 0, 3, "all_reduce", 2)),
    "hangs in a group of some": (19, Trial(8, 2, 1, "hang", 1, 3, "all_reduce of some", 4)),
    "brings another shape": (26, Trial(8, 2, 3, "shape", 0, 4, "reduce_scatter", 7)),
    "is one of two, and either may be wrong": (43, Trial(2, 2, 1, "early return", 0, 4, "reduce", 1)),
}


@pytest.mark.parametrize("case", TRIALS)
def test_the_culprit_of_a_gang_is_named_or_nobody_where_it_cannot_be_known(case: str) -> None:
    """Seeds of the long run, which draws at random: python -m tests.faults.culprits --first SEED --seeds 1."""
    seed, trial = TRIALS[case]
    assert drawn(seed) == trial, "the seed stands for another trial now: choose one that fits"
    told = run_trial(seed)
    assert told.is_right, told


def test_a_stall_is_told_before_it_is_ended_and_the_stacks_can_be_seen(cluster: Cluster) -> None:
    function = phalanx.gpu_function(gpus=4, nodes=2, hang_timeout=16, grace=1)(go_wrong)
    call = function.spawn(1, "hang", 2, 5, "all_reduce")
    wait_until(lambda: "no progress for" in call.status().reason, "the stall is told", 30)
    reason = call.status().reason
    assert "ranks 0,2,3 wait in all_reduce #" in reason
    assert "rank 1 is in user code at gang_table.py:" in reason
    began = time.monotonic()
    shown = gpuctl(cluster, "stack", call.id)
    assert shown.returncode == 0, shown.stderr
    assert "ranks 0,2,3 wait in all_reduce" in shown.stdout
    assert shown.stdout.count("tests/support/gang_table.py") == 3
    assert "phalanx_agent" not in shown.stdout
    one = gpuctl(cluster, "stack", call.id, "--rank", "1", "--json")
    assert one.returncode == 0, one.stderr
    assert json.loads(one.stdout)["rank"] == 1
    assert time.monotonic() - began < 10
    call.cancel()
    assert not call.status().reason.startswith("no progress")


def work_in_silence(seconds: float) -> str:
    import time as clock

    import phalanx as px

    until = clock.monotonic() + seconds
    step = 0
    while clock.monotonic() < until:
        sum(range(200_000))
        step += 1
        px.current().progress(step)
    return "done"


def test_long_work_with_progress_marks_is_no_hang() -> None:
    function = phalanx.gpu_function(gpus=2, hang_timeout=1, grace=1)(work_in_silence)
    assert function.remote(4.0) == "done"


@pytest.mark.parametrize("how", ["raise", "exit", "kill", "hang"])
def test_the_report_of_a_failed_gang_holds_every_nodes_part(cluster: Cluster, how: str) -> None:
    call = wrong(Trial(4, 2, 3, how))
    with pytest.raises((phalanx.CallError, ValueError)):
        call.get(timeout=40)
    report = call.report()
    assert report.culprits == (3,)
    assert report.missing_nodes == ()
    assert report.health == ()
    assert [r.role for r in report.ranks] == ["victim", "victim", "victim", "culprit"]
    assert len({r.node_id for r in report.ranks}) == 2
    assert "all_reduce #" in report.ranks[0].collective
    first = report.ranks[0]
    assert "gang_table.py" in f"{[p.file for p in first.stack]} {first.traceback}", str(report)
    assert report.rerun.startswith("gpuctl replay c-")
    shown = gpuctl(cluster, "report", call.id)
    assert shown.returncode == 0, shown.stderr
    assert "culprit    rank 3" in shown.stdout
    assert json.loads(gpuctl(cluster, "report", call.id, "--json").stdout)["culprits"] == [3]


def fails_everywhere() -> None:
    import phalanx as px

    raise ValueError(f"of rank {px.current().rank}")


def test_a_rank_that_failed_of_itself_too_is_nobodys_victim() -> None:
    call = phalanx.gpu_function(gpus=2, retries=1)(fails_everywhere).spawn()
    with pytest.raises(ValueError, match="of rank"):
        call.get(timeout=60)
    report = call.report()
    assert sorted(r.role for r in report.ranks) == ["culprit", "failed"], str(report)
    (earlier,) = report.earlier
    assert (earlier.attempt, earlier.error.startswith("ValueError: of rank")) == (1, True)
    assert "\nattempt 1  ValueError: of rank" in str(report)


def test_a_call_that_did_not_fail_has_no_report() -> None:
    call = phalanx.gpu_function(gpus=1)(work_in_silence).spawn(0.1)
    assert call.get(timeout=60) == "done"
    with pytest.raises(phalanx.NotFoundError, match="is succeeded"):
        call.report()
