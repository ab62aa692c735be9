"""What a call sets in its process is not met by the next one, or its gang is replaced."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.support.gang_driver import Gangs


def make_a_mess(how: str) -> str:
    """Changes one thing of the process that later calls must not see."""
    import contextlib
    import resource
    import shutil
    import sys
    import tempfile

    match how:
        case "streams":
            sys.stdout.close()
            sys.stderr = None
        case "descriptors":
            os.closerange(0, 1024)
        case "directory":
            path = tempfile.mkdtemp()
            os.chdir(path)
            shutil.rmtree(path)
        case "umask":
            os.umask(0o777)
        case "limits":
            resource.setrlimit(resource.RLIMIT_NOFILE, (16, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        case "session":
            os.setsid()
        case "children":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        case "environment":
            os.environ["LEFT_BEHIND"] = "yes"
            del os.environ["PATH"]
        case _:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return how


def make_a_quiet_mess(how: str) -> str:
    import gc
    import sys

    match how:
        case "timer":
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        case "mask":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
        case "processors":
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        case "arguments":
            sys.argv[:] = ["left", "behind"]
        case _:
            sys.path.insert(0, "/nowhere")
            sys.setrecursionlimit(500)
            gc.disable()
    return how


def look_around(how: str) -> Any:
    import gc
    import sys
    import tempfile

    if how != "look":
        return make_a_quiet_mess(how) if how in QUIET else make_a_mess(how)
    print("still here", flush=True)
    with tempfile.NamedTemporaryFile() as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
    handlers = (signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL, callable(signal.getsignal(signal.SIGTERM)))
    python = (list(sys.path), list(sys.argv), sys.getrecursionlimit(), gc.isenabled(), os.sched_getaffinity(0))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return os.path.realpath("."), mode, handlers, os.environ.get("LEFT_BEHIND"), "PATH" in os.environ, python, blocked


MESSES = ("streams", "descriptors", "directory", "umask", "limits", "session", "children", "environment", "handlers")
QUIET = ("timer", "mask", "interpreter", "processors", "arguments")


def set_torch(how: str) -> str:
    """Changes one thing of torch that later calls must not meet."""
    import torch
    import torch.distributed as dist

    match how:
        case "dtype":
            torch.set_default_dtype(torch.float64)
        case "device":
            torch.set_default_device("meta")
        case "gradients":
            torch.set_grad_enabled(False)
        case "determinism":
            torch.use_deterministic_algorithms(True)
        case "precision":
            torch.set_float32_matmul_precision("medium")
        case "threads":
            torch.set_num_threads(7)
        case "autocast":
            torch.autocast("cpu").__enter__()
        case "seed":
            torch.manual_seed(7)
        case "groups":
            dist.new_group([0])
        case _:
            torch.left_on = torch.inference_mode()  # pyright: ignore[reportAttributeAccessIssue]
            torch.left_on.__enter__()  # pyright: ignore[reportAttributeAccessIssue]
    return how


def look_at_torch(how: str) -> Any:
    import torch
    import torch.distributed as dist

    if how != "look":
        return set_torch(how)
    made = torch.ones(1, requires_grad=True) * 2
    return (
        str(made.dtype),
        str(made.device),
        made.requires_grad,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"),
        torch.initial_seed(),
        len(dist.distributed_c10d._world.pg_map),  # pyright: ignore[reportPrivateUsage]
    )


TORCH = ("dtype", "device", "gradients", "determinism", "precision", "threads", "autocast", "seed", "groups")


@pytest.mark.parametrize(("gpus", "ranks"), [(1, 1), (2, 2), (0, 1)], ids=["one-rank", "two-ranks", "torch-comes-late"])
def test_nothing_that_one_call_sets_in_torch_is_met_by_the_next(gangs: Gangs, gpus: int, ranks: int) -> None:
    look_at_torch.__globals__["set_torch"] = set_torch
    keeper = gangs.one(look_at_torch, ranks=ranks, gpus=gpus)
    before = keeper.result(keeper.call("look")) if gpus else None
    for how in TORCH if gpus else TORCH[:-1]:
        assert keeper.result(keeper.call(how)) == how
        seen = keeper.result(keeper.call("look"))
        before = before or seen
        assert seen == before, how
    assert before is not None
    assert before[:4] == ("torch.float32", "cpu", True, False)


def test_a_gang_that_was_left_in_inference_mode_is_replaced_and_says_why(gangs: Gangs) -> None:
    look_at_torch.__globals__["set_torch"] = set_torch
    keeper = gangs.one(look_at_torch)
    first, second = keeper.call("inference"), keeper.call("look")
    assert keeper.result(first) == "inference"
    frame = keeper.outcome(second)
    assert frame.meta["started"] is False
    assert "inference_mode" in frame.meta["error"]["message"]
    assert keeper.ended()["error"] is None


def test_no_mess_of_one_call_is_seen_by_the_next(gangs: Gangs) -> None:
    look_around.__globals__.update(make_a_mess=make_a_mess, make_a_quiet_mess=make_a_quiet_mess)
    keeper = gangs.one(look_around, gpus=0)
    before = keeper.result(keeper.call("look"))
    for how in (*MESSES, *QUIET):
        assert keeper.result(keeper.call(how)) == how
        if how == "timer":
            time.sleep(0.3)  # it would have gone off
        assert keeper.result(keeper.call("look")) == before, how
    assert keeper.text().count("still here") == len(MESSES) + len(QUIET) + 1
