"""Who waits at breakpoints on which node of a gang, as its lead hears it: passed on to the keepers of the other nodes.

While somebody waits, the call's time limit does not run; the keepers know for how long. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.core.frames import Frame, Kind

EVENTS = ("breakpoint", "goes_on")


class Debugging:
    """Of one gang that is led here. ``send(node, frame)`` reaches that node's keeper."""

    def __init__(self, nodes: int, send: Callable[[int, Frame], None]) -> None:
        self._nodes = nodes
        self._send = send
        self._waiting: list[dict[int, str]] = [{} for _ in range(nodes)]

    def heard(self, node: int, frame: Frame) -> None:
        """A RANK event of a node's keeper."""
        rank, waiting = int(frame.meta.get("rank", -1)), self._waiting[node]
        if frame.meta.get("event") == "breakpoint":
            waiting[rank] = str(frame.meta.get("where", ""))
        else:
            waiting.pop(rank, None)
        for other in range(self._nodes):
            if other != node:
                self._send(other, Frame(Kind.PAUSE, meta={"ranks": self._but(other)}))

    def _but(self, node: int) -> dict[str, str]:
        """Those that wait elsewhere than on ``node``."""
        others = (ranks for i, ranks in enumerate(self._waiting) if i != node)
        return {str(rank): where for ranks in others for rank, where in ranks.items()}
