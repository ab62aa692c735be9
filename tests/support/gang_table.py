"""The gang table: ways in which one rank of a gang goes wrong, as one function that ranks run, and what must be said.

Shared by the tests and by the randomised trial; it needs nothing but torch inside the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

WAYS = ("raise", "exit", "kill", "hang", "skip", "early return", "shape")
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "barrier")


@dataclass(frozen=True, slots=True)
class Trial:
    """Rank ``culprit`` goes wrong in the way ``how`` at collective number ``moment`` (from 0) of ``rounds``."""

    world: int
    nodes: int
    culprit: int
    how: str
    moment: int = 2
    rounds: int = 5
    collective: str = "all_reduce"

    @property
    def can_be_known(self) -> bool:
        """Two ranks that entered different collectives accuse each other."""
        return self.world > 2 or self.how != "shape"


def go_wrong(culprit: int, how: str, moment: int, rounds: int, collective: str) -> int:  # noqa: C901  one branch each
    """All ranks run the same collectives, and one of them does not."""
    import os
    import signal
    import time

    import torch
    import torch.distributed as dist

    import phalanx.context

    me = phalanx.context.current()

    def meet(size: int) -> None:
        tensor = torch.ones(size)
        match collective:
            case "broadcast":
                dist.broadcast(tensor, src=(culprit + 1) % me.world_size)
            case "all_gather":
                dist.all_gather([torch.empty(size) for _ in range(me.world_size)], tensor)
            case "barrier":
                dist.barrier()
            case _:
                dist.all_reduce(tensor)

    for turn in range(rounds):
        wrong = me.rank == culprit and turn == moment
        if not wrong:
            meet(4)
            continue
        match how:
            case "raise":
                raise ValueError("the culprit's own mistake")
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                while True:
                    time.sleep(0.1)
            case "skip":
                try:
                    raise OSError("swallowed")
                except OSError:
                    continue
            case "early return":
                return turn
            case _:
                meet(4096)
    return rounds
