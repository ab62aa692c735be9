"""A function that works in step, as users write it: work, a collective, a progress mark. One rank may be slower."""

from __future__ import annotations

WORK_S = 0.02


def train(seconds: float, slow_rank: int, extra_s: float) -> int:
    """Returns how many steps were made in ``seconds``. ``slow_rank`` −1: nobody is slow."""
    import time

    import torch
    import torch.distributed as dist

    import phalanx as px

    here = px.current()
    grads = torch.ones(1000)
    steps, until = 0, time.monotonic() + seconds
    going = torch.ones(1)
    while going.item() > 0:
        time.sleep(WORK_S + (extra_s if here.rank == slow_rank else 0))
        dist.all_reduce(grads)
        going.fill_(1.0 if time.monotonic() < until else 0.0)
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
        steps += 1
        here.progress(steps)
    return steps
