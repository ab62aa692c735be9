"""Gangs on parts of several nodes, a port in twenty down: how many of their GPUs talk on a rail that all of them share.

Nodes like an HGX of eight H100s, each GPU with a port of its own on its own rail. Gangs of one node come and go until
the load is reached; then gangs on several nodes are placed, one at a time, on the same picture. On the nodes that our
scheduler chose, the GPUs are its own choice, the lowest free ones of each node, or any.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.fabric import fabric, node
from phalanx.core.ids import id_text
from phalanx.core.messages import Member, NodeInfo
from phalanx.core.spec import FunctionSpec, Resources
from phalanx.core.topology.fabric_codec import fabric_to_json
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.presets import preset
from phalanx_control.scheduler.fit import find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import Rooms, rooms_of
from phalanx_control.simulator.live import start_of
from phalanx_control.simulator.machines import Fleet
from phalanx_control.state.model import Gang, MemberState, Owner

NODES = 256
LOAD = 0.6
DOWN = 0.05
SHAPES = ((2, 2), (2, 4), (4, 2), (4, 4), (8, 2))
"""Nodes of a gang, and its GPUs on each."""
REQUESTS = 400
_OWNER = Owner(workspace="bench")


@dataclass(slots=True)
class Aligned:
    """Of one policy: for each gang, the share of its GPUs on a rail that is up on all of its nodes and used on all."""

    policy: str
    shares: list[float] = field(default_factory=list[float])


def measure(seed: int = 1) -> list[Aligned]:
    dice = random.Random(seed)
    look = preset("hgx_h100")
    up = {f"n{at}": frozenset(k for k in range(8) if dice.random() >= DOWN) for at in range(NODES)}
    nodes = tuple(node(at, _with_ports(look, up[f"n{at}"])) for at in range(NODES))
    rooms = rooms_of(start_of(Fleet(name="rails", nodes=nodes, fabric=fabric_to_json(fabric(NODES)))))
    _fill(rooms, dice)
    rows = [Aligned("ours"), Aligned("lowest free"), Aligned("random")]
    index = {gpu.uuid: gpu.index for each in nodes for gpu in each.gpus}
    for at in range(REQUESTS):
        count, each = SHAPES[at % len(SHAPES)]
        place = find_place(_need(count * each, count), rooms)
        if place is None:
            continue
        names = [member.node_id for member in place.members]
        free = [[gpu.info.index for gpu in rooms[name].gpus if gpu.free] for name in names]
        chosen = (
            [[index[gpu] for gpu in member.gpus] for member in place.members],
            [there[:each] for there in free],
            [dice.sample(there, each) for there in free],
        )
        for row, gpus in zip(rows, chosen, strict=True):
            common = frozenset.intersection(*(up[name] & frozenset(own) for name, own in zip(names, gpus, strict=True)))
            row.shares.append(len(common) / each)
        _disturb(rooms, dice)
    return rows


def _with_ports(look: NodeTopology, up: frozenset[int]) -> NodeTopology:
    return replace(look, nics=tuple(replace(nic, up=nic.rail in up) for nic in look.nics))


def _need(gpus: int, nodes: int) -> Need:
    spec = FunctionSpec(name=f"f{gpus}", resources=Resources(gpus=gpus, nodes=nodes))
    return Need(spec=spec, workspace=_OWNER.workspace)


def _fill(rooms: Rooms, dice: random.Random) -> None:
    """Holds GPUs at random, as a fleet is after months: not packed by anybody."""
    for room in rooms.values():
        for at in range(8):
            if dice.random() < LOAD:
                _hold(rooms, room.node.info, at)


def _hold(rooms: Rooms, info: NodeInfo, at: int) -> None:
    need = _need(1, 1)
    member = Member(node_id=info.node_id, ranks=1, gpus=(info.gpus[at].uuid,))
    raw = f"{info.node_id}/{at}".encode().ljust(16, b"-")[:16]
    members = (MemberState(member=member),)
    rooms.put(Gang(id=id_text("g", raw), fence=0, function_id="f1", owner=_OWNER, members=members), need.spec)


def _disturb(rooms: Rooms, dice: random.Random) -> None:
    """Lets one gang of one GPU end and another begin elsewhere."""
    gone = dice.choice(sorted(rooms.gangs))
    rooms.take_out(gone)
    open_ = [(room, gpu.info.index) for room in rooms.values() for gpu in room.gpus if gpu.free]
    room, at = dice.choice(open_)
    _hold(rooms, room.node.info, at)


def table(rows: Sequence[Aligned]) -> str:
    """Returns the rows as a Markdown table."""
    lines = ["| GPUs of each node | gangs | GPUs on a rail that all share and that is up | gangs with all of theirs |"]
    lines += ["|---|---|---|---|"]
    lines += [
        f"| {row.policy} | {len(row.shares)} | {sum(row.shares) / max(1, len(row.shares)):.1%} "
        f"| {sum(share == 1 for share in row.shares) / max(1, len(row.shares)):.1%} |"
        for row in rows
    ]
    return "\n".join(lines)
