"""The foundation's figures against Ray, torchrun and multiprocessing, in turns, on the same cores, in one run.

``make bench`` runs it. First samples are dropped on both sides: freshly touched memory of a virtual machine is slow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import phalanx
from benchmarks.gang_program import gang_function
from benchmarks.peers.client import HERE, PeerProcess
from benchmarks.report import Row, machine, table, write
from phalanx.embedded import running

ARRAY_MB = 100
COLD_CALLS = 100
"""Of each side's turn, dropped: the caches still hold the other side."""
QUIET = 0.85
"""The part of all processors that is idle on a machine that does nothing else; Ray's daemons take some."""
GPUCTL = str(Path(sys.prefix) / "bin" / "gpuctl")


@phalanx.gpu_function(gpus=1, scaledown_window=600)
def noop(value: Any = None) -> Any:
    return value


@phalanx.gpu_function(gpus=1, scaledown_window=600)
def nbytes(array: Any) -> int:
    return int(array.nbytes)


def timed(run: Callable[[], Any], scale: float = 1.0) -> float:
    t = time.perf_counter()
    run()
    return (time.perf_counter() - t) * scale


def settle() -> None:
    """Waits until the machine is quiet: processes that the side before left to end are not this side's time."""
    before = _processor_ticks()
    for _ in range(40):
        time.sleep(0.25)
        now = _processor_ticks()
        idle, passed = now[0] - before[0], now[1] - before[1]
        before = now
        if passed and idle / passed > QUIET:
            return
    print("the machine does not become quiet: figures are those of a busy machine", file=sys.stderr)


def _processor_ticks() -> tuple[int, int]:
    """Returns how long the processors have been idle, and all their time."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def wait_for_no_gang_of(gpus: int) -> None:
    """Waits until the machine's GPUs are free again, so that each start meets the same cluster."""
    from phalanx.connection import connect

    for _ in range(600):
        busy = [g for g in connect().list_gangs() if g.world_size == gpus]
        if not busy:
            return
        time.sleep(0.1)
    raise RuntimeError("the former gang did not end within 60 s")


def measure_starts(ray: PeerProcess, rounds: int) -> list[Row]:
    ours: list[float] = []
    torchrun: list[float] = []
    multi: list[float] = []
    actors: list[float] = []
    torchrun_bin = str(Path(sys.prefix) / "bin" / "torchrun")
    script = str(HERE / "torch_ranks.py")
    for i in range(rounds + 1):
        function = gang_function(f"start-{os.getpid()}-{i}")
        settle()
        ours.append(timed(lambda: check(function.remote(), 4.0)))  # noqa: B023
        wait_for_no_gang_of(4)
        settle()
        torchrun.append(until_printed([torchrun_bin, "--nproc-per-node", "4", script]))
        settle()
        multi.append(until_printed([sys.executable, script]))
        settle()
        actors.append(float(ray.ask("gang")["s"]))
    name = "4-rank gloo gang, warm zygote: call → first all-reduce"
    return [
        Row(name=name, unit="s", ours=ours[1:], peer=[], aim=0.3, kind="value"),
        Row(name=name, unit="s", ours=ours[1:], peer_name="torchrun", peer=torchrun[1:], aim=10, kind="speedup"),
        Row(name=name, unit="s", ours=ours[1:], peer_name="multiprocessing", peer=multi[1:], aim=1, kind="speedup"),
        Row(name=name, unit="s", ours=ours[1:], peer_name="Ray actors", peer=actors[1:], aim=1, kind="speedup"),
    ]


def check(value: Any, wanted: Any) -> None:
    if value != wanted:
        raise RuntimeError(f"wrong answer: {value!r}, expected {wanted!r}")


def until_printed(command: list[str]) -> float:
    """Seconds from before the start of ``command`` to the moment that its rank 0 printed."""
    begun = time.time_ns()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    return (int(out.split()[-1]) - begun) / 1e9


def measure_noop(ray: PeerProcess, rounds: int) -> Row:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        settle()
        ours += [timed(noop.remote, 1e6) for _ in range(400)][COLD_CALLS:]
        settle()
        theirs += ray.ask("noop", n=400)["us"][COLD_CALLS:]
    return Row(
        name="warm no-op .remote()", unit="us", ours=ours, peer_name="Ray actor", peer=theirs, aim=0.5, kind="ratio"
    )


def measure_map(ray: PeerProcess, rounds: int, n: int) -> Row:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds + 1):
        settle()
        ours.append(timed(lambda: check(list(noop.map(range(n))), list(range(n)))))
        settle()
        theirs.append(float(ray.ask("map", n=n)["s"]))
    return Row(
        name=f".map of {n:,} no-ops",
        unit="s",
        ours=ours[1:],
        peer_name="Ray actor",
        peer=theirs[1:],
        aim=2,
        kind="speedup",
    )


