"""The way to the agents: fills messages with what the state only names, and puts them into the agents' queues.

Nothing here is reliable, and nothing has to be: whatever an agent has not acted on is said again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from phalanx.core.errors import ConnectionFailedError, NotFoundError
from phalanx.core.messages import Body, CallFinished, ErrorInfo, Offer, Start, ToAgent
from phalanx.core.states import Cause, Outcome
from phalanx_control.controller_rules import Addressed, SignPeers
from phalanx_control.state.commands import AgentSaid
from phalanx_control.state.model import State

_logger = logging.getLogger(__name__)

Send = Callable[[ToAgent], None]
"""Puts one message into an agent's outgoing queue; never waits."""
MAX_OUTGOING = 10_000
"""Messages that may wait for their bodies; further ones are dropped and said again later."""


class Delivery:
    """Keeps each node's messages in order. ``lost_args`` takes the command that ends a call without its arguments."""

    def __init__(
        self,
        read_body: Callable[[str], Awaitable[bytes]],
        sign_peers: SignPeers,
        *,
        lost_args: Callable[[AgentSaid], None],
    ) -> None:
        self._read_body = read_body
        self._sign_peers = sign_peers
        self._lost_args = lost_args
        self._sends: dict[str, Send] = {}
        self._outgoing: asyncio.Queue[tuple[str, ToAgent, State]] = asyncio.Queue(MAX_OUTGOING)

    def attach(self, node_id: str, send: Send) -> None:
        """From now on ``send`` reaches the node's agent; a former one is forgotten."""
        self._sends[node_id] = send

    def detach(self, node_id: str, send: Send) -> None:
        """Forgets ``send``, unless a newer session has taken its place."""
        if self._sends.get(node_id) == send:
            del self._sends[node_id]

    @property
    def attached(self) -> tuple[str, ...]:
        return tuple(self._sends)

    def push(self, messages: Iterable[Addressed], state: State) -> None:
        """Queues messages that follow from ``state``."""
        for node_id, message in messages:
            if node_id in self._sends and not self._outgoing.full():
                self._outgoing.put_nowait((node_id, message, state))

    async def run(self) -> None:
        while True:
            node_id, message, state = await self._outgoing.get()
            try:
                full = await self._fill(node_id, message, state)
            except ConnectionFailedError as e:
                _logger.warning("message to agent put off", extra={"node": node_id, "why": str(e)})
                continue
            send = self._sends.get(node_id)
            if full is not None and send is not None:
                send(full)

    async def _fill(self, node_id: str, message: ToAgent, state: State) -> ToAgent | None:
        if isinstance(message, Offer):
            return await self._with_args(node_id, message, state)
        gang = state.gangs.get(message.gang_id) if isinstance(message, Start) else None
        if isinstance(message, Start) and gang is not None and gang.lead == node_id and len(gang.members) > 1:
            return replace(message, peer_tickets=self._sign_peers(gang))
        return message

    async def _with_args(self, node_id: str, offer: Offer, state: State) -> Offer | None:
        call = state.calls.get(offer.call_id)
        if call is None or not call.args.key:
            return offer
        try:
            data = await self._read_body(call.args.key)
        except NotFoundError as e:
            self._lost_args(AgentSaid(node_id=node_id, message=_never_ran(offer, str(e))))
            return None
        return replace(offer, args=Body(data=data, size=len(data)))


def _never_ran(offer: Offer, why: str) -> CallFinished:
    return CallFinished(
        call_id=offer.call_id,
        attempt=offer.attempt,
        fence=offer.fence,
        gang_id=offer.gang_id,
        outcome=Outcome.FAILED,
        error=ErrorInfo(cause=Cause.INFRASTRUCTURE, type_name="ArgumentsExpired", message=why),
    )
