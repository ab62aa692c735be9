"""Who waits at breakpoints on which node of a gang, as its lead hears it: passed on to the keepers of the other nodes.

While somebody waits, the call's time limit does not run; the keepers know for how long. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from phalanx.core.frames import Frame, Kind

EVENTS = ("breakpoint", "goes_on")


class Debugging:
    """Of one gang that is led here. ``send(node, frame)`` reaches that node's keeper, which may take a frame twice."""

    def __init__(self, nodes: int, send: Callable[[int, Frame], None]) -> None:
        self._nodes = range(nodes)
        self._send = send
        self._waiting: list[dict[int, str]] = [{} for _ in self._nodes]
        self._known: set[int] = set()
        """Of whom it was heard. A former agent may have told the others what is not so any more."""
        self._call = ""

    def heard(self, node: int, frame: Frame) -> None:
        """A RANK event of a node's keeper."""
        note(self._waiting[node], frame)
        self._call = str(frame.meta.get("call") or self._call)
        self._tell(other for other in self._nodes if other != node)

    def stands(self, node: int, state: Frame) -> None:
        """A keeper's STATE: who waits there now. The others are told once all is known that they must be told of."""
        self._waiting[node] = stopped_of(state.meta)
        self._known.add(node)
        if self._waiting[node]:
            self._call = str(state.meta.get("running") or self._call)
        self._tell(other for other in self._nodes if other != node and self._known.issuperset(self._but(other)))

    def _tell(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            ranks = {str(rank): where for other in self._but(node) for rank, where in self._waiting[other].items()}
            self._send(node, Frame(Kind.PAUSE, meta={"ranks": ranks, "call": self._call}))

    def _but(self, node: int) -> list[int]:
        return [other for other in self._nodes if other != node]


def stopped_of(meta: dict[str, Any]) -> dict[int, str]:
    """Reads which ranks wait where from what STATE says."""
    return {int(rank): str(where) for rank, where in (meta.get("stopped") or {}).items()}


def note(waiting: dict[int, str], event: Frame) -> None:
    """Brings up to date who waits on a node."""
    rank = int(event.meta.get("rank", -1))
    if event.meta.get("event") == "breakpoint":
        waiting[rank] = str(event.meta.get("where", ""))
    else:
        waiting.pop(rank, None)
