"""Calls through a keeper: order, cancel, timeout, memory, output, and an agent that comes back."""

from __future__ import annotations

import json
import mmap
import os
import time
from pathlib import Path
from typing import Any

from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.serialization import pack, unpack
from phalanx.core.spec import Limits
from tests.support.gang_driver import Gangs, Keeper
from tests.support.wait import wait_until


def echo(value: Any) -> Any:
    return value


def wait_for(path: str) -> str:
    import pathlib
    import threading

    while not pathlib.Path(path).exists():
        threading.Event().wait(0.01)
    return path


def test_calls_sent_ahead_run_one_after_the_other(gangs: Gangs) -> None:
    keeper = gangs.one(echo)
    calls = [keeper.call(i) for i in range(16)]
    assert [keeper.result(c) for c in calls] == list(range(16))
    answered = [f.id for f in keeper.seen if f.kind is Kind.RESULT]
    assert answered == calls


def test_an_outcome_is_repeated_until_it_is_acknowledged(gangs: Gangs, tmp_path: Path) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    goal = tmp_path / "go"
    done = keeper.call(str(tmp_path))
    assert keeper.result(done) == str(tmp_path)
    running = keeper.call(str(goal))
    keeper.wait_for(lambda f: f.kind is Kind.STARTED and f.id == running, "STARTED")
    keeper.detach()
    goal.touch()
    again = Keeper(keeper.pid, keeper.gang_dir).attach()
    state = again.wait_for(lambda f: f.kind is Kind.STATE, "STATE")
    assert done.hex() in state.meta["finished"]
    assert again.result(done) == str(tmp_path)
    assert again.result(running) == str(goal)
    again.send(Frame(Kind.ACK, done))
    third = Keeper(keeper.pid, keeper.gang_dir).attach()
    assert third.result(running) == str(goal)
    assert not any(f.id == done for f in third.seen)


def test_a_newer_agent_replaces_the_former_one(gangs: Gangs) -> None:
    keeper = gangs.one(echo, gpus=0)
    keeper.ready()
    newer = Keeper(keeper.pid, keeper.gang_dir).attach()
    newer.wait_for(lambda f: f.kind is Kind.STATE, "STATE")
    assert keeper.sock is not None
    keeper.sock.settimeout(5)
    while keeper.sock.recv(65536):
        pass
    assert newer.result(newer.call(1)) == 1


def test_a_call_sent_twice_runs_once(gangs: Gangs) -> None:
    def count() -> int:
        import builtins

        builtins.counted = getattr(builtins, "counted", 0) + 1  # pyright: ignore[reportAttributeAccessIssue]
        return builtins.counted  # pyright: ignore[reportAttributeAccessIssue]

    keeper = gangs.one(count, gpus=0)
    call = new_raw_id()
    body = pack(((), {})).tobytes()
    for _ in range(2):
        keeper.send(Frame(Kind.CALL, call, {"attempt": 1, "timeout_ms": 0}, body))
    assert keeper.result(call) == 1
    assert keeper.result(keeper.call()) == 2


def test_a_queued_call_is_cancelled_at_once_and_the_running_one_goes_on(gangs: Gangs, tmp_path: Path) -> None:
    keeper = gangs.one(wait_for, gpus=0)
    running, queued = keeper.call(str(tmp_path / "go")), keeper.call(str(tmp_path))
    keeper.send(Frame(Kind.CANCEL, queued, {"reason": "cancelled", "grace_ms": 1000}))
    assert keeper.outcome(queued).meta["outcome"] == "cancelled"
    (tmp_path / "go").touch()
    assert keeper.result(running)


def test_a_timeout_interrupts_sleep_and_counts_from_the_hand_over(gangs: Gangs) -> None:
    def sleep() -> None:
        import time

        time.sleep(60)

    keeper = gangs.one(sleep, gpus=0)
    keeper.ready()
    began = time.monotonic()
    frame = keeper.outcome(keeper.call(timeout_ms=300))
    assert frame.meta["outcome"] == "timed_out"
    assert frame.meta["error"]["cause"] == "timeout"
    assert 0.3 <= time.monotonic() - began < 1.5
    keeper.ended()


