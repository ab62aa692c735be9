"""A picture of what is free, made once per scheduling pass and then written on as places are given away.

Nothing is read from stored counters: room is inventory minus leases and marks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from phalanx.core import played
from phalanx.core.messages import GpuInfo
from phalanx.core.spec import FunctionSpec
from phalanx.core.states import GangState
from phalanx.core.topology.names import natural_key
from phalanx.policy import policy_from_json
from phalanx_control.scheduler.cell_fabric import Area, CellFabric, Spot, cell_fabric
from phalanx_control.scheduler.kinds import GpuKind
from phalanx_control.state import queries
from phalanx_control.state.amounts import Amount, held_by
from phalanx_control.state.model import Gang, MemberState, Node, State

CPU_GANGS_AT_LEAST = 8
"""CPU gangs that a node takes however few cores it has; otherwise two per core."""
if TYPE_CHECKING:
    from phalanx_control.scheduler.candidates import Candidates
    from phalanx_control.scheduler.reserve import Timetable
    from phalanx_control.scheduler.shares import Book

_EPSILON = 1e-9
_NOTHING = Amount()
_COUNTS_KEPT = 65_536
_CHANGES_KEPT = 100_000


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
        self.holders = tuple(sorted((*self.holders, gang.id)))
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
    id: str
    at: int
    """Where it stands among the cell's nodes, ordered by name as people do."""
    spot: Spot
    cpus: float
    memory_bytes: float
    open: bool = True
    """It takes work."""
    cpu_gangs: int = 0
    gangs: int = 0
    gpu_gangs: int = 0
    isolated: int = 0
    """Gangs that keep others off the node."""
    could_hold: dict[object, bool] = field(default_factory=dict[object, bool])
    """Whether it could take a part of a gang once everything on it has ended, by what that needs."""
    _matching: dict[GpuKind, list[GpuRoom]] = field(default_factory=dict[GpuKind, list[GpuRoom]])
    _gpus: list[GpuRoom] | None = None
    """Made when first looked at: most nodes of a large cell are not, in one pass."""
    _free: dict[GpuKind, list[GpuRoom]] | None = None
    """By model; forgotten when something is taken or given back."""

    def become(self, node: Node, spot: Spot) -> None:
        """Starts anew, empty, as what the node is now."""
        self.node, self.spot, self.open = node, spot, node.takes_work
        self.cpus, self.memory_bytes = node.info.cpus, node.info.memory_bytes
        self.cpu_gangs = self.gangs = self.gpu_gangs = self.isolated = 0
        self._gpus = self._free = None
        self._matching.clear()
        self.could_hold.clear()

    @property
    def gpus(self) -> list[GpuRoom]:
        if self._gpus is None:
            marks = self.node.marks
            gpus = sorted(self.node.info.gpus, key=_by_index)
            self._gpus = [GpuRoom(info=gpu, usable=gpu.uuid not in marks) for gpu in gpus]
        return self._gpus

    def matching(self, model: GpuKind) -> list[GpuRoom]:
        """Returns the GPUs that will do, free or not."""
        found = self._matching.get(model)
        if found is None:
            found = self._matching[model] = [g for g in self.gpus if model.fits(g.info)]
        return found

    def free(self, model: GpuKind) -> list[GpuRoom]:
        """Returns the whole GPUs that could be leased now, lowest index first."""
        if self._free is None:
            self._free = {}
        found = self._free.get(model)
        if found is None:
            found = self._free[model] = [g for g in self.gpus if g.free and model.fits(g.info)]
        return found

    def count_free(self, model: GpuKind) -> int:
        """Returns how many `free` has."""
        if self._gpus is None and not self.node.marks:
            return _count_matching(self.node, model)
        return len(self.free(model))

    def emptied(self) -> NodeRoom:
        """Returns the node as it would be if everything on it had ended."""
        info = self.node.info
        return NodeRoom(self.node, self.id, self.at, self.spot, info.cpus, info.memory_bytes, self.open)

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
        self._free = None
        return [g for g in self.gpus if g.info.uuid in member.member.gpus]

    def _count(self, spec: FunctionSpec, ranks: int, *, sign: int) -> None:
        self.gangs += sign
        self.isolated += sign * (spec.resources.isolation == "node")
        self.gpu_gangs += sign * (spec.resources.gpus > 0)
        self.cpu_gangs += sign * (spec.resources.gpus == 0)
        self.cpus -= sign * spec.resources.cpus * ranks
        self.memory_bytes -= sign * spec.resources.memory_gb * 1e9 * ranks

    def admits(self, spec: FunctionSpec) -> bool:
        """Says whether a gang of the function may be beside what is there."""
        return not self.gangs or not (self.isolated or spec.resources.isolation == "node")

    @property
    def holders(self) -> frozenset[str]:
        """The gangs that hold GPUs of the node."""
        return frozenset(holder for gpu in self.gpus for holder in gpu.holders)

    def has_room_beside_gpus(self, spec: FunctionSpec, ranks: int, freed: Amount = _NOTHING) -> bool:
        """Says whether cores and memory suffice for ``ranks`` more, once ``freed`` is; 0 in the inventory means
        unknown, not none.
        """
        need = spec.resources
        if self.node.info.cpus and need.cpus * ranks > self.cpus + freed.cpus + _EPSILON:
            return False
        memory_gb = self.memory_bytes / 1e9 + freed.memory_gb
        if self.node.info.memory_bytes and need.memory_gb * ranks > memory_gb + _EPSILON:
            return False
        return need.gpus > 0 or self.cpu_gangs < self.cpu_gangs_at_most

    @property
    def cpu_gangs_at_most(self) -> int:
        """None on a node whose GPUs are played: it runs nothing."""
        return 0 if self.played else max(CPU_GANGS_AT_LEAST, 2 * self.node.info.cpus)

    @property
    def played(self) -> bool:
        """Says whether the node is one that functions must ask for by that word."""
        gpus = self.node.info.gpus
        return bool(gpus) and played.is_played(gpus[0].model)


