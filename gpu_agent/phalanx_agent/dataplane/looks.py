"""Questions where a gang's ranks stand, on their way through the agent: who asked is remembered, answers are not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from phalanx.core.frames import Frame, Kind
from phalanx_agent.dataplane.links import KeeperLink

_ASKERS_KEPT = 64


class Looks:
    """Of one gang on one node. A question that its keeper never answers is forgotten for newer ones."""

    def __init__(self, keeper: KeeperLink) -> None:
        self._keeper = keeper
        self._askers: OrderedDict[bytes, Callable[[Frame], None]] = OrderedDict()

    def ask(self, request: bytes, asker: Callable[[Frame], None], *, steps: bool = False) -> None:
        """Asks the local keeper for the stacks and records of its ranks, or how long their ``steps`` take; ``asker``
        gets its SEEN."""
        self._askers[request] = asker
        if len(self._askers) > _ASKERS_KEPT:
            self._askers.popitem(last=False)
        self._keeper.send(Frame(Kind.LOOK, request, {"steps": True} if steps else {"full": True}))

    def answered(self, frame: Frame) -> bool:
        """Says whether the keeper's SEEN was for somebody here."""
        asker = self._askers.pop(frame.id, None)
        if asker is not None:
            asker(frame)
        return asker is not None