def test_a_cancelled_coroutine_cleans_up(gangs: Gangs) -> None:
    async def sleep() -> None:
        import asyncio

        try:
            print("sleeping", flush=True)
            await asyncio.sleep(60)
        finally:
            print("cleaned up", flush=True)

    keeper = gangs.one(sleep, gpus=0)
    call = keeper.call()
    wait_until(lambda: "sleeping" in keeper.text(), "it runs")
    keeper.send(Frame(Kind.CANCEL, call, {"reason": "cancelled", "grace_ms": 3000}))
    assert keeper.outcome(call).meta["outcome"] == "cancelled"
    keeper.ended()
    assert "cleaned up" in keeper.text()


def test_a_coroutine_function_returns_its_value(gangs: Gangs) -> None:
    async def double(x: int) -> int:
        import asyncio

        await asyncio.sleep(0)
        return 2 * x

    keeper = gangs.one(double, gpus=0)
    assert [keeper.result(keeper.call(i)) for i in (1, 2)] == [2, 4]


def test_code_that_swallows_everything_is_killed_after_the_grace(gangs: Gangs) -> None:
    def swallow() -> None:
        import threading

        while True:
            try:
                print("on", flush=True)
                threading.Event().wait()
            except BaseException:
                print("swallowed", flush=True)

    keeper = gangs.one(swallow, gpus=0)
    call = keeper.call()
    wait_until(lambda: "on" in keeper.text(), "it runs")
    keeper.send(Frame(Kind.CANCEL, call, {"reason": "cancelled", "grace_ms": 500}))
    assert keeper.outcome(call, within_s=3).meta["outcome"] == "cancelled"
    assert "swallowed" in keeper.text()


def test_a_large_array_travels_in_memory_both_ways_and_is_given_back(gangs: Gangs) -> None:
    def negate(array: Any) -> Any:
        array[0] = -1
        return -array

    import numpy as np

    keeper = gangs.one(negate)
    keeper.ready()
    packed = pack(((np.arange(1 << 18, dtype=np.float64),), {}))
    fd = os.memfd_create("argument")
    os.ftruncate(fd, packed.nbytes)
    ours = mmap.mmap(fd, packed.nbytes)
    packed.write_into(memoryview(ours))
    for _ in range(3):
        call = new_raw_id()
        keeper.send(Frame(Kind.CALL, call, {"attempt": 1, "fds": [{"size": packed.nbytes, "slot": 5}]}, fds=[fd]))
        frame = keeper.outcome(call)
        assert frame.meta["released"] == [5]
        size = frame.meta["fds"][0]["size"]
        value = unpack(memoryview(mmap.mmap(frame.fds[0], size, prot=mmap.PROT_READ)))
        assert value[0] == 1
        assert value[-1] == -((1 << 18) - 1)
        keeper.send(Frame(Kind.ACK, call))
        keeper.send(Frame(Kind.RELEASE, call))
    os.close(fd)


def test_argument_memory_that_user_code_keeps_is_given_back_later(gangs: Gangs) -> None:
    def keep(array: Any) -> int:
        import builtins

        builtins.kept = array  # pyright: ignore[reportAttributeAccessIssue]
        return 0 if array is None else len(array)

    import numpy as np

    keeper = gangs.one(keep, gpus=0)
    keeper.ready()
    packed = pack(((np.zeros(1 << 18),), {})).tobytes()
    fd = os.memfd_create("argument")
    os.write(fd, packed)
    call = new_raw_id()
    keeper.send(Frame(Kind.CALL, call, {"attempt": 1, "fds": [{"size": len(packed), "slot": 9}]}, fds=[fd]))
    os.close(fd)
    assert "released" not in keeper.outcome(call).meta
    keeper.result(keeper.call(None))
    released = keeper.wait_for(
        lambda f: f.kind is Kind.RELEASE or (f.kind is Kind.RESULT and bool(f.meta.get("released"))), "it is given back"
    )
    assert released.meta.get("slots", released.meta.get("released")) == [9]


