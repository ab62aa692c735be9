"""Four plain torch ranks: ``torchrun --nproc-per-node 4 torch_ranks.py``, or this file alone for multiprocessing spawn.

Rank 0 prints the wall-clock nanoseconds at which its first all-reduce was done.
"""

from __future__ import annotations

import os
import socket
import sys
import time


def first_all_reduce() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    if dist.get_rank() == 0:
        assert value.item() == dist.get_world_size()
        print(time.time_ns(), flush=True)
    dist.destroy_process_group()


def spawned(rank: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="4")
    first_all_reduce()


def main() -> None:
    if "RANK" in os.environ:
        first_all_reduce()
        return
    import multiprocessing

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=spawned, args=(r, port)) for r in range(4)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join(120)
    sys.exit(max(r.exitcode or 0 for r in ranks))


if __name__ == "__main__":
    main()
