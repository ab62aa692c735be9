"""The nodes that can take a part of a gang, gathered by where they stand. Made once per size and then kept in step.

Nodes are counted, not compared: those that share all their domains lie in one bucket, and what a domain holds is the
sum of its buckets.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterator
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
    buckets: dict[Spot, Bucket] = field(default_factory=dict[Spot, Bucket])

    def add(self, bucket: Bucket) -> None:
        self.nodes += len(bucket.nodes)
        self.held += bucket.held
        self.buckets[bucket.spot] = bucket

    def tightness(self, count: int) -> tuple[int, int]:
        """Orders by how many empty nodes a gang on ``count`` nodes opens, then by how many candidates it leaves."""
        return max(0, count - self.held), self.nodes


class Candidates:
    """Of one picture, for parts of one size."""

    def __init__(self, rooms: Rooms, offer: Offer) -> None:
        self._offer = offer
        self.levels = len(rooms.fabric.levels)
        self.buckets: dict[Spot, Bucket] = {}
        self._by_level: list[dict[Area, Tally]] = [{} for _ in range(self.levels)]
        self._by_free: dict[int, dict[Spot, list[Candidate]]] = {}
        """Of each spot in order."""
        self._count = 0
        for room in rooms.values():
            self._add(room)
        self._rooms = rooms
        self._seen = len(rooms.changes)
        self.guessed = False
        """A node was dropped that may be one again: good for one pass."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, room: NodeRoom) -> bool:
        bucket = self.buckets.get(room.spot)
        return bucket is not None and room.id in bucket.nodes

    def emptiest(self) -> Iterator[NodeRoom]:
        """Yields the nodes, those with the most free GPUs first; of those the last one leads."""
        for _, spots in sorted(self._by_free.items(), reverse=True):
            yield from sorted((node.room for nodes in spots.values() for node in nodes), key=lambda room: -room.at)

    def names(self) -> set[str]:
        """Returns the names of the nodes."""
        return {name for bucket in self.buckets.values() for name in bucket.nodes}

    def fullest(self) -> NodeRoom | None:
        """Returns the node with the fewest free GPUs, of those the one whose spot has the fewest candidates."""
        if not self._by_free:
            return None
        spots = self._by_free[min(self._by_free)]
        nodes = min(spots.items(), key=lambda each: (len(self.buckets[each[0]].nodes), each[1][0].room.at))[1]
        return nodes[0].room

    def drop(self, room: NodeRoom) -> None:
        """Takes a node out, until something changes on it."""
        bucket = self.buckets.get(room.spot)
        node = bucket.nodes.pop(room.id, None) if bucket is not None else None
        if bucket is None or node is None:
            return
        self._tally(bucket, node, -1)
        spots = self._by_free[node.free]
        nodes = spots[bucket.spot]
        del nodes[bisect_left(nodes, room.at, key=_at)]
        if not nodes:
            del spots[bucket.spot]
        if not spots:
            del self._by_free[node.free]

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
        """Returns the areas that have candidates, by rank, as they are for as long as nothing changes."""
        return self._by_level

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
        node = bucket.nodes[room.id] = Candidate(room, free, room.gpu_gangs > 0)
        self._tally(bucket, node, 1)
        insort(self._by_free.setdefault(free, {}).setdefault(bucket.spot, []), node, key=_at)

    def _tally(self, bucket: Bucket, node: Candidate, sign: int) -> None:
        self._count += sign
        bucket.held += sign * node.held
        for area in bucket.spot:
            level = self._by_level[area.rank]
            tally = level.get(area)
            if tally is None:
                tally = level[area] = Tally(area)
            tally.nodes += sign
            tally.held += sign * node.held
            if bucket.nodes:
                tally.buckets[bucket.spot] = bucket
            else:
                tally.buckets.pop(bucket.spot, None)
            if not tally.nodes:
                del level[area]


def _at(node: Candidate) -> int:
    return node.room.at