class Rooms(dict[str, NodeRoom]):
    """Every node by name, in natural order, in one fabric, and the gangs that are on them."""

    def __init__(self, state: State) -> None:
        self.fabric = cell_fabric(state.fabric)
        names = _natural_order(tuple(state.nodes))
        super().__init__((name, _empty(state.nodes[name], at, self.fabric)) for at, name in enumerate(names))
        self.gangs: dict[str, Held] = {}
        self.lines: defaultdict[Line, Usable] = defaultdict(Usable)
        self.users: dict[User, Holding] = {}
        self.preemptible: dict[str, float] = {}
        """Ids of gangs that may be told to give way, and how many GPUs they hold."""
        self.draining: dict[str, None] = {}
        """Ids of gangs that have been told to end."""
        self.unsure: set[str] = set()
        """Ids of gangs of which something was written that the next state may not say, should it not come about."""
        self.memory = Memory(policy_from_json(state.policy).half_life_s * 1000, state.log_ms)
        self.candidates: dict[object, Candidates] = {}
        """By what a part of a gang needs; made when first asked for, and brought up to date when asked for again."""
        self._most_of: dict[GpuKind, int] = {}
        self.sizes: Counter[Size] = Counter()
        """How many gangs there are of each size."""
        self.books: dict[object, Book] = {}
        """Offers of nodes for fractions, by what is asked; kept as the candidates are."""
        self.timetables: dict[object, Timetable] = {}
        """When nodes have room, by what a part of a gang needs; kept as the candidates are."""
        self.changes: list[str] = []
        """Names of nodes on which something changed, in order; ``ends``: also those on which only the time changed at
        which something ends.
        """
        self.ends: list[str] = []

    @cached_property
    def taking(self) -> list[NodeRoom]:
        """The nodes that take work, those whose GPUs are played too."""
        return [room for room in self.values() if room.open]

    @cached_property
    def nodes_in(self) -> Counter[Area]:
        """How many of the cell's nodes stand in each area."""
        return Counter(area for room in self.values() for area in room.spot)

    @cached_property
    def shut(self) -> list[NodeRoom]:
        """The nodes that take none."""
        return [room for room in self.values() if not room.open]

    @cached_property
    def played(self) -> tuple[list[NodeRoom], list[NodeRoom]]:
        """Of those that take work: whose GPUs are real, and whose are played."""
        return [room for room in self.taking if not room.played], [room for room in self.taking if room.played]

    def most_of(self, kind: GpuKind) -> int:
        """Returns how many GPUs that will do a node that takes work has at most, free or not."""
        found = self._most_of.get(kind)
        if found is None:
            found = max((len(room.matching(kind)) for room in self.taking), default=0)
            self._most_of[kind] = found
        return found

    @cached_property
    def total(self) -> Amount:
        """What the nodes that take work have, GPUs that cannot be leased left out."""
        rooms = [room for room in self.values() if room.open and not room.played]
        gpus = sum(len(room.node.info.gpus) - len(room.node.marks) for room in rooms)
        memory_gb = sum(room.node.info.memory_bytes for room in rooms) / 1e9
        return Amount(gpus, sum(room.node.info.cpus for room in rooms), memory_gb)

    @cached_property
    def largest(self) -> int:
        """How many GPUs any node has at most, free or not."""
        return max((len(room.node.info.gpus) for room in self.values()), default=0)

    def put(self, gang: Gang, spec: FunctionSpec) -> None:
        """Writes what a gang still holds into the picture."""
        self.gangs[gang.id] = Held(gang, spec)
        self.unsure.add(gang.id)
        if gang.state is GangState.DRAINING:
            self.draining[gang.id] = None
        self.sizes[size_of(spec)] += 1
        self.lines[line_of(gang)].add(gang)
        if spec.preemptible:
            self.preemptible[gang.id] = held_by(gang, spec).gpus
        user = (gang.owner.workspace, gang.owner.user)
        self.users.setdefault(user, Holding()).add(gang, spec, self.memory, sign=1)
        for member in gang.members:
            if not member.ended:
                room = self[member.member.node_id]
                room.take(gang, member, spec)
                self.notice(room)

    def take_out(self, gang_id: str) -> None:
        """Writes the picture as if the gang had ended."""
        gang, spec = self.gangs.pop(gang_id)
        self.unsure.add(gang_id)
        self.draining.pop(gang_id, None)
        self.sizes[size_of(spec)] -= 1
        self.lines[line_of(gang)].remove(gang)
        self.preemptible.pop(gang_id, None)
        user = (gang.owner.workspace, gang.owner.user)
        self.users[user].add(gang, spec, self.memory, sign=-1)
        if not self.users[user].gangs:
            del self.users[user]
        for member in gang.members:
            if not member.ended:
                room = self[member.member.node_id]
                room.give_back(gang, member, spec)
                self.notice(room)

    def see(self, gang: Gang) -> None:
        """The gang's record is a newer one, which holds the same."""
        known = self.gangs[gang.id]
        self.draining.pop(gang.id, None)
        if gang.state is GangState.DRAINING:
            self.draining[gang.id] = None
        self.gangs[gang.id] = known._replace(gang=gang)
        self.lines[line_of(gang)].remove(known.gang)
        self.lines[line_of(gang)].add(gang)
        for member in gang.members:
            self.ends.append(member.member.node_id)
        self._forget_old_changes()

    def leaves(self, gang: Gang) -> None:
        """The gang is told to end."""
        self.see(gang)
        self.unsure.add(gang.id)

    def renew(self, node: Node) -> None:
        """The node is another than it was: what is on it stays on it."""
        room = self[node.info.node_id]
        for candidates in self.candidates.values():
            candidates.drop(room)
        room.become(node, self.fabric.spot(node))
        for derived in ("largest", "total", "taking", "shut", "played", "nodes_in"):
            self.__dict__.pop(derived, None)
        self._most_of.clear()
        for gang, spec in self.gangs.values():
            for member in gang.members:
                if member.member.node_id == room.id and not member.ended:
                    room.take(gang, member, spec)
        self.notice(room)

    def notice(self, room: NodeRoom) -> None:
        """Something changed on a node."""
        self.changes.append(room.id)
        self.ends.append(room.id)
        self._forget_old_changes()

    def _forget_old_changes(self) -> None:
        if len(self.ends) > _CHANGES_KEPT:
            self.changes.clear()
            self.ends.clear()
            self.candidates.clear()
            self.books.clear()
            self.timetables.clear()


