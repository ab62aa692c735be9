"""Live events of the page: the leader publishes what changed, every replica hands it to the browsers it serves.

Patches go through the store's live stream, and an event's id is that stream's id, so a browser that lost its replica
goes on at any other one with ``Last-Event-ID``. Each replica keeps the last minutes; an id that is older, or unknown,
is answered with ``reset``. A patch is drawn once per workspace and handed out as the same bytes to every browser. A
browser that does not read loses its stream and comes back; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from phalanx.core.clock import Clock
from phalanx.core.errors import ConnectionFailedError, PhalanxError
from phalanx_control.service.ports import ControllerPort, LiveStream
from phalanx_control.service.watch import subjects_of
from phalanx_control.web.page_messages import Shared, event, from_fact, owners_of, patch, snapshot, to_fact
from phalanx_control.web.page_model import PageModel

PATCH_EVERY_S = 0.5
PING_EVERY_S = 15.0
CHECK_EVERY_S = 4.0
"""How often an open stream asks whether its session still counts."""
KEPT = 1200
"""Patches kept for those who come back: ten minutes at the highest rate."""
MAX_BEHIND = 64
MAX_STREAMS = 500
_BLOCK_MS = 1000
_LEADER_LOOK_S = 0.05
_PAUSE_S = 0.5

logger = logging.getLogger(__name__)


class Publisher:
    """Looks at the state twice a second and, while this replica leads, publishes what has changed."""

    def __init__(self, controller: ControllerPort, model: PageModel, live: LiveStream, clock: Clock) -> None:
        self._controller = controller
        self._model = model
        self._live = live
        self._clock = clock
        self._touched: set[str] | None = None
        self._led = False

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._collect())
            tasks.create_task(self._publish_for_ever())

    async def _collect(self) -> None:
        async for before, events, after in self._controller.changes():
            if not events:
                self._touched = None
            elif self._touched is not None:
                self._touched |= subjects_of(events, before, after)

    async def _publish_for_ever(self) -> None:
        while True:
            try:
                await self.look()
            except ConnectionFailedError as e:
                logger.debug("page patch lost", extra={"why": str(e)})
                self._led = False
                await asyncio.sleep(PATCH_EVERY_S)
            except Exception:
                logger.exception("page not drawn")
                self._touched = None
                await asyncio.sleep(PATCH_EVERY_S)
            await self._rest()

    async def _rest(self) -> None:
        """Half a second, unless this replica begins or ceases to lead: then pages should hear of it at once."""
        until_ms = self._clock.monotonic_ms() + PATCH_EVERY_S * 1000
        while self._clock.monotonic_ms() < until_ms and self._controller.is_leader == self._led:  # noqa: ASYNC110
            await asyncio.sleep(_LEADER_LOOK_S)

    async def look(self) -> None:
        """Draws once. The first words of a new leader are a reset: what its predecessor did not say is lost."""
        touched, self._touched = self._touched, set()
        state = self._controller.state
        changes = self._model.look(state, touched)
        leads = self._controller.is_leader
        if leads and not self._led:
            await self._say(Shared(reset=True, now_ms=self._clock.wall_ms()))
        elif leads and changes:
            await self._say(Shared(changes=tuple(changes), owners=owners_of(state), now_ms=self._clock.wall_ms()))
        self._led = leads

    async def _say(self, shared: Shared) -> None:
        await self._live.put_live(to_fact(shared))


class _Subscriber:
    """One browser's stream: bytes that wait to be sent."""

    def __init__(self, workspace: str) -> None:
        self.workspace = workspace
        self.waiting: deque[bytes] = deque()
        self.wake = asyncio.Event()
        self.ended = False

    def offer(self, data: bytes, *, last: bool = False) -> None:
        if len(self.waiting) >= MAX_BEHIND:
            self.ended = True
        elif not self.ended:
            self.waiting.append(data)
            self.ended = last
        self.wake.set()


