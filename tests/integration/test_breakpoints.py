"""Ranks that stop at breakpoints: real keepers and ranks, spoken to as an agent would."""

from __future__ import annotations

import time
from typing import Any

from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.spec import Limits
from tests.support.gang_driver import Gangs, Keeper
from tests.support.wait import wait_until


def stops(rank: int) -> Any:
    import torch
    import torch.distributed as dist

    import phalanx

    me = phalanx.current().rank
    total = torch.ones(1)
    if me == rank:
        answer = 41
        breakpoint()
        total += answer
    dist.all_reduce(total)
    return float(total)


class Terminal:
    """The agent's end of a terminal."""

    def __init__(self, keeper: Keeper, call: bytes, **meta: Any) -> None:
        self.keeper = keeper
        self.id = new_raw_id()
        keeper.send(Frame(Kind.TERMINAL, self.id, {"call": id_text("c", call), **meta}))
        self.first = keeper.wait_for(lambda f: f.id == self.id, "an answer to TERMINAL")

    def type(self, text: str, **meta: Any) -> None:
        self.keeper.send(Frame(Kind.TYPED, self.id, {"taken": len(self.text), **meta}, text.encode()))

    @property
    def text(self) -> str:
        return b"".join(bytes(f.body) for f in self.keeper.seen if f.id == self.id and f.kind is Kind.SHOWN).decode()

    def until(self, text: str) -> str:
        self.keeper.wait_for(lambda _: text in self.text, f"{text!r} is shown")
        return self.text

    def closed(self) -> dict[str, Any]:
        return self.keeper.wait_for(lambda f: f.id == self.id and f.kind is Kind.CLOSED, "CLOSED").meta

    def leave(self) -> None:
        self.keeper.send(Frame(Kind.CLOSED, self.id))


def stopped_at(keeper: Keeper) -> str:
    frame = keeper.wait_for(lambda f: f.kind is Kind.RANK and bool(f.meta.get("debug")), "a rank waits")
    return frame.meta["debug"]


def test_a_rank_waits_at_its_breakpoint_until_somebody_lets_it_go_on(gangs: Gangs) -> None:
    limits = Limits(timeout_s=1, hang_timeout_s=0.5)
    keeper = gangs.one(stops, ranks=2, limits=limits)
    keeper.ready()
    call = keeper.call(1, timeout_ms=1000)
    assert "rank 1 waits at a breakpoint, test_breakpoints.py:" in stopped_at(keeper)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 1.5, "longer than both limits")
    terminal = Terminal(keeper, call, mode="attach", rank=1)
    assert terminal.first.kind is Kind.TERMINAL
    terminal.until("(Pdb) ")
    terminal.type("p answer + 1\n")
    terminal.until("42\n")
    terminal.type("c\n")
    assert keeper.result(call) == 43
    assert keeper.stop()["counters"]["debug"] > 1500
