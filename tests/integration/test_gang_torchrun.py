"""Programs written for torchrun, unchanged: they make the process group, and destroy it, in a gang that has one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.gang_driver import Gangs, by_value


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_torchrun_program_runs_again_and_again_in_a_warm_gang(gangs: Gangs, ranks: int) -> None:
    keeper = gangs.one(with_options, ranks=ranks, code=program(ranks))
    for _ in range(3):
        assert keeper.result(keeper.call("gloo")) == (float(ranks), ranks)


def program(ranks: int) -> bytes:
    """The frame of a torchrun program, which took the functions out of their module before it was called."""
    from torch.distributed import all_reduce, destroy_process_group, init_process_group

    def train(backend: str) -> tuple[float, int]:
        import torch

        init_process_group(backend, init_method="env://", world_size=ranks)
        total = torch.ones(1)
        all_reduce(total)
        destroy_process_group()
        return total.item(), ranks

    return by_value(train)


@pytest.mark.parametrize("options", [{}, {"backend": "gloo"}, {"backend": "cpu:gloo,cuda:nccl"}])
def test_the_group_that_stands_is_accepted(gangs: Gangs, options: dict[str, Any]) -> None:
    keeper = gangs.one(with_options)
    assert keeper.result(keeper.call(options)) == (1.0, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "nccl"}, "backend 'nccl'"),
        ({"backend": "gloo", "world_size": 7, "rank": 0}, "world_size=7"),
        ({"backend": "gloo", "world_size": 1, "rank": 3}, "rank=3"),
        ({"backend": "gloo", "init_method": "tcp://127.0.0.1:9"}, "tcp://127.0.0.1:9"),
    ],
)
def test_another_group_than_the_one_that_stands_is_refused_with_the_difference(
    gangs: Gangs, options: dict[str, Any], words: str
) -> None:
    keeper = gangs.one(with_options)
    error = keeper.error(keeper.call(options))
    assert error["type_name"] == "ValueError"
    assert words in error["message"]


def with_options(options: dict[str, Any]) -> tuple[float, int]:
    import torch
    import torch.distributed as dist

    dist.init_process_group(**options)
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item(), dist.get_world_size()


def test_destroying_the_group_ends_the_groups_beside_it_only(gangs: Gangs) -> None:
    def destroy() -> tuple[bool, int]:
        import torch
        import torch.distributed as dist

        beside = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=beside)
        dist.destroy_process_group()
        dist.barrier()
        return dist.is_initialized(), len(dist.distributed_c10d._world.pg_map)  # pyright: ignore[reportPrivateUsage]

    keeper = gangs.one(destroy, ranks=2)
    for _ in range(2):
        assert keeper.result(keeper.call()) == (True, 1)


def test_a_timeout_that_a_program_asks_for_holds_for_it(gangs: Gangs) -> None:
    def wait_for_nobody() -> None:
        import threading
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        import phalanx.context

        dist.init_process_group("gloo", timeout=timedelta(seconds=1))
        if phalanx.context.current().rank == 0:
            dist.all_reduce(torch.ones(1))
        else:
            threading.Event().wait(20)

    keeper = gangs.one(wait_for_nobody, ranks=2)
    error = keeper.error(keeper.call(), within_s=15)
    assert error["cause"] == "user_exception"
    assert "imed out" in error["message"]
