"""The cell's fabric: told by its operators, shown to everybody with what agents know of their nodes."""

from __future__ import annotations

import asyncio

from phalanx.core.topology.fabric_codec import fabric_to_json
from phalanx.wire_errors import NotAllowedError
from phalanx_control.scheduler.cell_fabric import absent_nodes, known_fabric
from phalanx_control.service.ports import ControllerPort
from phalanx_control.service.tokens import OPERATORS, is_operator
from phalanx_control.state.commands import SetFabric
from phalanx_control.state.model import State
from phalanx_proto.v1 import control_pb2


class FabricDesk:
    """Serves the RPCs of the fabric for the present caller."""

    def __init__(self, controller: ControllerPort) -> None:
        self._controller = controller

    async def set(self, fabric: str) -> control_pb2.FabricText:
        """Keeps the fabric, or forgets it where ``fabric`` is empty, and returns what is known then."""
        if not is_operator():
            raise NotAllowedError(f"only admins of {OPERATORS!r} say what the network between nodes looks like")
        await self._controller.execute(SetFabric(fabric=fabric))
        return await self.get()

    async def get(self) -> control_pb2.FabricText:
        """Reads every node's topology, which takes a moment in a large cell: not on the loop."""
        return await asyncio.to_thread(_text, self._controller.state)


def _text(state: State) -> control_pb2.FabricText:
    return control_pb2.FabricText(
        fabric=fabric_to_json(known_fabric(state)), is_set=bool(state.fabric), absent=absent_nodes(state)
    )