class LiveHub:
    """Reads the live stream once and hands it to every browser of this replica."""

    def __init__(
        self,
        controller: ControllerPort,
        model: PageModel,
        live: LiveStream,
        clock: Clock,
        *,
        server: Callable[[], dict[str, Any]],
    ) -> None:
        self._controller = controller
        self._model = model
        self._live = live
        self._clock = clock
        self._server = server
        self._kept: deque[tuple[str, Shared]] = deque(maxlen=KEPT)
        self._subscribers: set[_Subscriber] = set()
        self._snapshots: dict[str, tuple[tuple[int, str], bytes]] = {}
        self._closing = False

    @property
    def is_live(self) -> bool:
        """True once a leader has spoken."""
        return bool(self._kept)

    async def run(self) -> None:
        """Reads until cancelled."""
        last = "0"
        while True:
            try:
                entries = await self._live.read_live(last, block_ms=_BLOCK_MS)
            except ConnectionFailedError:
                await asyncio.sleep(_PAUSE_S)
                continue
            for entry_id, fact in entries:
                last = entry_id
                shared = from_fact(fact)
                if shared is not None:
                    self.take(entry_id, shared)

    def take(self, entry_id: str, shared: Shared) -> None:
        """Keeps one entry and hands it out."""
        self._kept.append((entry_id, shared))
        drawn: dict[str, bytes] = {}
        for subscriber in self._subscribers:
            if subscriber.workspace not in drawn:
                drawn[subscriber.workspace] = self._draw(entry_id, shared, subscriber.workspace)
            subscriber.offer(drawn[subscriber.workspace], last=shared.reset)

    def close(self) -> None:
        """Ends every stream soon; browsers come back, to another replica if need be."""
        self._closing = True
        for subscriber in self._subscribers:
            subscriber.ended = True
            subscriber.wake.set()

    async def stream(self, workspace: str, last_id: str, still_allowed: Callable[[], object]) -> AsyncIterator[bytes]:
        """Yields one browser's events until it goes, is too slow, or ``still_allowed`` raises a PhalanxError."""
        if len(self._subscribers) >= MAX_STREAMS:
            raise ConnectionFailedError(f"{MAX_STREAMS} pages are open at this replica", hint="close some of them")
        subscriber = _Subscriber(workspace)
        self._subscribers.add(subscriber)
        try:
            yield b"retry: 1000\n\n"
            for data in self._first(workspace, last_id):
                yield data
            async for data in self._rest(subscriber, still_allowed):
                yield data
        finally:
            self._subscribers.discard(subscriber)

    def _first(self, workspace: str, last_id: str) -> list[bytes]:
        """What a browser needs before live patches: those that it missed, a reset, or the whole picture."""
        if not last_id:
            return [self._snapshot(workspace)]
        ids = [entry_id for entry_id, _ in self._kept]
        if last_id not in ids:
            return [event("reset", {})]
        missed = list(self._kept)[ids.index(last_id) + 1 :]
        return [self._draw(entry_id, shared, workspace) for entry_id, shared in missed]

    async def _rest(self, subscriber: _Subscriber, still_allowed: Callable[[], object]) -> AsyncIterator[bytes]:
        pinged_ms = self._clock.monotonic_ms()
        while True:
            while subscriber.waiting:
                yield subscriber.waiting.popleft()
            if subscriber.ended or self._closing:
                return
            subscriber.wake.clear()
            await _wait(subscriber.wake, CHECK_EVERY_S)
            try:
                still_allowed()
            except PhalanxError:
                return
            if self._clock.monotonic_ms() - pinged_ms >= PING_EVERY_S * 1000:
                pinged_ms = self._clock.monotonic_ms()
                yield event("ping", {"now_ms": self._clock.wall_ms()})

    def _snapshot(self, workspace: str) -> bytes:
        """The picture with the id of the newest patch; a patch that it holds already does no harm when it follows."""
        newest = self._kept[-1][0] if self._kept else ""
        made_of = (self._model.version, newest)
        former = self._snapshots.get(workspace)
        if former is not None and former[0] == made_of:
            return former[1]
        owners = owners_of(self._controller.state)
        data = snapshot(self._model.items, owners, workspace, self._server(), self._clock.wall_ms())
        drawn = event("snapshot", data, newest)
        self._snapshots[workspace] = (made_of, drawn)
        return drawn

    def _draw(self, entry_id: str, shared: Shared, workspace: str) -> bytes:
        if shared.reset:
            return event("reset", {})
        return event("patch", patch(shared, workspace, self._server()), entry_id)


async def _wait(signal: asyncio.Event, at_most_s: float) -> None:
    try:
        async with asyncio.timeout(at_most_s):
            await signal.wait()
    except TimeoutError:
        return