def test_large_inline_arguments_in_chunks_arrive_whole(gangs: Gangs) -> None:
    def total(data: bytes) -> int:
        return sum(data[:: 1 << 16]) + len(data)

    keeper = gangs.one(total, gpus=0)
    data = bytes([7]) * (5 << 20)
    body = pack(((data,), {})).tobytes()
    call = new_raw_id()
    for at in range(0, len(body), 1 << 20):
        last = at + (1 << 20) >= len(body)
        keeper.send(Frame(Kind.CALL, call, {"attempt": 1} if last else {}, body[at : at + (1 << 20)], int(not last)))
    assert keeper.result(call) == total(data)


def test_output_has_rank_stream_and_call_and_every_byte(gangs: Gangs) -> None:
    def talk(n: int) -> None:
        import os
        import sys

        print("line", n)
        print("complaint", file=sys.stderr)
        os.write(1, b"\xff\xfe\x97" * 1000)

    keeper = gangs.one(talk, ranks=2)
    first, second = keeper.call(1), keeper.call(2)
    keeper.result(first)
    keeper.result(second)
    wait_until(lambda: len([r for r in keeper.records() if r.stream == 0]) == 2, "two end records")
    for call, n in ((first, 1), (second, 2)):
        records = [r for r in keeper.records() if r.call == call]
        end = json.loads(records[-1].data)
        assert end["complete"] is True
        for rank in (0, 1):
            out = b"".join(r.data for r in records if r.rank == rank and r.stream == 1)
            err = b"".join(r.data for r in records if r.rank == rank and r.stream == 2)
            assert out == f"line {n}\n".encode() + b"\xff\xfe\x97" * 1000
            assert err == b"complaint\n"
            assert end["bytes_by_rank"][str(rank)] == len(out) + len(err)


def test_much_output_never_blocks_and_reading_input_ends_at_once(gangs: Gangs) -> None:
    def shout() -> str:
        import os

        for _ in range(64):
            os.write(1, b"y" * (1 << 20))
        try:
            return input()
        except EOFError:
            return "end of file"

    keeper = gangs.one(shout, gpus=0)
    call = keeper.call()
    assert keeper.result(call) == "end of file"
    assert sum(len(r.data) for r in keeper.records() if r.stream == 1) == 64 << 20


def test_progress_and_attempt_and_call_id_are_seen(gangs: Gangs) -> None:
    def tell() -> tuple[str, int]:
        import phalanx.context

        ctx = phalanx.context.current()
        ctx.progress(3, 10)
        return ctx.call_id, ctx.attempt

    keeper = gangs.one(tell, gpus=0)
    call = keeper.call(attempt=4)
    text = id_text("c", call)
    assert keeper.result(call) == (text, 4)
    progress = keeper.wait_for(lambda f: f.kind is Kind.RANK and f.meta["event"] == "progress", "progress")
    assert (progress.meta["step"], progress.meta["total"], progress.meta["rank"]) == (3, 10, 0)


def test_phases_add_up_and_busy_is_only_busy(gangs: Gangs) -> None:
    def work() -> None:
        import threading

        threading.Event().wait(0.3)

    began = time.monotonic()
    keeper = gangs.one(work, gpus=0, limits=Limits())
    frame = keeper.outcome(keeper.call())
    report = keeper.stop()
    counters = report["counters"]
    elapsed_ms = (time.monotonic() - began) * 1000
    assert 290 <= counters["busy"] <= 700
    assert abs(frame.meta["busy_ms"] - counters["busy"]) <= 5
    assert sum(counters.values()) <= elapsed_ms + 5


def test_a_call_after_the_end_is_told_that_it_never_began(gangs: Gangs) -> None:
    keeper = gangs.one(echo, gpus=0)
    keeper.ready()
    keeper.stop()
    frame = keeper.outcome(keeper.call(1))
    assert frame.meta["started"] is False
    assert frame.meta["error"]["cause"] == "infrastructure"
    keeper.send(Frame(Kind.ACK, NO_ID))
