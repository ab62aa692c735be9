"""Cells of many nodes in a fabric, some of whose GPUs are held, for tests of placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from phalanx.core import messages as m
from phalanx.core.ids import new_gang_id
from phalanx.core.topology.codec import to_json
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode
from phalanx.core.topology.fabric_codec import fabric_to_json
from phalanx.core.topology.node import NodeTopology
from phalanx_control.scheduler.explain import why_it_waits
from phalanx_control.scheduler.fit import Place, find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import Rooms, rooms_of
from phalanx_control.state import commands as c
from phalanx_control.state.model import Gang, MemberState
from tests.support.builders import ANA, World, node_info, spec


def tree(leaves: Mapping[str, str], *, pods: Mapping[str, str] | None = None) -> Fabric:
    """``leaves``: the nodes of each leaf, as words; ``pods``: the leaves of each pod."""
    above = {leaf: pod for pod, names in (pods or {}).items() for leaf in names.split()}
    return Fabric(
        levels=("leaf", "pod"),
        domains=(
            *(Domain(id=pod, level="pod") for pod in pods or {}),
            *(Domain(id=leaf, level="leaf", parent=above.get(leaf)) for leaf in leaves),
        ),
        nodes=tuple(FabricNode(id=name, domain=leaf) for leaf, words in leaves.items() for name in words.split()),
    )


def looks_like(topology: NodeTopology, name: str, *, nvl: str | None = None) -> m.NodeInfo:
    """A node that looks like ``topology``, with GPUs of its own."""
    own = tuple(replace(gpu, uuid=f"{name}-gpu{gpu.index}") for gpu in topology.gpus)
    return replace(
        node_info(name, gpus=len(own)),
        topology=to_json(replace(topology, gpus=own, nvl_domain=nvl or topology.nvl_domain)),
    )


@dataclass(slots=True)
class Cell:
    """A state and the picture of it, in which GPUs are held that no log knows of."""

    world: World
    rooms: Rooms

    @classmethod
    def of(cls, fabric: Fabric | None, nodes: Iterable[m.NodeInfo] | None = None, *, gpus: int = 8) -> Cell:
        """``nodes``: by default all of the fabric."""
        named = fabric.nodes if fabric is not None else ()
        world = World(*(nodes if nodes is not None else (node_info(node.id, gpus=gpus) for node in named)))
        if fabric is not None:
            world.do(c.SetFabric(fabric=fabric_to_json(fabric)))
        world.register(spec())
        return cls(world, rooms_of(world.state))

    def hold(self, node_id: str, *gpus: int) -> Gang:
        """Lets a gang have these GPUs of a node."""
        member = m.Member(node_id=node_id, ranks=len(gpus), gpus=tuple(f"{node_id}-gpu{at}" for at in gpus))
        raw = f"{node_id}{gpus}".encode().ljust(16, b"-")[:16]
        members = (MemberState(member=member),)
        gang = Gang(id=new_gang_id(raw), fence=1, function_id=spec().function_id, owner=ANA, members=members)
        self.rooms.put(gang, self.world.state.functions[gang.function_id].spec)
        return gang

    def find(self, gpus: int, nodes: int = 0) -> Place | None:
        return find_place(Need(spec=spec(gpus=gpus, nodes=nodes), workspace="default"), self.rooms)

    def place(self, gpus: int, nodes: int = 0) -> Place:
        found = self.find(gpus, nodes)
        assert found is not None
        return found

    def nodes(self, gpus: int, nodes: int = 0) -> list[str]:
        """Returns the nodes that a gang would get, in rank order."""
        return [member.node_id for member in self.place(gpus, nodes).members]

    def why(self, gpus: int, nodes: int = 0) -> str:
        need = Need(spec=spec(gpus=gpus, nodes=nodes), workspace="default")
        return why_it_waits(need, self.rooms)
