"""The nodes that can take a part of a gang, gathered by where they stand. Made once per size and then kept in step.

Nodes are counted, not compared: those that share all their domains lie in one bucket, and what a domain holds is the
sum of its buckets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from phalanx_control.scheduler.cell_fabric import Area, Spot
from phalanx_control.scheduler.room import NodeRoom, Rooms

Offer = Callable[[NodeRoom], int]
"""How many free GPUs a node has, where it can take a part; else 0."""


@dataclass(slots=True)
class Candidate:
    """``free``: how many fitting GPUs; ``held``: a gang is on others of the node's."""

    room: NodeRoom
    free: int
    held: bool

    @property
    def fullest_first(self) -> tuple[int, int]:
        """Orders by how few GPUs are free, then by name."""
        return self.free, self.room.at


@dataclass(slots=True)
class Bucket:
    """Candidates of one spot; ``held`` counts those on which a gang is."""

    spot: Spot
    nodes: dict[str, Candidate] = field(default_factory=dict[str, Candidate])
    held: int = 0


@dataclass(slots=True)
class Tally:
    """What an area has: candidates, and how many of them a gang is on."""

    area: Area
    nodes: int = 0
    held: int = 0
    buckets: list[Bucket] = field(default_factory=list[Bucket])

    def add(self, bucket: Bucket) -> None:
        self.nodes += len(bucket.nodes)
        self.held += bucket.held
        self.buckets.append(bucket)

    def tightness(self, count: int) -> tuple[int, int]:
        """Orders by how many empty nodes a gang on ``count`` nodes opens, then by how many candidates it leaves."""
        return max(0, count - self.held), self.nodes


class Candidates:
    """Of one picture, for parts of one size."""

    def __init__(self, rooms: Rooms, offer: Offer) -> None:
        self._offer = offer
        self.levels = len(rooms.fabric.levels)
        self.buckets: dict[Spot, Bucket] = {}
        self._by_free: defaultdict[int, dict[str, Candidate]] = defaultdict(dict)
        for room in rooms.values():
            self._add(room)
        self._rooms = rooms
        self._seen = len(rooms.changes)
        self.guessed = False
        """A node was dropped that may be one again: good for one pass."""

    def __len__(self) -> int:
        return sum(map(len, self._by_free.values()))

    def names(self) -> set[str]:
        """Returns the names of the nodes."""
        return {name for nodes in self._by_free.values() for name in nodes}

    def fullest(self) -> NodeRoom | None:
        """Returns the node with the fewest free GPUs, of those the one whose spot has the fewest candidates."""
        least = min((free for free, nodes in self._by_free.items() if nodes), default=None)
        if least is None:
            return None
        rooms = (node.room for node in self._by_free[least].values())
        return min(rooms, key=lambda room: (len(self.buckets[room.spot].nodes), room.at))

    def drop(self, room: NodeRoom) -> None:
        """Takes a node out, until something changes on it."""
        bucket = self.buckets.get(room.spot)
        known = bucket.nodes.pop(room.id, None) if bucket is not None else None
        if bucket is not None and known is not None:
            bucket.held -= known.held
            del self._by_free[known.free][room.id]

    @contextmanager
    def without(self, barred: frozenset[str]) -> Generator[None]:
        """Inside, these nodes are no candidates."""
        left_out = [self._rooms[name] for name in barred if name in self._rooms]
        for room in left_out:
            self.drop(room)
        try:
            yield
        finally:
            for room in left_out:
                self._add(room)

    def by_level(self) -> list[dict[Area, Tally]]:
        """Returns the areas that have candidates, by rank."""
        levels: list[dict[Area, Tally]] = [{} for _ in range(self.levels)]
        for spot, bucket in self.buckets.items():
            for area in spot if bucket.nodes else ():
                tally = levels[area.rank].get(area)
                if tally is None:
                    tally = levels[area.rank][area] = Tally(area)
                tally.add(bucket)
        return levels

    def up_to_date(self) -> Self:
        """Looks again at the nodes on which something changed."""
        changes = self._rooms.changes
        for name in dict.fromkeys(changes[self._seen :]):
            self.renew(self._rooms[name])
        self._seen = len(changes)
        return self

    def renew(self, room: NodeRoom) -> None:
        """Looks at a node again."""
        self.drop(room)
        self._add(room)

    def _add(self, room: NodeRoom) -> None:
        free = self._offer(room)
        if not free:
            return
        bucket = self.buckets.get(room.spot)
        if bucket is None:
            bucket = self.buckets[room.spot] = Bucket(room.spot)
        node = Candidate(room, free, room.gpu_gangs > 0)
        bucket.nodes[room.id] = self._by_free[free][room.id] = node
        bucket.held += node.held
