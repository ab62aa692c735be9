"""Gangs of several nodes over time in a fabric: how near their nodes are, and what is turned away.

Each policy keeps its own fleet of 16 nodes a leaf and 16 leaves a pod, and gets the same gangs, which stay for the same
number of arrivals. Nobody waits: what does not fit is turned away.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.fabric import LEAVES_PER_POD, NODES_PER_LEAF, fabric
from benchmarks.scheduler_peers.picks import Paths, at_random, hived, kai, kueue, slurm_tree
from phalanx.core.ids import id_text
from phalanx.core.spec import FunctionSpec, Resources
from phalanx.core.topology.fabric_codec import fabric_to_json
from phalanx_control.scheduler.fit import find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import rooms_of
from phalanx_control.simulator.grid import Grid, Pick, first_fit
from phalanx_control.simulator.happenings import Part
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.live import start_of
from phalanx_control.simulator.machines import Fleet, from_words
from phalanx_control.state.model import Gang, MemberState, Owner

NODES = 512
ARRIVALS = 4_000
STAYS = 480
"""Arrivals until a gang leaves, on average: so many gangs nearly fill the fleet."""
SIZES = ((1, 30), (2, 20), (4, 20), (8, 15), (16, 8), (32, 4), (64, 2), (128, 1))
_OWNER = Owner(workspace="bench")


@dataclass(slots=True, kw_only=True)
class Near:
    """Gangs of several nodes: in the lowest domain that could hold them then, and in one leaf of those that a leaf can
    hold; of all gangs, how many were turned away.
    """

    policy: str
    several: int = 0
    lowest: int = 0
    leaf_sized: int = 0
    in_a_leaf: int = 0
    asked: int = 0
    refused: int = 0
    held: float = 0
    looks: int = 0


class _Peer:
    def __init__(self, fleet: Fleet, pick: Pick) -> None:
        self.grid = Grid(fleet)
        self._pick = pick

    def place(self, job: Job) -> tuple[Part, ...] | None:
        parts = self.grid.place(job, self._pick)
        if parts is not None:
            self.grid.take(parts, job)
        return parts

    def leave(self, job: Job, parts: tuple[Part, ...]) -> None:
        self.grid.take(parts, job, -1)


class _Ours:
    def __init__(self, fleet: Fleet) -> None:
        self.grid = Grid(fleet)
        self._rooms = rooms_of(start_of(fleet))
        self._at = {gpu.uuid: gpu.index for node in fleet.nodes for gpu in node.gpus}

    def place(self, job: Job) -> tuple[Part, ...] | None:
        spec = FunctionSpec(name=f"f{job.gpus:g}", resources=Resources(gpus=job.gpus))
        found = find_place(Need(spec=spec, workspace=_OWNER.workspace), self._rooms)
        if found is None:
            return None
        members = tuple(MemberState(member=member) for member in found.members)
        self._rooms.put(Gang(id=_id(job), fence=job.number, function_id=spec.name, owner=_OWNER, members=members), spec)
        parts = tuple(Part(m.node_id, tuple(self._at[gpu] for gpu in m.gpus), 1000) for m in found.members)
        self.grid.take(parts, job)
        return parts

    def leave(self, job: Job, parts: tuple[Part, ...]) -> None:
        self._rooms.take_out(_id(job))
        self.grid.take(parts, job, -1)


def _id(job: Job) -> str:
    return id_text("g", job.number.to_bytes(16, "big"))


def measure(seed: int = 1, *, nodes: int = NODES, arrivals: int = ARRIVALS) -> list[Near]:
    """Plays all policies."""
    words = from_words(f"{nodes} x 8")
    renamed = {node.node_id: f"n{at}" for at, node in enumerate(words.nodes)}
    text = fabric_to_json(fabric(nodes))
    for name, known in renamed.items():
        text = text.replace(f'"{known}"', f'"{name}"')
    fleet = Fleet(name=words.name, nodes=words.nodes, fabric=text)
    paths: Paths = {
        at: (f"leaf-{at // NODES_PER_LEAF}", f"pod-{at // NODES_PER_LEAF // LEAVES_PER_POD}", "cell")
        for at in range(nodes)
    }
    makers: dict[str, Callable[[], _Peer | _Ours]] = {
        "ours": lambda: _Ours(fleet),
        "Slurm tree": lambda: _Peer(fleet, slurm_tree(paths)),
        "Kueue TAS": lambda: _Peer(fleet, kueue(paths)),
        "KAI": lambda: _Peer(fleet, kai(paths)),
        "HiveD cells": lambda: _Peer(fleet, hived(paths)),
        "first fit": lambda: _Peer(fleet, first_fit),
        "random": lambda: _Peer(fleet, at_random(seed)),
    }
    return [_play(name, make(), paths, random.Random(seed), arrivals) for name, make in makers.items()]


def _play(name: str, policy: _Peer | _Ours, paths: Paths, dice: random.Random, arrivals: int) -> Near:
    near = Near(policy=name)
    nodes = len(paths)
    leaving: list[tuple[float, int, Job, tuple[Part, ...]]] = []
    for number in range(arrivals):
        while leaving and leaving[0][0] <= number:
            _, _, job, parts = heapq.heappop(leaving)
            policy.leave(job, parts)
        gpus = dice.choices(*zip(*SIZES, strict=True))[0]
        stays = dice.expovariate(1 / (STAYS * nodes / NODES))
        job = Job(number=number, at_ms=number, duration_ms=None, gpus=gpus)
        lowest = _lowest_rank(policy.grid, job, paths)
        parts = policy.place(job)
        near.asked += 1
        near.refused += parts is None
        if parts is not None:
            heapq.heappush(leaving, (number + stays, number, job, parts))
            _count(near, parts, policy.grid, paths, lowest)
        if number > arrivals // 4:
            near.looks += 1
            near.held += 1 - sum(policy.grid.whole) / (8 * nodes)
    return near


def _count(near: Near, parts: Sequence[Part], grid: Grid, paths: Paths, lowest: int | None) -> None:
    if len(parts) < 2:
        return
    near.several += 1
    rank = _rank([grid.at(part.node_id) for part in parts], paths)
    near.lowest += rank == lowest
    if len(parts) <= NODES_PER_LEAF:
        near.leaf_sized += 1
        near.in_a_leaf += rank == 0


def _rank(nodes: Sequence[int], paths: Paths) -> int:
    """Returns the rank of the lowest domain that has all of them."""
    return next(rank for rank in range(3) if len({paths[at][rank] for at in nodes}) == 1)


def _lowest_rank(grid: Grid, job: Job, paths: Paths) -> int | None:
    """Returns the rank of the lowest domain that could hold the gang on as few nodes as hold it at all, by counting."""
    for count, each in grid.shapes(job):
        able = grid.able(job, count, each)
        if len(able) < count:
            continue
        for rank in range(3):
            counts: dict[str, int] = {}
            for at in able:
                counts[paths[at][rank]] = counts.get(paths[at][rank], 0) + 1
            if max(counts.values()) >= count:
                return rank
    return None


def table(rows: Sequence[Near]) -> str:
    """Returns the rows as a Markdown table."""
    lines = [
        "| policy | gangs of several nodes | in the lowest domain that could hold them "
        "| in one leaf, of those that fit one | turned away | GPUs held |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.policy} | {row.several} | {row.lowest / max(1, row.several):.1%} "
        f"| {row.in_a_leaf / max(1, row.leaf_sized):.1%} | {row.refused / row.asked:.2%} "
        f"| {row.held / max(1, row.looks):.1%} |"
        for row in rows
    ]
    return "\n".join(lines)
