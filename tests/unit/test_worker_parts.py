"""What a rank decides without a gang: addresses, devices, threads, errors, configuration."""

from __future__ import annotations

import itertools
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.context import CancelledSignal
from phalanx.core.messages import Member
from phalanx.core.spec import CodeRef, EnvSpec, FunctionSpec, Limits, Resources
from phalanx.core.states import Cause
from phalanx.core.topology.equipment import RankEquipment
from phalanx_agent.gang_config import GangConfig, config_from_json, config_to_json
from phalanx_agent.interfaces import interface_towards
from phalanx_agent.worker import cuda, group, limits, outcomes
from phalanx_agent.worker.torchrun import offers

CONFIG = GangConfig(
    gang_id="g-1",
    fence=3,
    function_id="f-1",
    function=FunctionSpec(
        name="train",
        resources=Resources(gpus=4, memory_gb=1.5),
        limits=Limits(timeout_s=9),
        env=EnvSpec(pip=("einops",), preload=("json",), variables=(("A", "b"),)),
        code=CodeRef(callable_blob="sha256:0", python="3.11"),
    ),
    workspace="w",
    user="u",
    node_id="n1",
    members=(
        Member(node_id="n0", first_rank=0, ranks=2, gpus=("GPU-a", "GPU-b")),
        Member(node_id="n1", first_rank=2, ranks=2, gpus=("GPU-c", "GPU-d")),
    ),
    node_rank=1,
    world_size=4,
    rendezvous="10.0.0.1:4000",
    simulated=False,
    placement="one sentence",
    callable_path="/code/callable",
    bundle_dir="/code",
    checkpoint_dir="",
)


def test_a_configuration_comes_back_from_json_as_it_was() -> None:
    assert config_from_json(config_to_json(CONFIG)) == CONFIG


def test_ranks_use_their_own_device_of_the_node() -> None:
    assert [cuda.device_name(CONFIG, r) for r in (0, 1)] == ["cuda:0", "cuda:1"]
    assert cuda.device_name(replace(CONFIG, simulated=True), 1) == "cpu"


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.1:4000", ("10.0.0.1", 4000)), ("[::1]:5", ("::1", 5)), ("", ("127.0.0.1", 0))],
)
def test_addresses_split_into_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert group.split_address(address) == expected


def test_the_interface_of_loopback_is_lo() -> None:
    assert interface_towards("127.0.0.1", 80) == "lo"


@pytest.mark.parametrize(
    ("asked", "device", "expected"),
    [("auto", "cpu", "gloo"), ("auto", "cuda:0", "nccl"), ("gloo", "cuda:0", "gloo"), ("nccl", "cuda:1", "nccl")],
)
def test_the_backend_follows_the_device_unless_asked(asked: str, device: str, expected: str) -> None:
    assert group.choose_backend(asked, device) == expected


def test_nccl_without_a_gpu_is_refused_with_the_way_out() -> None:
    with pytest.raises(group.GroupError, match="gloo"):
        group.choose_backend("nccl", "cpu")


def test_a_rank_that_is_bound_to_nothing_gets_its_part_of_the_threads() -> None:
    usable = len(os.sched_getaffinity(0))
    assert limits.settle(RankEquipment(), local_ranks=1) == usable
    assert limits.settle(RankEquipment(), local_ranks=2 * usable) == 1


def test_a_binding_that_the_kernel_refuses_is_told_and_goes_without(capsys: pytest.CaptureFixture[str]) -> None:
    usable = os.sched_getaffinity(0)
    assert limits.settle(RankEquipment(cpus="60000-60001"), local_ranks=1) == len(usable)
    assert "not bound to processors 60000-60001" in capsys.readouterr().err
    assert os.sched_getaffinity(0) == usable


def test_a_numa_node_that_is_not_there_is_refused_by_the_kernel() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        limits.prefer_memory(1000)
    with pytest.raises(OSError, match="no NUMA node 100000"):
        limits.prefer_memory(100_000)


