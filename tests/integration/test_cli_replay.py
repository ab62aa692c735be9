"""`gpuctl replay --local`: the same code and arguments on this machine, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

pytestmark = pytest.mark.timeout(180)
HELPER = """
class Broken(Exception):
    def __init__(self, code, *, rank):
        super().__init__(f"code {code} at rank {rank}")
        self.code = code

def check(value, rank):
    expected = sum(value)
    if rank == 1:
        raise Broken(expected, rank=rank)
"""
PROGRAM = """
import sys
import phalanx
from helper import check

@phalanx.gpu_function(gpus=2, scaledown_window=5, env=phalanx.env(vars={"FLAVOUR": "mint"}))
def work(value, how="fail"):
    import os
    import torch.distributed as dist
    rank = phalanx.current().rank
    print("flavour", os.environ["FLAVOUR"], "call", phalanx.current().call_id[:2])
    if how == "fail":
        check(value, rank)
    return [dist.get_world_size(), value]

@phalanx.gpu_function(gpus=0, scaledown_window=5)
def direct(value):
    assert value is None, f"not {value}"

if __name__ == "__main__":
    call = work.spawn([1, 2, 3], how=sys.argv[1])
    try:
        call.get()
    except Exception as e:
        print(type(e).__name__, [n for n in e.__notes__ if call.replay_command in n] != [])
    print(call.id)
    direct.remote(None)
    try:
        direct.remote("nothing")
    except AssertionError as e:
        print(e.call_id)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("replay")
    (folder / "program").mkdir()
    (folder / "program" / "main.py").write_text(textwrap.dedent(PROGRAM))
    (folder / "program" / "helper.py").write_text(textwrap.dedent(HELPER))
    with Cluster(folder, gpus_per_agent=4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def calls(cluster: Cluster) -> list[str]:
    """Returns what the program told of its calls: the one that failed, and a direct one."""
    return run_program(cluster, "fail")


def run_program(cluster: Cluster, how: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "main.py", how],
        cwd=cluster.tmp_path / "program",
        env=environment(cluster),
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return done.stdout.splitlines()


def environment(cluster: Cluster) -> dict[str, str]:
    return cluster.env() | {"PHALANX_HOME": str(cluster.tmp_path / "home"), "COLUMNS": "80"}


def replay(cluster: Cluster, *words: str, home: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phalanx.cli.main", "replay", *words],
        env=environment(cluster) | ({"PHALANX_HOME": home} if home else {}),
        cwd=cluster.tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_a_failed_call_fails_here_in_the_same_way(cluster: Cluster, calls: list[str]) -> None:
    assert calls[0] == "Broken True"
    done = replay(cluster, calls[1], "--local")
    assert done.returncode == 1
    assert "flavour mint call c-" in done.stdout
    for part in ("rank 1 failed", "helper.Broken: code 6 at rank 1", 'File "helper.py"', "raise Broken(expected"):
        assert part in done.stderr
    assert "differs: GPUs: the call had 2" in done.stderr
    assert "replay_rank.py" not in done.stderr


def test_a_call_that_succeeded_returns_here_what_it_returned(cluster: Cluster) -> None:
    call = run_program(cluster, "well")[0]
    done = replay(cluster, call, "--local")
    assert (done.returncode, "rank 0 returned [2, [1, 2, 3]]" in done.stderr) == (0, True)
    alone = replay(cluster, call, "--local", "--ranks", "1", "--json")
    events = [json.loads(line) for line in alone.stdout.splitlines() if line.startswith("{")]
    assert "ranks: 1 instead of 2" in events[0]["differs"]
    assert events[-1] == {"event": "replayed", "exit_code": 0, "failed_rank": None}


def test_a_direct_call_is_replayed_where_it_was_made_and_elsewhere_says_why_not(
    cluster: Cluster, calls: list[str], tmp_path: Path
) -> None:
    done = replay(cluster, calls[2], "--local")
    assert (done.returncode, "AssertionError: not nothing" in done.stderr) == (1, True)
    elsewhere = replay(cluster, calls[2], "--local", home=str(tmp_path))
    assert elsewhere.returncode == 3
    assert replay(cluster, calls[1]).returncode == 2


def test_pdb_opens_where_the_rank_failed(cluster: Cluster, calls: list[str]) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx.cli.main", "replay", calls[1], "--local", "--pdb"],
        env=environment(cluster) | {"TERM": "dumb"},
        cwd=cluster.tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    os.write(master, b"up\np 'found', rank, value\nq\n")
    shown = b""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(master)
    assert process.wait(60) == 1
    assert b"pdb at rank 1" in shown
    assert b"('found', 1, [1, 2, 3])" in shown
