"""Where a gang goes: all of it or nothing. The fewest nodes, the same number of GPUs on each, tightest first.

Gives places on a picture of what is free; decides nothing about who is served first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from phalanx.core.messages import Member
from phalanx.core.spec import FunctionSpec
from phalanx_control.scheduler.nearest import Picked, pick
from phalanx_control.scheduler.room import GpuRoom, NodeRoom, Rooms


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Members in rank order, and the sentence that says why these."""

    members: tuple[Member, ...]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one gang asks for, of one tenant."""

    spec: FunctionSpec
    workspace: str

    @property
    def model(self) -> str:
        return self.spec.resources.gpu

    @property
    def gpus(self) -> int:
        """Whole GPUs of the gang; 0 for fractions and CPU functions."""
        return int(self.spec.resources.gpus)

    @property
    def share(self) -> float:
        """The part of one GPU, for functions that ask for less than one; else 0."""
        asked = self.spec.resources.gpus
        return asked if 0 < asked < 1 else 0

    def node_counts(self, nodes: int) -> Iterator[int]:
        """Yields the numbers of nodes that the gang may be spread over, fewest first."""
        wanted = self.spec.resources.nodes
        if self.spec.launch == "single" or not self.gpus:
            counts: Iterable[int] = (1,)
        else:
            counts = (wanted,) if wanted else range(1, min(nodes, self.gpus) + 1)
        return (n for n in counts if n <= nodes and (not self.gpus or self.gpus % n == 0))

    def ranks_on_node(self, nodes: int) -> int:
        """Returns how many ranks each of ``nodes`` nodes gets."""
        if self.spec.launch == "per_gpu":
            return max(1, self.gpus // nodes)
        return 1


def find_place(need: Need, rooms: Rooms, *, barred: frozenset[str] = frozenset()) -> Place | None:
    """Returns where the gang fits now, leaving out ``barred`` nodes; None when it does not."""
    usable = [room for room in rooms.values() if room.open and room.id not in barred]
    if need.share:
        return _share_place(need, usable)
    if not need.gpus:
        return _cpu_place(need, usable)
    for count in need.node_counts(len(usable)):
        chosen = _tightest(need, usable, count)
        if chosen is not None:
            return _whole_place(need, chosen)
    return None


def _tightest(need: Need, rooms: list[NodeRoom], count: int) -> list[tuple[NodeRoom, Picked]] | None:
    """Returns the fullest nodes that hold the gang, and which of their GPUs it gets."""
    each = need.gpus // count
    fitting = [
        (len(room.free(need.model)), room.id, room)
        for room in rooms
        if len(room.free(need.model)) >= each and room.has_room_beside_gpus(need.spec, need.ranks_on_node(count))
    ]
    chosen: list[tuple[NodeRoom, Picked]] = []
    for _, _, room in sorted(fitting, key=lambda f: f[:2]) if len(fitting) >= count else ():
        picked = pick(room, need.model, each)
        if picked is not None:
            chosen.append((room, picked))
        if len(chosen) == count:
            return sorted(chosen, key=lambda c: c[0].id)
    return None


def _whole_place(need: Need, chosen: list[tuple[NodeRoom, Picked]]) -> Place:
    ranks = need.ranks_on_node(len(chosen))
    members = tuple(
        _member(room, picked.gpus, first_rank=i * ranks, ranks=ranks) for i, (room, picked) in enumerate(chosen)
    )
    where = " and ".join(f"{len(picked.gpus)} on {room.id} ({indices(picked.gpus)})" for room, picked in chosen)
    nodes = "one node" if len(chosen) == 1 else f"{len(chosen)} nodes"
    why = f"{nodes} as asked" if need.spec.resources.nodes else f"the fewest nodes that fit: {nodes}"
    links = "".join(f"; {picked.why}" for _, picked in chosen[:1] if picked.why)
    return Place(members=members, sentence=f"{count_gpus(need.gpus)}: {where}, {why}{links}")


def _share_place(need: Need, rooms: list[NodeRoom]) -> Place | None:
    fitting = [
        (-gpu.taken, room.id, gpu.info.index, room, gpu)
        for room in rooms
        if room.has_room_beside_gpus(need.spec, 1)
        for gpu in room.matching(need.model)
        if gpu.fits_share(need.share, need.workspace)
    ]
    if not fitting:
        return None
    _, _, _, room, gpu = min(fitting, key=lambda f: f[:3])
    beside = f"beside {len(gpu.holders)} more" if gpu.holders else "nobody else on it"
    return Place(
        members=(_member(room, (gpu,), share=need.share),),
        sentence=f"{need.share:g} of GPU {gpu.info.index} on {room.id}, {beside}",
    )


def _cpu_place(need: Need, rooms: list[NodeRoom]) -> Place | None:
    fitting = [room for room in rooms if room.has_room_beside_gpus(need.spec, 1)]
    if not fitting:
        return None
    room = min(fitting, key=lambda room: (room.cpu_gangs, room.gangs, room.id))
    return Place(members=(_member(room, ()),), sentence=f"no GPU, on {room.id}, the least loaded node")


def _member(
    room: NodeRoom, gpus: Sequence[GpuRoom], *, first_rank: int = 0, ranks: int = 1, share: float = 1
) -> Member:
    return Member(
        node_id=room.id,
        first_rank=first_rank,
        ranks=ranks,
        gpus=tuple(g.info.uuid for g in gpus),
        share=share,
        data_address=room.node.info.data_address,
        fingerprint=room.node.info.fingerprint,
    )


def indices(gpus: Sequence[GpuRoom]) -> str:
    """Writes GPU indices as people do: ``0-3, 6``."""
    runs: list[list[int]] = []
    for index in sorted(g.info.index for g in gpus):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def count_gpus(count: float, model: str = "") -> str:
    """Writes ``1 GPU``, ``8 H100 GPUs``."""
    words = f"{model.replace('|', ' or ')} " if model else ""
    return f"{count:g} {words}GPU{'' if count == 1 else 's'}"