User = tuple[str, str]
"""Workspace and user."""


class Memory(NamedTuple):
    """How what is held is forgotten, and from when on the picture counts."""

    half_life_ms: float
    since_ms: int


_MOST_HALF_LIVES = 1000.0
"""What comes after so many is far beyond what anybody remembers."""


@dataclass(slots=True)
class Holding:
    """What the gangs of one user hold. ``firm_gpus``: of those that give way to nobody. ``begun``: what each of them
    holds, times two to the number of half-lives at which it began: enough to say what all have held by any time.
    """

    amount: Amount = _NOTHING
    firm_gpus: float = 0
    begun: Amount = _NOTHING
    gangs: int = 0

    def add(self, gang: Gang, spec: FunctionSpec, memory: Memory, *, sign: int) -> None:
        held = held_by(gang, spec)
        began = 2.0 ** min(_MOST_HALF_LIVES, (gang.created_ms - memory.since_ms) / memory.half_life_ms)
        self.amount = self.amount.plus(held, times=sign)
        self.begun = self.begun.plus(held, times=sign * began)
        self.firm_gpus += 0 if spec.preemptible else sign * held.gpus
        self.gangs += sign

    def average(self, memory: Memory, now_ms: int) -> Amount:
        """Returns what these gangs have held on average, the past forgotten by half in each half-life."""
        left = 0.5 ** ((now_ms - memory.since_ms) / memory.half_life_ms)
        return self.amount.plus(self.begun, times=-left)


