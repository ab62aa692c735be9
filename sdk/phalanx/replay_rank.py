"""One rank of a replay: ``python -m phalanx.replay_rank PLAN RANK``. Runs the user's function as a gang's rank would.

Knows no cluster. With ``debug`` the first rank that fails opens pdb where it failed; the others wait or go on.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import importlib.util
import inspect
import json
import os
import pdb
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.context import Context, install
from phalanx.core.ids import id_raw
from phalanx.core.remote_errors import format_traceback, is_platform_frame
from phalanx.core.serialization import unpack
from phalanx.loader import load_callable
from phalanx.replay import ReplayPlan

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

FAILED = 1
_GROUP_TIMEOUT = timedelta(minutes=30)


def main(plan_path: Path, rank: int) -> int:
    plan = ReplayPlan(**json.loads(plan_path.read_text()))
    _advertise(plan, rank)
    device = _device(plan, rank)
    try:
        function = load_callable(Path(plan.callable_path).read_bytes(), bundle_dir=_bundle(plan))
        args, kwargs = unpack(bytearray(Path(plan.args_path).read_bytes()))
        with _group(plan, rank, device):
            context = Context(
                rank=rank,
                world_size=plan.world_size,
                local_rank=rank,
                device=device,
                raw_call_id=id_raw(plan.call_id),
                function=plan.function,
            )
            install(lambda: context)
            value = _value(function(*args, **kwargs))
    except Exception as e:  # noqa: BLE001  the user's boundary
        return _failed(plan, plan_path, rank, e)
    if rank == 0 or plan.returns == "all":
        _say(f"rank {rank} returned {value!r:.2000}")
    return 0


def _value(value: Any) -> Any:
    """Coroutines are run, and streams are read to their end."""
    if inspect.iscoroutine(value):
        return asyncio.run(value)
    if inspect.isgenerator(value):
        return list(value)
    if inspect.isasyncgen(value):
        return asyncio.run(_all_of(value))
    return value


async def _all_of(items: Any) -> list[Any]:
    return [item async for item in items]


def _advertise(plan: ReplayPlan, rank: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(plan.world_size),
        LOCAL_WORLD_SIZE=str(plan.world_size),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(plan.port),
        GLOO_SOCKET_IFNAME="lo",
    )


def _device(plan: ReplayPlan, rank: int) -> str:
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    cuda: Any = importlib.import_module("torch").cuda
    if not cuda.is_available() or cuda.device_count() < plan.world_size:
        return "cpu"
    cuda.set_device(rank)
    return f"cuda:{rank}"


@contextmanager
def _group(plan: ReplayPlan, rank: int, device: str) -> Generator[None]:
    """A process group for ranks that would have one; a function of one rank gets it where torch is there."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    dist: Any = importlib.import_module("torch.distributed")
    dist.init_process_group(
        "gloo" if device == "cpu" else "nccl", rank=rank, world_size=plan.world_size, timeout=_GROUP_TIMEOUT
    )
    dist.barrier()  # none ends while another still makes its connections, or waits in a collective that is over here:
    yield  # it would fail of that, not of the user's code
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _failed(plan: ReplayPlan, plan_path: Path, rank: int, error: Exception) -> int:
    text = format_traceback(error)
    shown = text.replace(f"{plan.bundle}/", "") if plan.bundle else text
    _say(f"rank {rank} failed\n{shown.rstrip()}")
    if plan.debug:
        with plan_path.with_name("terminal").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one debugger at a time has the terminal
            _say(f"pdb at rank {rank}; `q` ends the replay")
            pdb.post_mortem(_users(error.__traceback__))
    return FAILED


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback from the first frame that is the user's own."""
    at = trace
    while at is not None and is_platform_frame(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return at or trace


def _bundle(plan: ReplayPlan) -> Path | None:
    return Path(plan.bundle) if plan.bundle else None


def _say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)  # noqa: T201  this process's output is the user's


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(code)
