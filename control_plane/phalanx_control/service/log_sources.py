"""Where a call's output and a function's warm gang are: addresses of agents, with tickets, or stored segments.

Only looks things up; whether the caller may know of the call or the function was asked before.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.core.states import GangState, NodeState
from phalanx.core.views import GangAddress, LogSource
from phalanx_control.blobs import BlobStore, is_report, segment_gang, segment_owner
from phalanx_control.service.ticket_office import TicketOffice
from phalanx_control.state.model import Call, Gang, Node, Owner, State

_OPEN_GANGS = (GangState.READY, GangState.BUSY)
_REACHABLE = (NodeState.READY, NodeState.CORDONED, NodeState.DRAINING)


class Directory:
    """Answers for one cell."""

    def __init__(self, tickets: TicketOffice, blobs: BlobStore) -> None:
        self._tickets = tickets
        self._blobs = blobs

    def gang_address(
        self, state: State, function_id: str, owner: Owner, depth: Callable[[str], int], *, gang_id: str = ""
    ) -> GangAddress:
        """Returns the function's gang with the shortest queue, or ``gang_id``, and a ticket to it, or an address with
        no ticket."""
        open_gangs = [
            gang
            for gang in state.gangs.values()
            if _serves(gang, function_id, owner) and (not gang_id or gang.id == gang_id)
        ]
        for gang in sorted(open_gangs, key=lambda gang: (depth(gang.id), gang.id)):
            node = state.nodes.get(gang.lead)
            if node is not None and node.state in _REACHABLE and _has_data_plane(node):
                return GangAddress(
                    gang_id=gang.id,
                    node_id=gang.lead,
                    unix_path=node.info.unix_path,
                    data_address=node.info.data_address,
                    fingerprint=node.info.fingerprint,
                    ticket=self._tickets.for_calls(gang, node, owner),
                )
        return GangAddress()

    async def log_sources(self, state: State, call: Call, owner: Owner) -> tuple[LogSource, ...]:
        """Returns the agents of the call's living gang; the stored segments for nodes and gangs that are gone, so also
        for the gangs of earlier attempts.

        An agent says that its part of a gang has ended when the last segment is stored.
        """
        gang = state.gangs.get(call.gang_id)
        running = () if gang is None else (m.member.node_id for m in gang.members if not m.ended)
        living = [node for node_id in running if (node := _living(state, node_id))]
        sources = [self._agent(call, node, owner) for node in living]
        served = {node.info.node_id for node in living}
        stored = await self.stored(call.id)
        return (*sources, *(each for each in stored if each.node_id not in served or _of_another(each, call.gang_id)))

    def debug_sources(self, state: State, call: Call, owner: Owner) -> tuple[LogSource, ...]:
        """Returns the agents of the call's living gang, with tickets to terminals; none once it is gone."""
        gang = state.gangs.get(call.gang_id)
        running = () if gang is None else (m.member.node_id for m in gang.members if not m.ended)
        living = [node for node_id in running if (node := _living(state, node_id))]
        return tuple(
            LogSource(
                node_id=node.info.node_id,
                unix_path=node.info.unix_path,
                data_address=node.info.data_address,
                fingerprint=node.info.fingerprint,
                ticket=self._tickets.for_debugging(call.id, call.gang_id, node, owner),
            )
            for node in living
        )

    async def stored(self, call_id: str) -> list[LogSource]:
        """Returns the call's stored log segments, by node and then in order."""
        names = await self._blobs.names(f"logs/{call_id}/")
        owners = ((name, segment_owner(name)) for name in names if not is_report(name))
        return [LogSource(node_id=owner[1], blob=name) for name, owner in owners if owner is not None]

    def _agent(self, call: Call, node: Node, owner: Owner) -> LogSource:
        return LogSource(
            node_id=node.info.node_id,
            unix_path=node.info.unix_path,
            data_address=node.info.data_address,
            fingerprint=node.info.fingerprint,
            ticket=self._tickets.for_logs(call.id, call.gang_id, node, owner),
        )


def _serves(gang: Gang, function_id: str, owner: Owner) -> bool:
    return gang.function_id == function_id and gang.owner.workspace == owner.workspace and gang.state in _OPEN_GANGS


def _of_another(segment: LogSource, gang_id: str) -> bool:
    return segment_gang(segment.blob) not in ("", gang_id)


def _living(state: State, node_id: str) -> Node | None:
    node = state.nodes.get(node_id)
    return node if node is not None and node.state in _REACHABLE and _has_data_plane(node) else None


def _has_data_plane(node: Node) -> bool:
    """Played nodes have none: nobody speaks to them but the control plane."""
    return bool(node.info.unix_path or node.info.data_address)
