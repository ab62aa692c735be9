"""Discovery and the proof of cleanness, through the real nvidia-ml-py, on a machine described by a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.states import GpuState
from phalanx_agent.discovery.clean import judge, prove_clean
from phalanx_agent.discovery.nvml import NvmlGpus
from phalanx_agent.discovery.source import GpuUse
from phalanx_agent.discovery.watch import GpuWatch
from tests.gpu.conftest import FakeMachine

pytestmark = pytest.mark.gpu

A = "GPU-aaaa H200 143771 4 - ok"
B = "GPU-bbbb H200 143771 4 - ok"


def test_gpus_are_found_with_uuid_model_and_memory(fake_machine: FakeMachine) -> None:
    fake_machine.describe(A, B)
    found = NvmlGpus().gpus()
    assert [(g.uuid, g.index, g.model, g.memory_bytes) for g in found] == [
        ("GPU-aaaa", 0, "H200", 143771 << 20),
        ("GPU-bbbb", 1, "H200", 143771 << 20),
    ]


def test_a_lost_gpu_is_down_and_keeps_its_name_while_others_work(fake_machine: FakeMachine) -> None:
    fake_machine.describe(A, B)
    source = NvmlGpus()
    source.gpus()
    fake_machine.describe("GPU-aaaa H200 143771 4 - lost", B)
    lost, well = source.gpus()
    assert (lost.uuid, lost.state, well.state) == ("GPU-aaaa", GpuState.DOWN, GpuState.FREE)
    assert lost.reason


def test_memory_that_the_driver_does_not_tell_is_unknown_not_zero(fake_machine: FakeMachine) -> None:
    fake_machine.describe("GPU-aaaa Thor 0 0 - nomem")
    assert NvmlGpus().use("GPU-aaaa").memory_bytes is None


def test_processes_of_others_make_a_gpu_external(fake_machine: FakeMachine) -> None:
    fake_machine.describe(A)
    source = NvmlGpus()
    baseline = source.use("GPU-aaaa")
    fake_machine.describe("GPU-aaaa H200 143771 900 4711,4712 ok")
    use = source.use("GPU-aaaa")
    assert use.pids == frozenset({4711, 4712})
    assert judge(use, baseline).state is GpuState.EXTERNAL


async def test_memory_that_does_not_come_back_quarantines(fake_machine: FakeMachine, tmp_path: Path) -> None:
    fake_machine.describe(A)
    source = NvmlGpus()
    watch = GpuWatch(source, baseline_path=tmp_path / "baselines", boot_id="b", clock=SystemClock())
    fake_machine.describe("GPU-aaaa H200 143771 5000 - ok")
    marked = await watch.prove_clean("GPU-aaaa", bound_ms=150)
    assert marked.state is GpuState.QUARANTINED


async def test_a_gpu_is_free_as_soon_as_it_is_back_at_its_baseline(fake_machine: FakeMachine) -> None:
    fake_machine.describe("GPU-aaaa H200 143771 40 - ok")
    source = NvmlGpus()
    gpu = source.gpus()[0]
    proved = await prove_clean(source, gpu, GpuUse(memory_bytes=4 << 20), clock=SystemClock(), bound_ms=1000)
    assert proved.state is GpuState.FREE


def test_a_gpu_that_is_not_there_says_so(fake_machine: FakeMachine) -> None:
    fake_machine.describe(A)
    with pytest.raises(OSError, match="GPU-zzzz"):
        NvmlGpus().use("GPU-zzzz")
