"""What goes wrong in ranks: one culprit is named, the others are victims, and the gang ends within a second."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from phalanx.core.exceptions import unpack_exception
from phalanx.core.frames import Kind
from phalanx.core.serialization import unpack
from phalanx.core.spec import Limits
from tests.support.gang_driver import Gangs, Keeper, process_exists
from tests.support.wait import wait_until


def wait_in_a_collective(culprit: int, how: str) -> None:
    """All ranks but one sit in an all-reduce; that one fails as told."""
    import os
    import signal
    import sys

    import torch
    import torch.distributed as dist

    import phalanx.context

    if phalanx.context.current().rank != culprit:
        dist.all_reduce(torch.ones(1))
        return
    match how:
        case "raise":
            raise ValueError("rank's own mistake")
        case "exit":
            os._exit(1)
        case "sys.exit":
            sys.exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "clean exit":
            os._exit(0)
        case _:
            os.kill(os.getpid(), signal.SIGSEGV)


def ranks_of(error: dict[str, Any]) -> dict[int, bool]:
    return {r["rank"]: r["culprit"] for r in error["ranks"]}


def assert_gone(keeper: Keeper, pids: list[int]) -> None:
    wait_until(lambda: not any(process_exists(p) for p in pids), "all ranks are gone", 1)
    keeper.ended()
    keeper.leave()


@pytest.mark.parametrize("world", [2, 4])
def test_a_killed_rank_ends_the_gang_within_a_second_and_is_named(gangs: Gangs, world: int) -> None:
    keeper = gangs.one(wait_in_a_collective, ranks=world)
    pids = keeper.pids()
    call = keeper.call(-1, "none")
    assert keeper.result(call) is None
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    report = keeper.ended()
    assert time.monotonic() - began < 1
    assert report["error"]["rank"] == 1
    assert report["error"]["signal"] == signal.SIGKILL
    assert report["error"]["cause"] == "infrastructure"
    deaths = [json.loads(line) for line in (keeper.gang_dir / "deaths.jsonl").read_text().splitlines()]
    assert deaths[0]["rank"] == 1
    assert deaths[0]["pid"] == pids[1]
    assert_gone(keeper, pids)


@pytest.mark.parametrize(
    ("how", "exit_code", "number", "cause"),
    [
        ("exit", 1, 0, "user_exception"),
        ("clean exit", 0, 0, "user_exception"),
        ("kill", 0, signal.SIGKILL, "infrastructure"),
        ("crash", 0, signal.SIGSEGV, "user_exception"),
        ("sys.exit", 3, 0, "user_exception"),
    ],
)
def test_the_rank_that_died_is_the_culprit_while_others_wait_for_it(
    gangs: Gangs, how: str, exit_code: int, number: int, cause: str
) -> None:
    keeper = gangs.one(wait_in_a_collective, ranks=2)
    pids = keeper.pids()
    error = keeper.error(keeper.call(1, how))
    assert (error["rank"], error["exit_code"], error["signal"]) == (1, exit_code, number)
    assert error["cause"] == cause
    assert ranks_of(error)[1] is True
    assert_gone(keeper, pids)


def test_a_crash_brings_the_stack_of_the_rank(gangs: Gangs) -> None:
    keeper = gangs.one(wait_in_a_collective, ranks=2)
    error = keeper.error(keeper.call(1, "crash"))
    assert "SIGSEGV" in error["message"]
    assert "wait_in_a_collective" in error["traceback"]


def test_the_caller_gets_the_value_error_of_rank_1_and_rank_0_is_a_victim(gangs: Gangs) -> None:
    keeper = gangs.one(wait_in_a_collective, ranks=2)
    frame = keeper.outcome(keeper.call(1, "raise"))
    error = frame.meta["error"]
    assert error["rank"] == 1
    raised = unpack_exception(bytes(frame.body))
    assert isinstance(raised, ValueError)
    assert "rank's own mistake" in str(raised)
    assert ranks_of(error).get(0, False) is False
    assert "wait_in_a_collective" in error["traceback"]
    assert keeper.ended()["error"]["rank"] == 1


def test_a_killed_rank_on_one_node_leaves_only_victims_on_the_other(gangs: Gangs) -> None:
    def reduce_forever() -> None:
        import torch
        import torch.distributed as dist

        while True:
            dist.all_reduce(torch.ones(1))

    first, second = gangs.start(reduce_forever, ranks=4, nodes=2)
    pids = first.pids() + second.pids()
    call, other = first.call(), second.call()
    os.kill(pids[3], signal.SIGKILL)
    assert second.error(other)["rank"] == 3
    error = first.error(call)
    assert not any(r["culprit"] for r in error["ranks"])
    assert error["cause"] == "infrastructure"
    first.stop(grace_ms=0)
    wait_until(lambda: not any(process_exists(p) for p in pids), "all ranks of both nodes are gone", 1)


def fail_to_connect(how: str) -> None:
    """Rank 0 raises what a lost peer could also have caused; no other rank fails."""
    import torch.distributed as dist

    import phalanx.context

    if phalanx.context.current().rank:
        return
    match how:
        case "socket":
            raise ConnectionRefusedError(111, "Connection refused")
        case "words":
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")
        case _:
            raise dist.DistNetworkError("Broken pipe")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("how", "kind"), [("socket", ConnectionRefusedError), ("words", RuntimeError), ("collective", RuntimeError)]
)
def test_a_users_own_connection_error_is_raised_as_it_is(
    gangs: Gangs, ranks: int, how: str, kind: type[Exception]
) -> None:
    keeper = gangs.one(fail_to_connect, ranks=ranks)
    frame = keeper.outcome(keeper.call(how))
    assert frame.meta["error"]["cause"] == "user_exception"
    assert frame.meta["error"]["rank"] == 0
    assert isinstance(unpack_exception(bytes(frame.body)), kind)


def test_mismatched_sizes_show_both_ranks(gangs: Gangs) -> None:
    def mismatch() -> None:
        import torch
        import torch.distributed as dist

        import phalanx.context

        dist.all_reduce(torch.ones(10 if phalanx.context.current().rank else 1000))

    keeper = gangs.one(mismatch, ranks=2)
    error = keeper.error(keeper.call())
    assert error["ranks"]
    assert error["message"]
    keeper.ended()


def test_a_user_exception_keeps_a_single_rank_gang_warm(gangs: Gangs) -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    keeper = gangs.one(divide)
    frame = keeper.outcome(keeper.call(1, 0))
    assert isinstance(unpack_exception(bytes(frame.body)), ZeroDivisionError)
    assert frame.meta["error"]["type_name"] == "ZeroDivisionError"
    assert keeper.result(keeper.call(1, 2)) == 0.5


@pytest.mark.parametrize(("code", "expected"), [(3, 3), (0, 0), ("no more", 1)])
def test_sys_exit_fails_the_call_with_its_code_and_ends_the_process(
    gangs: Gangs, code: int | str, expected: int
) -> None:
    def leave(code: int | str) -> None:
        import sys

        sys.exit(code)

    keeper = gangs.one(leave, gpus=0)
    pids = keeper.pids()
    error = keeper.error(keeper.call(code))
    assert error["exit_code"] == expected
    assert error["cause"] == "user_exception"
    assert_gone(keeper, pids)


@pytest.mark.parametrize("code", [0, 7])
def test_an_exit_that_skips_everything_is_a_failure_with_its_code(gangs: Gangs, code: int) -> None:
    def vanish(code: int) -> None:
        import os

        print("last words", end="")
        os._exit(code)

    keeper = gangs.one(vanish, gpus=0)
    error = keeper.error(keeper.call(code))
    assert f"process exited {code} before returning a result" in error["message"]
    assert "last words" in error["ranks"][0]["last_lines"]
    other = gangs.one(vanish, gpus=0)
    other.ready()


def test_a_result_that_cannot_travel_names_the_element_and_the_rank_lives(gangs: Gangs) -> None:
    def unpicklable(how: str) -> Any:
        import threading

        if how == "deep":
            nested: list[Any] = []
            for _ in range(100_000):
                nested = [nested]
            return nested
        return {"a": [1, 2, threading.Lock()]} if how == "lock" else (i for i in range(3)) if how == "gen" else how

    keeper = gangs.one(unpicklable, gpus=0)
    error = keeper.error(keeper.call("lock"))
    assert error["type_name"].endswith("SerializationError")
    assert 'result["a"][2]' in error["message"]
    assert "generator" in keeper.error(keeper.call("gen"))["message"]
    assert "nested" in keeper.error(keeper.call("deep"))["message"]
    assert keeper.result(keeper.call("fine")) == "fine"


def test_the_memory_limit_is_named_when_it_is_hit(gangs: Gangs) -> None:
    def fill(megabytes: int) -> int:
        return len(bytearray(megabytes << 20))

    keeper = gangs.one(fill, gpus=0, memory_gb=0.2)
    error = keeper.error(keeper.call(1000))
    assert error["cause"] == "out_of_memory"
    assert keeper.result(keeper.call(10)) == 10 << 20


def test_torch_allocation_over_the_limit_is_out_of_memory_too(gangs: Gangs) -> None:
    def allocate() -> Any:
        import torch

        return torch.ones(1 << 28).sum().item()

    keeper = gangs.one(allocate, memory_gb=0.3)
    assert keeper.error(keeper.call())["cause"] == "out_of_memory"


def test_ranks_that_ran_different_numbers_of_collectives_are_not_used_again(gangs: Gangs) -> None:
    def uneven() -> None:
        import torch
        import torch.distributed as dist

        import phalanx.context

        if phalanx.context.current().rank == 0:
            dist.send(torch.ones(1), dst=1)
            dist.all_reduce(torch.ones(1), async_op=True)
        else:
            dist.recv(torch.ones(1), src=0)

    keeper = gangs.one(uneven, ranks=2)
    frame = keeper.outcome(keeper.call())
    assert frame.kind is Kind.RESULT
    assert unpack(frame.body) is None
    report = keeper.ended()
    assert "collectives" in report["error"]["message"]


def test_a_blocking_exit_handler_does_not_hide_the_error(gangs: Gangs) -> None:
    def fail_and_block() -> None:
        import atexit
        import threading

        atexit.register(threading.Event().wait)
        raise KeyError("first")

    keeper = gangs.one(fail_and_block, ranks=2, limits=Limits(grace_s=1))
    began = time.monotonic()
    assert keeper.error(keeper.call())["type_name"] == "KeyError"
    keeper.ended()
    assert time.monotonic() - began < 3


def test_a_start_that_takes_too_long_names_the_late_ranks(gangs: Gangs) -> None:
    module = gangs.run_dir / "slow_to_import.py"
    module.write_text("import threading\nthreading.Event().wait(60)\n")

    def never() -> None: ...

    keeper = gangs.one(
        never,
        gpus=0,
        limits=Limits(startup_timeout_s=0.5),
        code=b"".join(_slow_callable(str(gangs.run_dir))),
    )
    report = keeper.ended()
    assert "startup_timeout" in report["error"]["message"]
    assert report["error"]["cause"] == "timeout"


def _slow_callable(directory: str) -> list[bytes]:
    """A callable whose loading imports the slow module."""
    from phalanx.loader import dump_callable

    class Slow:
        def __call__(self) -> None: ...

        def __reduce__(self) -> tuple[Any, ...]:
            return (exec, (f"import sys; sys.path.insert(0, {directory!r}); import slow_to_import",))

    return [dump_callable(Slow())]
