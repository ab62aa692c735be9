"""A gang that is kept after a call's failure, as its agents know of it: for which call, and for how much longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import id_text
from phalanx_agent.dataplane.links import Link
from phalanx_agent.dataplane.loop import now_ns


@dataclass(frozen=True, slots=True)
class Held:
    """False where the gang is not held."""

    call: str = ""
    until_ns: int = 0

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Self:
        """Reads what a keeper says."""
        call = id_text("c", bytes.fromhex(str(meta["held"])))
        return cls(call, now_ns() + int(meta.get("held_ms") or 0) * 1_000_000)

    def __bool__(self) -> bool:
        return bool(self.call)

    @property
    def text(self) -> str:
        """What people are told; empty where it is not held."""
        if not self.call:
            return ""
        minutes, seconds = divmod(max(0, self.until_ns - now_ns()) // 1_000_000_000, 60)
        left = f"{minutes} m {seconds:02} s" if minutes else f"{seconds} s"
        call = self.call
        ways = f"gpuctl shell {call}, gpuctl stack {call}, gpuctl release {call}"
        return f"held for {left} after its failure: {ways}"


def hold_others(links: Sequence[Link], node: int, failure: Frame) -> None:
    """A node's keeper holds its ranks for a call that failed: the others are asked to hold theirs."""
    frame = Frame(Kind.STOP, meta={"reason": "a rank failed", "grace_ms": 0, "hold": failure.id.hex()})
    for other, link in enumerate(links):
        if other != node:
            link.send(frame)
