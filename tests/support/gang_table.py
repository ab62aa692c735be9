"""The gang table: ways in which one rank of a gang goes wrong, as one function that ranks run, and what must be said.

Shared by the tests and by the randomised trial; it needs nothing but torch inside the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WAYS = ("raise", "exit", "kill", "hang", "skip", "early return", "shape")
EARLY = "death before init"
ROOTED = ("broadcast", "reduce", "gather", "scatter")
FEW, MANY = 4, 4096
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "all_reduce of some", *ROOTED)


@dataclass(frozen=True, slots=True)
class Trial:
    """Rank ``culprit`` goes wrong in the way ``how`` at collective number ``moment`` (from 0) of ``rounds``. ``root``
    is the rank that a rooted collective goes from or to; -1: the next one.
    """

    world: int
    nodes: int
    culprit: int
    how: str
    moment: int = 2
    rounds: int = 5
    collective: str = "all_reduce"
    root: int = -1

    @property
    def can_be_known(self) -> bool:
        """Two ranks that entered different collectives accuse each other, and so do two of which a third one's end
        left no record. Ranks may send each other different sizes in an all-to-all, and those that have returned from
        a rooted one, on a node of their own, are not asked. Where gloo crashes the root because its one peer has
        returned, either may be wrong.
        """
        of_some = self.collective.endswith(" of some")
        if self.world == 2 and self.collective in ROOTED and self.how in ("skip", "early return"):
            return False
        if self.how == "skip":
            return not (of_some and self.world == 2)
        unrecorded = self.world <= 3 or (self.nodes > 1 and self.collective in ROOTED)
        return self.how != "shape" or not (of_some or unrecorded or self.collective == "all_to_all")

    @property
    def may_succeed(self) -> bool:
        """Some ranks of a rooted collective wait for nobody, so a mistake in one may keep no rank from its end."""
        return self.collective in ROOTED and self.how in ("skip", "early return", "shape")


def go_wrong(  # noqa: C901, PLR0917  one branch each
    culprit: int, how: str, moment: int, rounds: int, collective: str, root: int = -1
) -> int:
    """All ranks run the same collectives, and one of them does not."""
    import os
    import signal
    import time

    import torch
    import torch.distributed as dist

    import phalanx.context

    me = phalanx.context.current()
    world = me.world_size
    root = root if root >= 0 else (culprit + 1) % world
    some = sorted({culprit, (culprit + 1) % world, (culprit + 2) % world})
    group = dist.new_group(some) if collective.endswith(" of some") else None

    def each(size: int) -> list[torch.Tensor]:
        return [torch.empty(size) for _ in range(world)]

    def at_root(size: int) -> list[torch.Tensor] | None:
        return each(size) if me.rank == root else None

    comm: Any = dist  # what its functions return is not looked at
    calls: dict[str, Callable[[int], object]] = {
        "all_reduce": lambda n: comm.all_reduce(torch.ones(n)),
        "all_gather": lambda n: comm.all_gather(each(n), torch.ones(n)),
        "reduce_scatter": lambda n: comm.reduce_scatter(torch.empty(n), each(n)),
        "all_to_all": lambda n: comm.all_to_all_single(torch.empty(n * world), torch.ones(n * world)),
        "barrier": lambda n: comm.barrier() if n == FEW else comm.all_reduce(torch.ones(n)),
        "all_reduce of some": lambda n: me.rank not in some or comm.all_reduce(torch.ones(n), group=group),
        "broadcast": lambda n: comm.broadcast(torch.ones(n), src=root),
        "reduce": lambda n: comm.reduce(torch.ones(n), dst=root),
        "gather": lambda n: comm.gather(torch.ones(n), at_root(n), dst=root),
        "scatter": lambda n: comm.scatter(torch.empty(n), at_root(n), src=root),
    }
    meet = calls[collective]
    for turn in range(rounds):
        wrong = me.rank == culprit and turn == moment
        if not wrong:
            meet(FEW)
            if group is not None and turn == rounds - 1:
                dist.all_reduce(torch.ones(1))  # who is not in the group waits here
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
                meet(MANY)
    return rounds
