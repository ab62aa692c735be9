"""One call as its watcher sees it: the view with its bodies, now and at each change until it has ended.

A running call's view also moves with fast facts (ready ranks, steps), so it is looked at ten times a second, and sent
only when it differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from phalanx.core.errors import NotFoundError
from phalanx.core.messages import Body
from phalanx.core.states import CallState
from phalanx.core.views import CallView
from phalanx_control.service.ports import BodyReader, ControllerPort
from phalanx_control.service.queries import Found, Pictures, Queries
from phalanx_control.service.watch import ChangeHub
from phalanx_control.state.model import BodyRef, Call

LOOK_EVERY_S = 0.1
LOOK_WAITING_S = 1.0
"""Queued calls move in the queue without an event of their own."""


class Follower:
    """Makes full views of calls, and follows them."""

    def __init__(
        self, controller: ControllerPort, hub: ChangeHub, queries: Queries, pictures: Pictures, bodies: BodyReader
    ) -> None:
        self._controller = controller
        self._hub = hub
        self._queries = queries
        self._pictures = pictures
        self._bodies = bodies

    async def view(self, found: Found) -> CallView:
        """Returns the call's view with its result and pickled exception filled in, once there are any."""
        call = found.call
        view = self._pictures.call(found.state, call)
        if not call.state.terminal:
            return view
        error = view.error
        if call.error_body.key:
            error = replace(error, pickled=(await self._body(call.error_body)).data)
        return replace(view, result=await self._body(call.result), error=error)

    async def arguments(self, call: Call) -> Body:
        """Returns what a call was submitted with; neither data nor blob for a direct one, or where it has expired."""
        return await self._body(call.args)

    async def follow(self, call_id: str) -> AsyncIterator[CallView]:
        """Yields the present view, one at each change, and the terminal one last. Raises NotFoundError."""
        with self._hub.watching(call_id) as changed:
            sent: CallView | None = None
            while True:
                changed.clear()
                state = self._controller.state
                known = state.calls.get(call_id)
                found = Found(known, state) if known is not None and sent else await self._queries.find(call_id)
                view = await self.view(found)
                if view != sent:
                    yield view
                    sent = view
                if found.call.state.terminal:
                    return
                await _wait(changed, LOOK_WAITING_S if found.call.state is CallState.QUEUED else LOOK_EVERY_S)

    async def _body(self, ref: BodyRef) -> Body:
        """Bytes that have expired leave their size behind."""
        if not ref.key:
            return Body(blob=ref.blob, size=ref.size)
        try:
            return Body(data=await self._bodies.body(ref.key), size=ref.size)
        except NotFoundError:
            return Body(size=ref.size)


async def _wait(event: asyncio.Event, at_most_s: float) -> None:
    try:
        async with asyncio.timeout(at_most_s):
            await event.wait()
    except TimeoutError:
        return
