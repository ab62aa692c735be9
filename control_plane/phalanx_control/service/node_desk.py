"""What admins say of nodes: cordoned, draining, ready again. Nodes run every workspace's work, so operators only."""

from __future__ import annotations

from phalanx.core.errors import InvalidSpecError
from phalanx.core.states import NodeState
from phalanx.core.views import NodeView
from phalanx.wire_errors import NotAllowedError
from phalanx_control.service.caller import caller
from phalanx_control.service.ports import ControllerPort
from phalanx_control.service.queries import Queries
from phalanx_control.service.tokens import OPERATORS, is_operator
from phalanx_control.state.commands import SetNodeState
from phalanx_proto.v1 import control_pb2

_SAID = (NodeState.READY, NodeState.CORDONED, NodeState.DRAINING)


class NodeDesk:
    """Serves the RPC for the present caller."""

    def __init__(self, controller: ControllerPort, queries: Queries) -> None:
        self._controller = controller
        self._queries = queries

    async def set_state(self, request: control_pb2.NodeStateRequest) -> NodeView:
        """Returns the node as it is then."""
        if not is_operator():
            raise NotAllowedError(f"only admins of {OPERATORS!r} take nodes out of use, or give them back")
        if request.state not in _SAID:
            raise InvalidSpecError(
                f"state {request.state[:40]!r}: use one of {', '.join(repr(s.value) for s in _SAID)}"
            )
        deadline_ms = request.deadline_in_ms
        command = SetNodeState(
            node_id=request.node_id,
            state=NodeState(request.state),
            by=caller().owner.user,
            reason=request.reason,
            deadline_in_ms=deadline_ms if deadline_ms >= 0 else None,
        )
        await self._controller.execute(command)
        return self._queries.node(request.node_id)
