"""What gangs do in fault tests: they say where they are, and wait for a word before they go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import phalanx
from phalanx.call import Call
from phalanx.function import Function
from tests.support.gang_driver import process_exists
from tests.support.wait import wait_until

PATIENCE_S = 60.0
GO = "go"
T = TypeVar("T")


def gang(body: Any, *, nodes: int | None = 1, **options: Any) -> Function[..., Any]:
    """Returns a function on four ranks, of one node or of two, or of any number, that does not stay warm for long."""
    asked: dict[str, Any] = {"gpus": 4, "nodes": nodes, "scaledown_window": 1, "grace": 1, **options}
    return phalanx.gpu_function(**asked)(body)


def single(body: Any, **options: Any) -> Function[..., Any]:
    """Returns a CPU function of one rank."""
    return gang(body, gpus=0, **options)


# ---- what runs in ranks ----


def arrive(folder: str) -> Path:
    """Notes that this rank of this attempt runs the function."""
    here = phalanx.current()
    mark = Path(folder) / f"{here.call_id}.{here.attempt}.{here.rank}"
    mark.write_text(json.dumps({"gpus": here.gpus, "node_rank": here.node_rank}))
    return mark


def hold(folder: str, value: Any = None) -> Any:
    """Returns ``value`` once ``folder`` says go."""
    arrive(folder)
    wait_until((Path(folder) / GO).exists, "the word to go on", PATIENCE_S)
    return value


def reduce_for_ever(folder: str) -> None:
    """Sits in one collective after the other: a lost peer is noticed there at once."""
    import torch
    import torch.distributed as dist

    arrive(folder)
    while True:
        dist.all_reduce(torch.ones(1))


def sum_of_ranks(value: float) -> float:
    """Returns the sum over all ranks of ``value`` times the rank's number."""
    import torch
    import torch.distributed as dist

    total = torch.tensor([value * phalanx.current().rank])
    dist.all_reduce(total)
    return total.item()


def square(value: int) -> int:
    return value * value


def die(folder: str, number: int = int(signal.SIGKILL)) -> None:
    """One rank ends itself by a signal, the others wait for it."""
    arrive(folder)
    if phalanx.current().rank == phalanx.current().world_size - 1:
        os.kill(os.getpid(), number)
    wait_until(lambda: False, "the end of the gang", PATIENCE_S)


# ---- looking at them from outside ----


def arrivals(folder: Path, call: Call[Any] | None = None, attempt: int | None = None) -> list[str]:
    """Returns the marks of ranks that arrived: ``<call>.<attempt>.<rank>``."""
    names = [p.name for p in folder.iterdir() if p.name.count(".") == 2]
    return [
        n
        for n in names
        if (call is None or n.startswith(call.id)) and (attempt is None or n.split(".")[1] == str(attempt))
    ]


def wait_for_ranks(folder: Path, count: int = 4, call: Call[Any] | None = None, attempt: int | None = None) -> None:
    wait_until(lambda: len(arrivals(folder, call, attempt)) >= count, f"{count} ranks run", PATIENCE_S)


def pids_of(call: Call[Any], count: int = 4) -> list[int]:
    """Returns the process ids of a running call's ranks, in rank order."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [r.pid for r in sorted(call.ranks(), key=lambda r: r.rank) if r.pid]
        return len(found) == count

    wait_until(look, f"{count} ranks have a process", PATIENCE_S)
    return found


def gone(pids: list[int]) -> bool:
    return not any(process_exists(pid) for pid in pids)


@contextmanager
def in_thread(act: Callable[[], T]) -> Generator[Future[T]]:
    """Runs ``act`` beside the test; leaving waits for it."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(act)


def go(folder: Path) -> None:
    (folder / GO).touch()


def wait_for_state(call: Call[Any], state: str) -> None:
    wait_until(lambda: call.status().state == state, f"the call is {state}", PATIENCE_S)