@pytest.mark.parametrize(
    ("backend", "device", "asked", "expected"),
    [
        ("gloo", "cpu", "", True),
        ("gloo", "cpu", "gloo", True),
        ("gloo", "cpu", "nccl", False),
        ("gloo", "cpu", "cpu:gloo,cuda:nccl", True),
        ("nccl", "cuda", "nccl", True),
        ("nccl", "cuda", "gloo", False),
        ("nccl", "cuda", "cpu:gloo,cuda:nccl", False),
        ("nccl", "cuda", "cuda:nccl", True),
    ],
)
def test_a_group_that_stands_offers_what_its_own_devices_need(
    backend: str, device: str, asked: str, expected: bool
) -> None:
    assert offers(backend, asked, device) is expected


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


@pytest.mark.parametrize(
    ("exc", "cause"),
    [
        (MemoryError(), Cause.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), Cause.OUT_OF_MEMORY),
        (OutOfMemoryError("CUDA"), Cause.OUT_OF_MEMORY),
        (ValueError("out of memory"), Cause.USER_EXCEPTION),
        (CancelledSignal(), Cause.CANCELLED),
        (KeyError("x"), Cause.USER_EXCEPTION),
    ],
)
def test_exceptions_are_sorted_by_cause(exc: BaseException, cause: Cause) -> None:
    assert outcomes.cause_of(exc, asked_to_stop=True) is cause


def test_a_cancellation_that_nobody_asked_for_is_the_users() -> None:
    assert outcomes.cause_of(CancelledSignal()) is Cause.USER_EXCEPTION


class DistNetworkError(RuntimeError):
    """As torch's own, for a test without torch."""


DistNetworkError.__module__ = "torch.distributed"
GLOO = "[/src/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:10159"


@pytest.mark.parametrize(
    "exc",
    [
        ConnectionRefusedError(111, "Connection refused"),
        BrokenPipeError(32, "Broken pipe"),
        RuntimeError("Connection closed by peer [127.0.0.1]:1234"),
        ValueError(GLOO),
        TimeoutError("timed out waiting"),
    ],
)
def test_a_users_own_connection_error_is_never_a_victims(exc: BaseException) -> None:
    assert not outcomes.is_peer_error(exc, world_size=2)


@pytest.mark.parametrize("exc", [DistNetworkError("gone"), RuntimeError(GLOO), RuntimeError(f"rank 1 failed\n{GLOO}")])
def test_an_error_of_the_collective_library_may_be_a_victims_in_a_gang(exc: BaseException) -> None:
    assert outcomes.is_peer_error(exc, world_size=2)
    assert not outcomes.is_peer_error(exc, world_size=1)


def test_an_error_that_a_collective_caused_may_be_a_victims() -> None:
    wrapped = ValueError("training failed")
    wrapped.__cause__ = DistNetworkError("gone")
    assert outcomes.is_peer_error(wrapped, world_size=2)


def test_what_is_raised_in_a_module_of_the_collective_library_may_be_a_victims() -> None:
    space: dict[str, Any] = {"__name__": "torch.distributed.distributed_c10d"}
    exec("def wait(): raise RuntimeError('no words')", space)
    with pytest.raises(RuntimeError) as caught:
        space["wait"]()
    assert outcomes.is_peer_error(caught.value, world_size=2)


def test_cuda_sees_the_gangs_gpus_of_the_node_in_rank_order_and_no_others() -> None:
    before = dict(os.environ)
    try:
        turned = replace(CONFIG, members=(CONFIG.members[0], replace(CONFIG.member, gpus=("GPU-d", "GPU-c"))))
        cuda.show_only_leased(turned)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-d,GPU-c"
        cuda.show_only_leased(replace(turned, simulated=True))
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_the_interface_that_carries_an_address_of_this_machine_is_found() -> None:
    """By the kernel's own list of routes to this machine's addresses, which names no interface but has them all."""
    named = {name for _, name in socket.if_nameindex()}
    for address in _own_addresses():
        assert interface_towards(address, 4000) in named
    assert interface_towards("no.such.host.invalid", 1) == ""


def _own_addresses() -> list[str]:
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    pairs = itertools.pairwise(lines)
    return sorted({line.split()[-1] for line, below in pairs if "/32 host LOCAL" in below})