@dataclass(slots=True)
class Usable:
    """The gangs that calls of one function and tenant can use: warm ones by how many logged calls they have, none or
    one, and the ids of those that start.
    """

    warm: tuple[dict[str, Gang], dict[str, Gang]] = field(default_factory=lambda: ({}, {}))
    starting: set[str] = field(default_factory=set[str])

    def add(self, gang: Gang) -> None:
        if gang.state in queries.STARTING:
            self.starting.add(gang.id)
        elif gang.state in queries.WARM and len(gang.calls) < len(self.warm):
            self.warm[len(gang.calls)][gang.id] = gang

    def remove(self, gang: Gang) -> None:
        self.starting.discard(gang.id)
        for known in self.warm:
            known.pop(gang.id, None)


class Size(NamedTuple):
    """What a function asks for that decides where its gangs fit: GPUs and cores, and which GPUs."""

    gpus: float
    cpus: float
    launch: str
    kind: GpuKind


def size_of(spec: FunctionSpec) -> Size:
    need = spec.resources
    return Size(need.gpus, need.cpus, spec.launch, GpuKind(need.gpu, need.min_memory_gb))


class Held(NamedTuple):
    """A gang in the picture."""

    gang: Gang
    spec: FunctionSpec


Line = tuple[str, str]
"""Function id and workspace: calls that can use the same gangs."""


def line_of(gang: Gang) -> Line:
    return gang.function_id, gang.owner.workspace


def rooms_of(state: State) -> Rooms:
    """Returns the picture of every node, made anew."""
    rooms = Rooms(state)
    for gang in state.gangs.values():
        rooms.put(gang, state.functions[gang.function_id].spec)
    return rooms


def empty_room(node: Node) -> NodeRoom:
    """Returns the picture of one node as if nothing were leased."""
    return _empty(node, 0, cell_fabric(""))


def _empty(node: Node, at: int, fabric: CellFabric) -> NodeRoom:
    info = node.info
    return NodeRoom(node, info.node_id, at, fabric.spot(node), info.cpus, info.memory_bytes, node.takes_work)


@lru_cache(maxsize=8)
def _natural_order(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names, key=natural_key))


class _Counts:
    """How many GPUs of a model a node has, remembered for as long as its record is the same one."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Node, dict[GpuKind, int]]] = {}

    def of(self, node: Node, model: GpuKind) -> int:
        seen = self._seen.get(node.info.node_id)
        if seen is None or seen[0] is not node:
            if len(self._seen) >= _COUNTS_KEPT:
                self._seen.clear()
            seen = self._seen[node.info.node_id] = (node, {})
        count = seen[1].get(model)
        if count is None:
            count = seen[1][model] = sum(model.fits(gpu) for gpu in node.info.gpus)
        return count


_count_matching = _Counts().of


def _by_index(gpu: GpuInfo) -> int:
    return gpu.index
