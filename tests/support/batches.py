"""Batches and logs for tests of the log."""

from __future__ import annotations

from phalanx_control.log.log import Batch
from phalanx_control.state import events as ev


def batch(seq: int, *, epoch: int = 1, leader_id: str = "a", log_ms: int = 0, mark: str = "x") -> Batch:
    """Returns a batch with one small event that carries ``mark``."""
    return Batch(
        seq=seq,
        epoch=epoch,
        leader_id=leader_id,
        log_ms=log_ms or seq * 10,
        wall_ms=1_700_000_000_000 + seq,
        events=(ev.CallWaits(call_id=f"c-{seq}", reason=mark),),
    )
