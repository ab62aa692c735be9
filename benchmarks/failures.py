"""How long failures take: a rank's death until the caller is told and all ranks are gone, a cancel until they are.

And how long a look at all ranks' stacks takes while one of them holds its interpreter, which must not end its call.

    python -m benchmarks.failures [--rounds 20] [--json benchmarks/failures.json]

Four ranks in an all-reduce without end, each round on a gang of its own, on the configured or the embedded cluster.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import phalanx
from benchmarks.report import Row, machine, p99, table, write
from phalanx import connection
from phalanx.core.collectives import describe
from phalanx.ranks_now import ranks_now

RANKS = 4
LOOK_EVERY_S = 0.002
HELD_S = 3
TRIED = 10_000_000


@phalanx.gpu_function(gpus=RANKS, scaledown_window=1, grace=1)
def reduce_forever() -> None:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1024)
    while True:
        dist.all_reduce(tensor)


@phalanx.gpu_function(gpus=RANKS, scaledown_window=1, grace=1)
def hold_the_interpreter(seconds: int) -> str:
    """Rank 1 computes inside C, for seconds at a time, and none of its other threads runs; the others wait for it."""
    import itertools

    import torch
    import torch.distributed as dist

    began = time.monotonic()
    sum(itertools.repeat(1, TRIED))
    held = round(TRIED * HELD_S / (time.monotonic() - began))
    until = time.monotonic() + seconds
    while phalanx.current().rank == 1 and time.monotonic() < until:
        sum(itertools.repeat(1, held))
    dist.all_reduce(torch.ones(1))
    return "not ended"


def measure_looks(looks: int) -> list[float]:
    """Returns seconds of each look that found rank 1 silent. Raises CallError where it is taken for dead."""
    call = hold_the_interpreter.spawn(3 * looks + 5)
    client = connection.connect()
    while call.status().state != "running":
        time.sleep(0.05)
    time.sleep(1)
    found: list[float] = []
    for _ in range(looks):
        began = time.perf_counter()
        states = ranks_now(client, call.id)
        took = time.perf_counter() - began
        if [s.rank for s in states if s.places] != list(range(RANKS)):
            raise RuntimeError(f"the look had not every rank's stack: {describe(states)}")
        if not states[1].answered:
            found.append(took)
        time.sleep(1)
    if call.get() != "not ended":
        raise RuntimeError("the call came back with something else")
    return found


def started() -> tuple[phalanx.Call[Any], list[int]]:
    """Returns a call that runs, and the processes of its ranks."""
    call = reduce_forever.spawn()
    while True:
        pids = [rank.pid for rank in call.ranks() if rank.pid]
        if len(pids) == RANKS and call.status().state == "running":
            time.sleep(0.2)
            return call, pids
        time.sleep(0.02)


def gone_after(pids: list[int], began: float) -> float:
    """Waits until none of the processes is there; zombies count as gone. Returns seconds since ``began``."""
    while any(_lives(pid) for pid in pids):
        time.sleep(LOOK_EVERY_S)
    return time.perf_counter() - began


def measure_death() -> tuple[float, float]:
    """Returns seconds until the caller was told, and until all ranks were dead."""
    call, pids = started()
    told: list[float] = []

    def wait() -> None:
        try:
            call.get()
        except phalanx.CallError:
            told.append(time.perf_counter())

    waiter = threading.Thread(target=wait)
    waiter.start()
    began = time.perf_counter()
    os.kill(pids[1], signal.SIGKILL)
    dead = gone_after(pids, began)
    waiter.join()
    return told[0] - began, dead


def measure_cancel() -> float:
    """Returns seconds from the cancel until all ranks were gone."""
    call, pids = started()
    began = time.perf_counter()
    call.cancel(wait=False)
    gone = gone_after(pids, began)
    call.cancel()
    return gone


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_name("failures.json"))
    args = parser.parse_args()
    deaths = _rounds("rank killed", measure_death, args.rounds)
    cancels = _rounds("cancel", measure_cancel, args.rounds)
    rows = [
        _row("rank killed → caller told, p99", [told for told, _ in deaths], aim=1, figure=p99),
        _row("rank killed → all ranks dead, p99", [dead for _, dead in deaths], aim=1, figure=p99),
        _row("cancel → processes gone, p50", cancels, aim=0.3, figure=statistics.median),
        _row("all stacks, one rank holds its interpreter, p99", measure_looks(args.rounds), aim=2, figure=p99),
    ]
    print(machine())
    print(table([row for row, _ in rows]))
    for row, figure in rows:
        print(f"{row.name}: {figure:.3f} s, aim ≤ {row.aim:g} s: {'reached' if figure <= row.aim else 'missed'}")
    write([row for row, _ in rows], args.json)


def _rounds(name: str, measure: Callable[[], Any], rounds: int) -> list[Any]:
    samples: list[Any] = []
    for number in range(rounds):
        samples.append(measure())
        print(f"{name} {number + 1}/{rounds}: {samples[-1]}", file=sys.stderr, flush=True)
    return samples


def _row(name: str, ours: list[float], *, aim: float, figure: Callable[[list[float]], float]) -> tuple[Row, float]:
    return Row(name=name, unit="s", ours=ours, peer=[], aim=aim, kind="value"), figure(ours)


if __name__ == "__main__":
    main()
