"""A picture of what is free, made once per scheduling pass and then written on as places are given away.

Nothing is read from stored counters: room is inventory minus leases and marks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from phalanx.core.messages import GpuInfo
from phalanx.core.spec import FunctionSpec
from phalanx.core.states import NodeState
from phalanx_control.state.model import Gang, MemberState, Node, State

CPU_GANGS_AT_LEAST = 8
"""CPU gangs that a node takes however few cores it has; otherwise two per core."""
_EPSILON = 1e-9


@dataclass(slots=True)
class GpuRoom:
    """One GPU: how much of it is leased, by whom, and whether it can be leased at all."""

    info: GpuInfo
    usable: bool = True
    taken: float = 0
    whole: bool = False
    holders: tuple[str, ...] = ()
    workspaces: frozenset[str] = frozenset()

    @property
    def free(self) -> bool:
        return self.usable and not self.holders

    def fits_share(self, share: float, workspace: str) -> bool:
        """Says whether a fraction fits beside what is there. Tenants never share a GPU."""
        alone = not self.holders
        beside = not self.whole and self.workspaces <= {workspace} and self.taken + share <= 1 + _EPSILON
        return self.usable and (alone or beside)

    def take(self, gang: Gang, share: float) -> None:
        self.taken += share
        self.whole = self.whole or share >= 1
        self.holders = (*self.holders, gang.id)
        self.workspaces |= {gang.owner.workspace}

    def give_back(self, gang: Gang, share: float) -> None:
        self.holders = tuple(h for h in self.holders if h != gang.id)
        self.taken = self.taken - share if self.holders else 0
        self.whole = self.whole and bool(self.holders)
        self.workspaces = self.workspaces if self.holders else frozenset()


@dataclass(slots=True)
class NodeRoom:
    """One node: its GPUs by index, and cores and bytes that no gang has asked for."""

    node: Node
    gpus: list[GpuRoom]
    cpus: float
    memory_bytes: float
    cpu_gangs: int = 0
    gangs: int = 0
    _free: dict[str, list[GpuRoom]] = field(default_factory=dict[str, list[GpuRoom]])
    """By model; forgotten when something is taken or given back."""

    @property
    def id(self) -> str:
        return self.node.info.node_id

    @property
    def open(self) -> bool:
        return self.node.state is NodeState.READY

    def matching(self, model: str) -> list[GpuRoom]:
        """Returns the GPUs whose model fits, free or not."""
        return [g for g in self.gpus if model_matches(model, g.info.model)]

    def free(self, model: str) -> list[GpuRoom]:
        """Returns the whole GPUs that could be leased now, lowest index first."""
        found = self._free.get(model)
        if found is None:
            found = self._free[model] = [g for g in self.gpus if g.free and model_matches(model, g.info.model)]
        return found

    def take(self, gang: Gang, member: MemberState, spec: FunctionSpec) -> None:
        """Writes a gang's part on this node into the picture."""
        for gpu in self._leased(member):
            gpu.take(gang, member.member.share)
        self._count(spec, member.member.ranks, sign=1)

    def give_back(self, gang: Gang, member: MemberState, spec: FunctionSpec) -> None:
        """Imagines that the gang's part on this node had ended."""
        for gpu in self._leased(member):
            gpu.give_back(gang, member.member.share)
        self._count(spec, member.member.ranks, sign=-1)

    def _leased(self, member: MemberState) -> list[GpuRoom]:
        self._free.clear()
        return [g for g in self.gpus if g.info.uuid in member.member.gpus]

    def _count(self, spec: FunctionSpec, ranks: int, *, sign: int) -> None:
        self.gangs += sign
        self.cpu_gangs += sign * (spec.resources.gpus == 0)
        self.cpus -= sign * spec.resources.cpus * ranks
        self.memory_bytes -= sign * spec.resources.memory_gb * 1e9 * ranks

    def has_room_beside_gpus(self, spec: FunctionSpec, ranks: int) -> bool:
        """Says whether cores and memory suffice for ``ranks`` more; 0 in the inventory means unknown, not none."""
        need = spec.resources
        if self.node.info.cpus and need.cpus * ranks > self.cpus + _EPSILON:
            return False
        if self.node.info.memory_bytes and need.memory_gb * 1e9 * ranks > self.memory_bytes + _EPSILON:
            return False
        return need.gpus > 0 or self.cpu_gangs < self.cpu_gangs_at_most

    @property
    def cpu_gangs_at_most(self) -> int:
        return max(CPU_GANGS_AT_LEAST, 2 * self.node.info.cpus)


Rooms = dict[str, NodeRoom]


def rooms_of(state: State) -> Rooms:
    """Returns the picture of every node, in the order of their names."""
    rooms = {node_id: empty_room(state.nodes[node_id]) for node_id in sorted(state.nodes)}
    for gang in state.gangs.values():
        put_in(state, gang, rooms)
    return rooms


def put_in(state: State, gang: Gang, rooms: Rooms) -> None:
    """Writes what a gang still holds into the picture."""
    spec = state.functions[gang.function_id].spec
    for member in gang.members:
        if not member.ended:
            rooms[member.member.node_id].take(gang, member, spec)


def take_out(state: State, gang: Gang, rooms: Rooms) -> None:
    """Imagines that a gang had ended."""
    spec = state.functions[gang.function_id].spec
    for member in gang.members:
        if not member.ended:
            rooms[member.member.node_id].give_back(gang, member, spec)


def empty_room(node: Node) -> NodeRoom:
    """Returns the picture of one node as if nothing were leased."""
    gpus = [GpuRoom(info=g, usable=g.uuid not in node.marks) for g in sorted(node.info.gpus, key=_by_index)]
    return NodeRoom(node=node, gpus=gpus, cpus=node.info.cpus, memory_bytes=node.info.memory_bytes)


def _by_index(gpu: GpuInfo) -> int:
    return gpu.index


@lru_cache(maxsize=1024)
def model_matches(wanted: str, model: str) -> bool:
    """``"H100|H200"`` fits any model with one of these words in it, whatever the case; "" fits all."""
    words = [word.strip().lower() for word in wanted.split("|") if word.strip()]
    return not words or any(word in model.lower() for word in words)
