"""Four ranks, one process group, one all-reduce: the program of the README."""

import torch
import torch.distributed as dist

import phalanx


@phalanx.gpu_function(gpus=4)
def hello(value: float = 1.0) -> float:
    ctx = phalanx.current()
    total = torch.tensor([value * (ctx.rank + 1)], device=ctx.device)
    dist.all_reduce(total)
    print(f"rank {ctx.rank} of {ctx.world_size} on {ctx.device}: the sum is {total.item():g}")
    return total.item()


if __name__ == "__main__":
    print(hello.remote(1.0))
