"""gpuctl attach, shell and release at terminals, over two nodes of a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from phalanx.client import Client
from phalanx.core.clock import SystemClock
from phalanx.core.views import CallView
from tests.support.cluster import Cluster
from tests.support.pty import AtTerminal
from tests.support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]
GPUCTL = (sys.executable, "-m", "phalanx.cli.main")
PROGRAM = """
import os
import socket
import time

import phalanx
import torch
import torch.distributed as dist

@phalanx.gpu_function(gpus=2, nodes=2, timeout=3, hang_timeout=3)
def stops() -> float:
    total = torch.ones(1)
    if phalanx.current().rank == 1:
        secret = 41
        breakpoint()
        total += secret
    dist.all_reduce(total)
    return float(total)

@phalanx.gpu_function(gpus=2, nodes=2, hold_on_failure="10m")
def fails() -> None:
    if phalanx.current().rank == 1:
        raise ValueError("no data")
    dist.all_reduce(torch.ones(1))

@phalanx.gpu_function(gpus=2, nodes=2, hold_on_failure="10m")
def crashes(rank: int, slowly: int) -> None:
    if phalanx.current().rank == rank:
        if slowly:  # its peers notice before its keeper does
            cut_off()
            time.sleep(0.5)
        os._exit(3)
    dist.all_reduce(torch.ones(1))

def cut_off() -> None:
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            sock = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
            sock.shutdown(socket.SHUT_RDWR)

if __name__ == "__main__":
    import sys
    print(globals()[sys.argv[1]].spawn(*map(int, sys.argv[2:])).id)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("debug")
    (folder / "work.py").write_text(PROGRAM)
    with Cluster(folder, agents=2, gpus_per_agent=2) as cluster:
        yield cluster


def run(cluster: Cluster, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, **options}
    environment = {**cluster.env(), "COLUMNS": "80"}
    return subprocess.run(
        words, env=environment, cwd=cluster.tmp_path, capture_output=True, text=True, timeout=90, check=False, **given
    )


def spawn(cluster: Cluster, name: str, *arguments: str) -> str:
    done = run(cluster, sys.executable, "work.py", name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def until(client: Client, call: str, phase: str) -> CallView:
    wait_until(lambda: client.get_call(call).phase == phase, f"the call is in its phase {phase}", 30)
    return client.get_call(call)


def test_a_breakpoint_on_another_node_is_attached_to_and_stops_the_calls_clocks(cluster: Cluster) -> None:
    client = cluster.connect()
    call = spawn(cluster, "stops")
    view = until(client, call, "debug")
    assert view.reason.startswith("rank 1 waits at a breakpoint, work.py:")
    assert view.reason.endswith(f"gpuctl attach {call} --rank 1")
    env = {**cluster.env(), "TERM": "dumb"}
    with AtTerminal([*GPUCTL, "attach", call, "--rank", "1"], env) as terminal:
        terminal.until(r"\(Pdb\) ")
        terminal.type("secret + 1\n")
        terminal.until("42")
        second = run(cluster, *GPUCTL, "attach", call)
        assert (second.returncode, "is attached to rank 1" in second.stderr) == (3, True)
        terminal.type("\x03")
        terminal.until("KeyboardInterrupt")
        terminal.type("\x04")
        terminal.until(f"come back with: gpuctl attach {call} --rank 1")
        assert terminal.exit_code() == 0
    with AtTerminal([*GPUCTL, "shell", call, "--rank", "1"], env, rows=31, columns=99) as shell:
        shell.type("stty size; echo rank $RANK on $PHALANX_GANG; exit 7\n")
        shell.until("31 99")
        shell.until(f"rank 1 on {view.gang_id}")
        assert shell.exit_code() == 7
    started = client.get_call(call).started_ms
    wait_until(lambda: _age_ms(started) > 7000, "longer than both limits", 20)
    left = run(cluster, *GPUCTL, "attach", call, stdin=None, input="c\n")
    assert (left.returncode, "rank 1 goes on" in left.stderr) == (0, True)
    wait_until(lambda: client.get_call(call).state == "succeeded", "it goes on to its end", 30)
    logs = run(cluster, *GPUCTL, "logs", call).stderr
    assert len([line for line in logs.splitlines() if f": gpuctl attach {call} --rank 1" in line]) == 1, logs


def _age_ms(since_ms: int) -> int:
    return SystemClock().wall_ms() - since_ms


def test_a_gang_over_two_nodes_is_held_after_a_failure_until_it_is_released(cluster: Cluster) -> None:
    client = cluster.connect()
    call = spawn(cluster, "fails")
    view = until(client, call, "debug")
    assert (view.state, view.error.message) == ("failed", "no data")
    assert view.reason.startswith("held for 9 m ")
    listed = [json.loads(line) for line in run(cluster, *GPUCTL, "ps", "--json").stdout.splitlines()]
    assert call in [row["call_id"] for row in listed]
    for rank in ("0", "1"):
        done = run(cluster, *GPUCTL, "shell", call, "--rank", rank, "-c", "echo $RANK")
        assert (done.returncode, done.stdout) == (0, f"{rank}\n"), done.stderr
    stack = run(cluster, *GPUCTL, "stack", call).stdout
    assert "rank 0 waits in all_reduce" in stack
    assert "rank 1 has failed" in stack
    report = run(cluster, *GPUCTL, "report", call).stdout
    assert f"gpuctl release {call}" in report
    assert "no word of" not in report
    assert "victim" in next(line for line in report.splitlines() if line.startswith("rank 0") and "all_reduce" in line)
    assert "culprit" in next(line for line in report.splitlines() if line.startswith("rank 1"))
    assert "stack of rank 0 now" in report
    assert run(cluster, *GPUCTL, "release", call).returncode == 0
    wait_until(lambda: view.gang_id not in [g.gang_id for g in client.list_gangs()], "the gang is gone", 20)
    assert run(cluster, *GPUCTL, "shell", call, "-c", "true").returncode == 3


@pytest.mark.parametrize(("dead", "alive"), [("0", "1"), ("1", "0")])
def test_a_gang_over_two_nodes_is_held_when_one_of_its_processes_is_gone(
    cluster: Cluster, dead: str, alive: str
) -> None:
    client = cluster.connect()
    call = spawn(cluster, "crashes", dead, "0")
    view = until(client, call, "debug")
    assert (view.state, view.error.rank, view.error.exit_code) == ("failed", int(dead), 3)
    held_until_released(cluster, view, alive)


def test_a_gang_is_held_on_all_nodes_when_those_that_lost_a_peer_say_so_first(cluster: Cluster) -> None:
    call = spawn(cluster, "crashes", "0", "1")
    held_until_released(cluster, until(cluster.connect(), call, "debug"), "1")


def held_until_released(cluster: Cluster, view: CallView, alive: str) -> None:
    done = run(cluster, *GPUCTL, "shell", view.call_id, "--rank", alive, "-c", "echo $RANK")
    assert (done.returncode, done.stdout) == (0, f"{alive}\n"), done.stderr
    assert run(cluster, *GPUCTL, "release", view.call_id).returncode == 0
    gangs = cluster.connect()
    wait_until(lambda: view.gang_id not in [g.gang_id for g in gangs.list_gangs()], "the gang is gone", 20)
