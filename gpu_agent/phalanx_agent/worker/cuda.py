"""The rank's GPU: made visible before CUDA starts, its context made after the fork, as a phase of its own."""

from __future__ import annotations

import os
from collections.abc import Callable

from phalanx_agent.gang_config import GangConfig


def show_only_leased(config: GangConfig) -> None:
    """Lets CUDA see this node's GPUs of the gang, in rank order, and no other."""
    visible = config.member.gpus if config.on_gpu else ()
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"


def device_name(config: GangConfig, local_rank: int) -> str:
    """Returns ``cuda:<n>`` or ``cpu``. Several ranks have a GPU each; a lone rank starts with its first."""
    if not config.on_gpu:
        return "cpu"
    return f"cuda:{local_rank if len(config.member.gpus) >= config.member.ranks > 1 else 0}"


def make_context(device: str, *, share: float, announce: Callable[[], None]) -> None:
    """Makes the CUDA context on ``device``; with a ``share`` below 1 the rank's part of its memory is the limit.

    Raises RuntimeError where torch has no CUDA or does not see the leased GPU.
    """
    if device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(
            f"this gang holds GPUs and torch {torch.__version__} sees none: install a CUDA build of torch on the node, "
            f"or check the driver with nvidia-smi"
        )
    announce()
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)
