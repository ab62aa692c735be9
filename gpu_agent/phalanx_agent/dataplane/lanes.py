"""The lanes of one gang's clients, as its lead agent gives them out; what a lane is, the keeper's `lanes.py` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from phalanx.core.frames import LANE_BITS, MAX_LANES, Frame, Kind

if TYPE_CHECKING:
    from phalanx_agent.dataplane.clients import Client


class LaneNumbers:
    """``to_keeper`` takes LANE frames; without it the gang has no lanes, because its ranks are on several nodes."""

    def __init__(self, to_keeper: Callable[[Frame], None] | None) -> None:
        self._to_keeper = to_keeper
        self._clients: dict[int, Client] = {}
        self._closing: set[int] = set()
        self._shut = False
        self.keeper_answers = False
        """It says when a lane is closed, and takes calls there. Keepers of an older version do neither."""

    def __len__(self) -> int:
        """How many there are, with those of which the keeper has not yet said that nothing more comes."""
        return len(self._clients)

    def open(self, client: Client, fds: list[int]) -> int:
        """Gives the client's socket to the keeper. Returns its number; 0 where there is none left."""
        if self._to_keeper is None or self._shut or len(self._clients) == MAX_LANES:
            return 0
        number = next(n for n in range(1, MAX_LANES + 1) if n not in self._clients)
        self._clients[number] = client
        self._to_keeper(Frame(Kind.LANE, flags=number << LANE_BITS, fds=fds[:1]))
        return number

    def client(self, number: int) -> Client | None:
        """Whose it is, or was: until the keeper says that it is closed."""
        return self._clients.get(number)

    def close(self, number: int, client: Client) -> None:
        """The client has gone."""
        if self._clients.get(number) is client:
            self._close(number)

    def close_all(self) -> None:
        """From now on every call comes through this agent."""
        self._shut = True
        for number in tuple(self._clients):
            self._close(number)

    def closed(self, number: int) -> None:
        """The keeper has closed it, and said all that came over it."""
        self._closing.discard(number)
        self._clients.pop(number, None)

    def _close(self, number: int) -> None:
        if self._to_keeper is not None and number not in self._closing:
            self._closing.add(number)
            self._to_keeper(Frame(Kind.LANE, flags=number << LANE_BITS))
            if not self.keeper_answers:
                self.closed(number)
