"""Signs data-plane tickets. Each node has a key of its own, derived from the cell's secret, so any replica can sign.

A node's agent learns its key in Welcome, over mutual TLS; nobody else does. Who may have a ticket is asked elsewhere.
"""

from __future__ import annotations

from phalanx.core.clock import Clock
from phalanx.core.tickets import LIFETIME_MS, Ticket, sign
from phalanx_control.certificates import derive
from phalanx_control.state.model import Gang, Node, Owner


class TicketOffice:
    """Signs for every node of the cell."""

    def __init__(self, cell_secret: bytes, clock: Clock) -> None:
        self._secret = cell_secret
        self._clock = clock

    def key(self, node_id: str) -> bytes:
        """Returns the key that checks this node's tickets."""
        return derive(self._secret, "ticket", node_id)

    def for_calls(self, gang: Gang, node: Node, owner: Owner) -> str:
        """Returns a ticket to the admission queue of ``gang``, at its lead ``node``."""
        ticket = Ticket(
            kind="call",
            node_id=node.info.node_id,
            gang_id=gang.id,
            function_id=gang.function_id,
            workspace=owner.workspace,
            user=owner.user,
            token_id=owner.token_id,
            fingerprint=node.info.fingerprint,
            expires_wall_ms=self._expiry(),
        )
        return self._sign(ticket)

    def for_logs(self, call_id: str, gang_id: str, node: Node, owner: Owner) -> str:
        """Returns a ticket to one call's output on ``node``."""
        return self._of_call("logs", call_id, gang_id, node, owner)

    def for_debugging(self, call_id: str, gang_id: str, node: Node, owner: Owner) -> str:
        """Returns a ticket to terminals at the ranks that run a call on ``node``."""
        return self._of_call("debug", call_id, gang_id, node, owner)

    def _of_call(self, kind: str, call_id: str, gang_id: str, node: Node, owner: Owner) -> str:
        ticket = Ticket(
            kind=kind,
            node_id=node.info.node_id,
            gang_id=gang_id,
            call_id=call_id,
            workspace=owner.workspace,
            user=owner.user,
            token_id=owner.token_id,
            fingerprint=node.info.fingerprint,
            expires_wall_ms=self._expiry(),
        )
        return self._sign(ticket)

    def for_peers(self, gang: Gang) -> tuple[str, ...]:
        """Returns the lead's tickets to the gang's other nodes, in their order."""
        return tuple(
            self._sign(
                Ticket(
                    kind="peer",
                    node_id=m.member.node_id,
                    gang_id=gang.id,
                    function_id=gang.function_id,
                    workspace=gang.owner.workspace,
                    user=gang.owner.user,
                    fingerprint=m.member.fingerprint,
                    expires_wall_ms=self._expiry(),
                )
            )
            for m in gang.members[1:]
        )

    def _expiry(self) -> int:
        return self._clock.wall_ms() + LIFETIME_MS

    def _sign(self, ticket: Ticket) -> str:
        return sign(ticket, self.key(ticket.node_id))
