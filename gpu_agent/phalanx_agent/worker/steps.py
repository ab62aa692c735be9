"""A rank's progress marks on their way to the keeper: when each was made, and when the last collectives were entered.

Marks go one by one, and those that come faster than every EVERY_MS together. Once a second one of them carries what
torch remembers of collectives, which costs it about a millisecond: all ranks do so at the first mark of a second of the
clock, so that they tell of the same collectives.
"""

from __future__ import annotations

import importlib
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from phalanx.core.steps import KEPT_STEPS

EVERY_MS = 10
_COLLECTIVES_EVERY_NS = 1_000_000_000
_GLOO = "gloo:"


class Marks:
    """``send`` takes what a mark says; ``collectives`` tells of those entered last; ``now_ns`` is the wall clock."""

    def __init__(
        self, send: Callable[..., None], collectives: Callable[[], list[list[Any]]], now_ns: Callable[[], int]
    ) -> None:
        self._send = send
        self._collectives = collectives
        self._now_ns = now_ns
        self._unsent: deque[tuple[int, int]] = deque(maxlen=KEPT_STEPS)
        self._total = 0
        self._sent_ns = 0
        self._told_at = 0

    def mark(self, step: int, total: int) -> None:
        """Notes a mark, and sends it unless one was sent just now."""
        now = self._now_ns()
        self._unsent.append((step, now // 1000))
        self._total = total
        if not 0 <= now - self._sent_ns < EVERY_MS * 1_000_000:
            self._sent_ns = now
            self.flush()

    def flush(self) -> None:
        """Sends what was held back, also when its call ends."""
        marks = self._take()
        if not marks:
            return
        more: dict[str, Any] = {}
        told_at = marks[-1][1] * 1000 // _COLLECTIVES_EVERY_NS
        if told_at != self._told_at:
            self._told_at = told_at
            more["entered"] = self._collectives()
        self._send("progress", step=marks[-1][0], total=self._total, marks=marks, **more)

    def _take(self) -> list[tuple[int, int]]:
        """Marks may come from several threads: each is sent once."""
        taken: list[tuple[int, int]] = []
        while self._unsent:
            try:
                taken.append(self._unsent.popleft())
            except IndexError:
                break
        return taken


def collectives_of(backend: str, world_size: int) -> Callable[[], list[list[Any]]]:
    """Returns what tells of the collectives of this process: (group, number, µs of the clock, µs or -1) of each."""
    if world_size == 1 or not backend:
        return list
    dump = importlib.import_module("torch._C._distributed_c10d")._dump_fr_trace_json
    return lambda: entered(json.loads(dump(includeCollectives=True)))


def entered(trace: dict[str, Any]) -> list[list[Any]]:
    """Returns those of torch's records that say what was waited. A GPU's are entered by the host long before it waits,
    so of those only the ones that were timed."""
    found: list[list[Any]] = []
    for entry in trace.get("entries", ()):
        took_ms = entry.get("duration_ms")
        if entry["is_p2p"] or (took_ms is None and not str(entry["profiling_name"]).startswith(_GLOO)):
            continue
        took_us = -1 if took_ms is None else int(float(took_ms) * 1000)
        group = str(entry["process_group"][0])
        found.append([group, int(entry["collective_seq_id"]), int(entry["time_created_ns"]) // 1000, took_us])
    return found
