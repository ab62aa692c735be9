"""Our side of ``peers/torch_ranks.py``: the program whose ranks do one all-reduce, and nothing else to import."""

from __future__ import annotations

from typing import Any

import phalanx


def first_all_reduce() -> float:
    import torch
    import torch.distributed as dist

    value = torch.ones(1)
    dist.all_reduce(value)
    return float(value.item())


def gang_function(name: str) -> Any:
    """A function of its own, so that its first call needs a gang of its own."""
    return phalanx.gpu_function(gpus=4, name=name, scaledown_window=0.2)(first_all_reduce)
