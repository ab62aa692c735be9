"""The process group of a gang: its store, its backend, and the numbers that tell whether ranks stayed in step."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from phalanx_agent.gang_config import GangConfig
from phalanx_agent.worker.torchrun import StandingGroup

_GROUP_TIMEOUT = timedelta(minutes=30)
_MAX_START = timedelta(days=1)


class GroupError(RuntimeError):
    """The process group cannot be made; the message says what to do."""


def prepare(config: GangConfig) -> StandingGroup | None:
    """Gets torch ready for user code that makes a group itself; None for CPU functions, or without torch.

    Raises GroupError where torch is missing and the gang has more than one rank.
    """
    if config.function.resources.gpus == 0:
        return None
    if importlib.util.find_spec("torch") is None:
        if config.world_size == 1:
            return None
        raise GroupError(
            f"a gang of {config.world_size} ranks needs torch for its process group, and this node has none: "
            f'install torch on the node, or add it with env(pip=["torch"])'
        )
    standing = StandingGroup()
    standing.install()
    return standing


@dataclass(frozen=True, slots=True)
class Joined:
    """``backend``: "" where no group was prepared. ``verifies``: some node of the gang wants its copies verified."""

    backend: str = ""
    verifies: bool = False


def join(config: GangConfig, standing: StandingGroup | None, *, rank: int, device: str, listen_fd: int) -> Joined:
    """Joins the gang's group and meets every other rank in it once."""
    if standing is None:
        return Joined()
    import torch.distributed as dist

    backend = choose_backend(config.function.backend, device)
    store = _store(config, rank, listen_fd)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=config.world_size,
        timeout=_GROUP_TIMEOUT,
        **({"device_id": importlib.import_module("torch").device(device)} if backend == "nccl" else {}),
    )
    verifies = _meet(device if backend == "nccl" else "cpu", verifies=bool(config.preflight))
    standing.stands(backend=backend, device=device, timeout=_GROUP_TIMEOUT)
    return Joined(backend, verifies)


def choose_backend(asked: str, device: str) -> str:
    """Returns what was asked for, or nccl on GPUs and gloo elsewhere. Raises GroupError for nccl without a GPU."""
    if asked == "nccl" and device == "cpu":
        raise GroupError('backend="nccl" needs real GPUs and this gang has none: use backend="auto" or "gloo"')
    if asked != "auto":
        return asked
    return "nccl" if device != "cpu" else "gloo"


def sequence_number() -> int:
    """Returns how many collectives of the program the default group has begun; 0 without a group."""
    return max(0, _begun() - _Platforms.collectives)


class _Platforms:
    """What the platform itself did in the group of this process, which no count shows to anybody."""

    collectives = 0


def begin_program() -> int:
    """From here on the program's collectives count, the first as number 1. Returns how many were before it."""
    _Platforms.collectives = _begun()
    return _Platforms.collectives


def _begun() -> int:
    dist = _distributed()
    if dist is None or not dist.is_initialized():
        return 0
    try:
        return int(dist.distributed_c10d._get_default_group()._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):
        return 0


def advertise(config: GangConfig, rank: int, local_rank: int) -> None:
    """Sets what torchrun-style programs read."""
    host, port = split_address(config.rendezvous)
    ranks = config.member.ranks
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(config.world_size),
        LOCAL_WORLD_SIZE=str(ranks),
        GROUP_RANK=str(config.node_rank),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )


def split_address(address: str) -> tuple[str, int]:
    """Splits host:port, [v6]:port included; an empty one is this machine."""
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if host else ("127.0.0.1", 0)


def _store(config: GangConfig, rank: int, listen_fd: int) -> Any:
    dist: Any = importlib.import_module("torch.distributed")
    if config.world_size == 1:
        return dist.HashStore()
    host, port = split_address(config.rendezvous)
    seconds = config.function.limits.startup_timeout_s
    timeout = timedelta(seconds=seconds) if seconds else _MAX_START
    lead: dict[str, Any] = {"master_listen_fd": listen_fd} if rank == 0 and listen_fd >= 0 else {}
    return dist.TCPStore(
        host, port, config.world_size, is_master=rank == 0, timeout=timeout, wait_for_workers=False, **lead
    )


def _meet(device: str, *, verifies: bool) -> bool:
    """One small all-reduce: every connection exists when it returns. Says whether any rank ``verifies``."""
    import torch
    import torch.distributed as dist

    votes = torch.full((1,), float(verifies), device=device)
    dist.all_reduce(votes)
    return bool(votes.item())


def _distributed() -> Any:
    return sys.modules.get("torch.distributed")
