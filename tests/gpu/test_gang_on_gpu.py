"""Gangs on a real GPU: NCCL with one rank, an all-reduce, and memory back at its baseline after a kill."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from phalanx.core.frames import Kind
from phalanx_agent.discovery.nvml import NvmlGpus
from tests.support.gang_driver import Gangs
from tests.support.wait import wait_until

pytestmark = pytest.mark.gpu

SLACK_BYTES = 64 << 20


def hello() -> dict[str, Any]:
    import os

    import torch
    import torch.distributed as dist

    import phalanx.context

    ctx = phalanx.context.current()
    total = torch.ones(1, device=ctx.device) * (ctx.rank + 1)
    dist.all_reduce(total)
    return {
        "total": float(total),
        "backend": dist.get_backend(),
        "device": ctx.device,
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
        "count": torch.cuda.device_count(),
    }


def test_one_gpu_has_a_ready_nccl_group_on_the_leased_uuid(gpu_gangs: Gangs) -> None:
    gpu = NvmlGpus().gpus()[0]
    keeper = gpu_gangs.one(hello, real_gpus=(gpu.uuid,))
    assert keeper.result(keeper.call()) == {
        "total": 1.0,
        "backend": "nccl",
        "device": "cuda:0",
        "visible": gpu.uuid,
        "count": 1,
    }
    assert any(f.kind is Kind.RANK and f.meta["event"] == "context" for f in keeper.seen)
    report = keeper.stop()
    assert report["counters"]["context"] > 0


def test_a_killed_rank_gives_its_memory_back(gpu_gangs: Gangs) -> None:
    def fill() -> None:
        import threading

        import torch

        held = torch.zeros(1 << 28, device="cuda:0")
        print("filled", held.numel(), flush=True)
        threading.Event().wait()

    source = NvmlGpus()
    gpu = source.gpus()[0]
    before = source.use(gpu.uuid).memory_bytes
    keeper = gpu_gangs.one(fill, real_gpus=(gpu.uuid,))
    pids = keeper.pids()
    keeper.call()
    wait_until(lambda: "filled" in keeper.text(), "the GPU's memory is filled")
    assert before is not None
    assert (source.use(gpu.uuid).memory_bytes or 0) > before + (1 << 30)
    os.kill(pids[0], signal.SIGKILL)
    keeper.ended()
    wait_until(lambda: (source.use(gpu.uuid).memory_bytes or 0) < before + SLACK_BYTES, "memory is at its baseline")
