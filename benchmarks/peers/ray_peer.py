"""Ray, driven over stdin and stdout: one JSON request per line, one JSON answer per line.

{"op": "noop", "n": 200}           → {"us": [...]}            warm actor calls, one after the other
{"op": "map", "n": 10000}          → {"s": 1.9}               as many calls in flight as Ray takes
{"op": "array", "mb": 100, "n": 5} → {"ms": [...]}            one numpy argument to a warm actor
{"op": "gang"}                     → {"s": 2.2}               4 torch actors, first all-reduce, cluster already up
{"op": "cold"}                     → {"s": 7.5}               ray.init() included; ends with ray.shutdown()
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"

import ray

CPUS = 8


def start() -> None:
    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False, logging_level="error")


@ray.remote(num_cpus=1)
class Echo:
    def noop(self, value: Any = None) -> Any:
        return value

    def nbytes(self, array: Any) -> int:
        return int(array.nbytes)


@ray.remote(num_cpus=1)
class Rank:
    def first_all_reduce(self, rank: int, port: int) -> float:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=4)
        value = torch.ones(1)
        dist.all_reduce(value)
        dist.destroy_process_group()
        return float(value.item())


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run_gang() -> None:
    port = free_port()
    ranks = [Rank.remote() for _ in range(4)]
    assert ray.get([r.first_all_reduce.remote(i, port) for i, r in enumerate(ranks)]) == [4.0] * 4
    for r in ranks:
        ray.kill(r)


class Peer:
    def __init__(self) -> None:
        self._echo: Any = None

    def echo(self) -> Any:
        if not ray.is_initialized():
            start()
        if self._echo is None:
            self._echo = Echo.remote()
            for _ in range(50):
                ray.get(self._echo.noop.remote())
        return self._echo

    def noop(self, n: int) -> dict[str, Any]:
        echo = self.echo()
        out: list[float] = []
        for _ in range(n):
            t = time.perf_counter()
            ray.get(echo.noop.remote())
            out.append((time.perf_counter() - t) * 1e6)
        return {"us": out}

    def map(self, n: int) -> dict[str, Any]:
        echo = self.echo()
        t = time.perf_counter()
        values = ray.get([echo.noop.remote(i) for i in range(n)])
        seconds = time.perf_counter() - t
        assert values == list(range(n))
        return {"s": seconds}

    def array(self, mb: int, n: int) -> dict[str, Any]:
        import numpy as np

        echo = self.echo()
        array = np.ones(mb * 1_000_000, dtype=np.uint8)
        out: list[float] = []
        for _ in range(n):
            t = time.perf_counter()
            assert ray.get(echo.nbytes.remote(array)) == array.nbytes
            out.append((time.perf_counter() - t) * 1e3)
        return {"ms": out}

    def gang(self) -> dict[str, Any]:
        self.echo()
        t = time.perf_counter()
        run_gang()
        return {"s": time.perf_counter() - t}

    def cold(self) -> dict[str, Any]:
        if ray.is_initialized():
            ray.shutdown()
            self._echo = None
        t = time.perf_counter()
        start()
        run_gang()
        seconds = time.perf_counter() - t
        ray.shutdown()
        return {"s": seconds}

    def quit(self) -> dict[str, Any]:
        if ray.is_initialized():
            ray.shutdown()
        return {}


def main() -> None:
    peer = Peer()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        op: Callable[..., dict[str, Any]] = getattr(peer, request.pop("op"))
        answers.write(json.dumps(op(**request)) + "\n")
        answers.flush()
        if op == peer.quit:
            return


main()
