"""The numbers of one gang's lanes, as its lead agent gives them out; what a lane is, the keeper's `lanes.py` says."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.core.frames import LANE_BITS, MAX_LANES, Frame, Kind


class LaneNumbers:
    """``to_keeper`` takes LANE frames; without it the gang has no lanes, because its ranks are on several nodes."""

    def __init__(self, to_keeper: Callable[[Frame], None] | None) -> None:
        self._to_keeper = to_keeper
        self._taken: set[int] = set()

    def open(self, fds: list[int]) -> int:
        """Gives the client's socket to the keeper. Returns its number; 0 where there is none left."""
        if self._to_keeper is None or len(self._taken) == MAX_LANES:
            return 0
        number = next(n for n in range(1, MAX_LANES + 1) if n not in self._taken)
        self._taken.add(number)
        self._to_keeper(Frame(Kind.LANE, flags=number << LANE_BITS, fds=fds[:1]))
        return number

    def close(self, number: int) -> None:
        """The client has gone."""
        if number and self._to_keeper is not None:
            self._taken.discard(number)
            self._to_keeper(Frame(Kind.LANE, flags=number << LANE_BITS))
