"""The examples, as a newcomer runs them: plainly and through gpuctl, on a real gang. Their numbers are real."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("examples"), gpus_per_agent=4) as cluster:
        yield cluster


def run(cluster: Cluster, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=cluster.env(),
        cwd=cluster.tmp_path,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )


def test_hello_gang_sums_over_four_ranks(cluster: Cluster) -> None:
    done = run(cluster, str(EXAMPLES / "hello_gang.py"))
    assert (done.returncode, done.stdout) == (0, "10.0\n"), done.stderr


def test_hello_gang_runs_through_gpuctl(cluster: Cluster) -> None:
    done = run(cluster, "-m", "phalanx.cli.main", "run", str(EXAMPLES / "hello_gang.py"), "--arg", "value=2")
    assert done.returncode == 0, done.stderr
    assert {f"[r{r} n0] rank {r} of 4 on cpu: the sum is 20" for r in range(4)} < set(done.stdout.splitlines())
    assert done.stdout.splitlines()[-1] == "result 20.0"


@pytest.mark.slow
def test_train_digits_reaches_its_accuracy(cluster: Cluster) -> None:
    done = run(cluster, str(EXAMPLES / "train_digits.py"))
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"test accuracy (0\.\d+) \(target", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) >= 0.96


@pytest.mark.slow
def test_embed_corpus_finds_what_it_looks_for_and_equals_one_process(cluster: Cluster) -> None:
    done = run(cluster, "-m", "phalanx.cli.main", "run", str(EXAMPLES / "embed_corpus.py"), "--arg", "limit=600")
    assert done.returncode == 0, done.stderr
    assert len(set(re.findall(r"pid (\d+) on cpu: \d+ documents", done.stdout))) == 4
    assert re.search(r"500 documents against one process: smallest cosine (1\.0|0\.99999)\d* \(equal\)", done.stdout)
    assert len(re.findall(r"^  0\.\d{3}  \S+", done.stdout, re.MULTILINE)) == 9
    for part in ("placed on", "GPU-s", "page http"):
        assert part in done.stderr


def test_the_examples_fail_without_an_agent(cluster: Cluster) -> None:
    cluster.kill_agent(0)
    try:
        done = run(
            cluster,
            "-m",
            "phalanx.cli.main",
            "run",
            str(EXAMPLES / "hello_gang.py"),
            "--timeout",
            "5",
            "--arg",
            "value=3",
        )
        assert done.returncode != 0
        assert "result" not in done.stdout
    finally:
        cluster.start_agent(0)