def measure_spawn(samples: int) -> Row:
    calls: list[Any] = [noop.spawn() for _ in range(20)]
    ours: list[float] = []
    for _ in range(samples):
        begun = time.perf_counter()
        calls.append(noop.spawn())
        ours.append((time.perf_counter() - begun) * 1e3)
    for call in calls:
        call.get(timeout=120)
    return Row(name="durable accept (spawn), fsync always", unit="ms", ours=ours, peer=[], aim=10, kind="value")


def measure_array(ray: PeerProcess, rounds: int) -> list[Row]:
    array = np.ones(ARRAY_MB * 1_000_000, dtype=np.uint8)
    target = np.empty_like(array)
    for _ in range(3):
        check(nbytes.remote(array), array.nbytes)
        np.copyto(target, array)
    ours: list[float] = []
    memcpy: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        settle()
        ours += [timed(lambda: check(nbytes.remote(array), array.nbytes), 1e3) for _ in range(5)]
        memcpy += [timed(lambda: np.copyto(target, array), 1e3) for _ in range(5)]
        settle()
        theirs += ray.ask("array", mb=ARRAY_MB, n=5)["ms"][1:]
    name = f"{ARRAY_MB} MB array argument, warm"
    return [
        Row(name=name, unit="ms", ours=ours, peer_name="memcpy", peer=memcpy, aim=0.5, kind="speedup"),
        Row(name=name, unit="ms", ours=ours, peer_name="Ray actor", peer=theirs, aim=1, kind="speedup"),
    ]


COLD_SCRIPT = """
from benchmarks.gang_program import gang_function
assert gang_function("cold").remote() == 4.0
"""


def measure_cold(ray: PeerProcess, rounds: int) -> Row:
    """Nothing running → a script's 4-rank gang has done its all-reduce; the script's own imports are ours to pay."""
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory(prefix="px") as home:
        env = {**os.environ, "PHALANX_HOME": home}
        for _ in range(rounds + 1):
            command = [sys.executable, "-c", COLD_SCRIPT]
            settle()
            ours.append(timed(lambda: subprocess.run(command, env=env, check=True)))  # noqa: B023
            subprocess.run([GPUCTL, "down"], env=env, check=True, capture_output=True)
            settle()
            theirs.append(float(ray.ask("cold")["s"]))
    return Row(
        name="nothing running → 4 ranks' first all-reduce",
        unit="s",
        ours=ours[1:],
        peer_name="ray.init + 4 torch actors",
        peer=theirs[1:],
        aim=0.5,
        kind="ratio",
    )


def measure_memory() -> Row:
    """Proportional set size of store, control plane and agent, at rest; the zygotes are not counted."""
    cluster = running()
    if cluster is None:
        raise RuntimeError("no embedded cluster is running: nothing to measure")
    ours = [sum(pss_mb(pid) for pid in cluster.pids.values())]
    return Row(
        name="idle memory of control plane + agent + store", unit="MB", ours=ours, peer=[], aim=200, kind="value"
    )


def pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1000
    raise RuntimeError(f"no Pss line for process {pid}")


def measure_imports(rounds: int) -> list[Row]:
    python = sys.executable
    bare: list[float] = []
    ours: list[float] = []
    cli: list[float] = []
    for _ in range(rounds * 5):
        bare.append(timed(lambda: subprocess.run([python, "-c", "pass"], check=True), 1e3))
        ours.append(timed(lambda: subprocess.run([python, "-c", "import phalanx"], check=True), 1e3))
        cli.append(timed(lambda: subprocess.run([GPUCTL, "--help"], check=True, capture_output=True), 1e3))
    return [
        Row(name="import phalanx", unit="ms", ours=ours, peer_name="bare Python", peer=bare, aim=150, kind="value"),
        Row(name="gpuctl --help", unit="ms", ours=cli, peer_name="bare Python", peer=bare, aim=150, kind="value"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--map-calls", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_name("foundation.json"))
    parser.add_argument("--only", nargs="*", help="measure these alone, and write no JSON: " + ", ".join(_measures()))
    args = parser.parse_args()
    measures = _measures()
    unknown = set(args.only or ()) - set(measures)
    if unknown:
        parser.error(f"--only {' '.join(sorted(unknown))}: choose from {', '.join(measures)}")
    rows: list[Row] = []
    with PeerProcess("ray_peer.py") as ray:
        for name in args.only or measures:
            rows += measures[name](ray, args)
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(machine())
    print(table(rows))
    if not args.only:
        write(rows, args.json)


def _measures() -> dict[str, Callable[[PeerProcess, argparse.Namespace], list[Row]]]:
    return {
        "imports": lambda _, args: measure_imports(args.rounds),
        "noop": lambda ray, args: [measure_noop(ray, args.rounds)],
        "map": lambda ray, args: [measure_map(ray, args.rounds, args.map_calls)],
        "spawn": lambda _, args: [measure_spawn(40 * args.rounds)],
        "array": lambda ray, args: measure_array(ray, args.rounds),
        "memory": lambda _ray, _args: [measure_memory()],
        "starts": lambda ray, args: measure_starts(ray, args.rounds),
        "cold": lambda ray, args: [measure_cold(ray, args.rounds)],
    }


if __name__ == "__main__":
    main()
