"""A gang from the fork to its first collective: ranks, environment, results, and how fast."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.frames import Kind
from phalanx.core.serialization import unpack
from phalanx.core.spec import EnvSpec
from tests.support.gang_driver import Gangs, process_exists
from tests.support.wait import wait_until


def add_over_ranks(value: float) -> float:
    import torch
    import torch.distributed as dist

    total = torch.full((1,), value)
    dist.all_reduce(total)
    return float(total)


def who_am_i() -> dict[str, Any]:
    import os

    import phalanx.context

    ctx = phalanx.context.current()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")
    return {"rank": ctx.rank, "world_size": ctx.world_size, "gpus": ctx.gpus, "device": ctx.device} | {
        name: os.environ[name] for name in names
    }


def test_four_ranks_on_one_node_reduce_together(gangs: Gangs) -> None:
    keeper = gangs.one(add_over_ranks, ranks=4)
    assert keeper.result(keeper.call(2.0)) == 8.0
    pids = keeper.pids()
    assert len(set(pids)) == 4
    assert all(process_exists(pid) for pid in pids)


def test_two_nodes_with_two_ranks_each_reduce_together(gangs: Gangs) -> None:
    first, second = gangs.start(add_over_ranks, ranks=4, nodes=2)
    call = first.call(3.0)
    second.call(3.0)
    assert first.result(call) == 12.0
    answer = second.wait_for(lambda f: f.kind is Kind.RESULT, "the second node's answer")
    assert answer.meta["world_seq"] == first.outcome(call).meta["world_seq"]
    assert not answer.body


def test_every_rank_sees_its_place_and_only_simulated_devices(gangs: Gangs) -> None:
    keeper = gangs.one(who_am_i, ranks=2, returns="all")
    frame = keeper.outcome(keeper.call())
    body, values = memoryview(frame.body), []
    for size in frame.meta["parts"]:
        values.append(unpack(body[:size]))
        body = body[size:]
    assert [v["RANK"] for v in values] == ["0", "1"]
    assert [v["rank"] for v in values] == [0, 1]
    assert {v["WORLD_SIZE"] for v in values} == {v["LOCAL_WORLD_SIZE"] for v in values} == {"2"}
    assert {(v["device"], v["CUDA_VISIBLE_DEVICES"]) for v in values} == {("cpu", "")}


def test_a_cpu_function_starts_fast_without_torch(gangs: Gangs) -> None:
    def has_torch() -> bool:
        import sys

        return "torch" in sys.modules

    gangs.one(has_torch, gpus=0).ready()
    began = time.monotonic()
    keeper = gangs.one(has_torch, gpus=0)
    assert keeper.result(keeper.call()) is False
    assert time.monotonic() - began < 2


def test_four_gangs_start_at_once_beside_a_busy_default_port(gangs: Gangs) -> None:
    started = [gangs.one(add_over_ranks, ranks=2) for _ in range(4)]
    calls = [(keeper, keeper.call(1.0)) for keeper in started]
    assert [keeper.result(call) for keeper, call in calls] == [2.0] * 4


def test_an_import_error_fails_the_start_with_its_text(gangs: Gangs) -> None:
    def needs_what_is_missing() -> None:
        import module_that_is_not_there  # pyright: ignore[reportMissingImports, reportUnusedImport]  # noqa: F401

    keeper = gangs.one(needs_what_is_missing, gpus=0)
    error = keeper.error(keeper.call())
    assert "module_that_is_not_there" in error["message"]


def test_a_generator_that_is_called_for_a_value_is_refused_by_its_name(gangs: Gangs) -> None:
    """The SDK does not send it: its spec says that it streams."""

    def numbers() -> Any:
        yield 1

    keeper = gangs.one(numbers, gpus=0)
    error = keeper.error(keeper.call())
    assert "a value of type generator" in error["message"]
    assert error["cause"] == "user_exception"


def test_a_dead_zygote_is_replaced_and_its_gangs_live_on(gangs: Gangs) -> None:
    keeper = gangs.one(add_over_ranks, ranks=2)
    keeper.ready()
    zygote = next(z for z in gangs.launcher.zygotes if not z.key.light)
    os.kill(zygote.pid, 9)
    wait_until(lambda: not zygote.alive(), "the zygote is dead")
    assert keeper.result(keeper.call(1.0)) == 2.0
    other = gangs.one(add_over_ranks, ranks=2)
    assert other.result(other.call(1.0)) == 2.0


def test_an_environment_whose_modules_start_threads_still_gets_gangs(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = gangs.run_dir / "starts_a_thread.py"
    module.write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nVALUE = 7\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(gangs.run_dir))

    def value() -> int:
        import starts_a_thread  # pyright: ignore[reportMissingImports]

        return starts_a_thread.VALUE

    keeper = gangs.one(value, gpus=1, env=EnvSpec(preload=("starts_a_thread",)))
    assert keeper.result(keeper.call()) == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start ranks as another user")
def test_ranks_run_as_the_unprivileged_user_and_cannot_see_the_agents_processes(
    short_run_dir: Path,
) -> None:
    def look() -> tuple[int, list[str]]:
        import os
        import pathlib
        import tempfile

        with tempfile.TemporaryFile():
            return os.getuid(), sorted(p.name for p in pathlib.Path("/proc").iterdir() if p.name.isdigit())

    gangs = Gangs(short_run_dir, rank_user="nobody")
    try:
        keeper = gangs.one(look, gpus=0)
        assert keeper.result(keeper.call()) == (pwd.getpwnam("nobody").pw_uid, ["1", "2"])
    finally:
        gangs.close()
