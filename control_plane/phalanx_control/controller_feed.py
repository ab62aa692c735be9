"""The durable state, and everybody who waits for it to move. Knows nothing of the log or of leadership."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import NamedTuple

from phalanx.core.errors import ConnectionFailedError
from phalanx_control.state.events import Events
from phalanx_control.state.model import State

READER_BUFFER = 1000
"""Changes that a reader may be behind by; beyond, it is told to look at the state afresh."""


class Change(NamedTuple):
    """One durable batch. Without events it is a resync marker: some were missed, ``after`` is the present state."""

    before: State
    events: Events
    after: State

    @property
    def is_resync(self) -> bool:
        return not self.events


class Feed:
    """Holds the state after the last durable batch and hands each change to every reader, waiting for none."""

    def __init__(self, *, reader_buffer: int = READER_BUFFER) -> None:
        self._state = State()
        self._reader_buffer = reader_buffer
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def state(self) -> State:
        return self._state

    def publish(self, events: Events, after: State) -> None:
        """Moves the state by one batch."""
        change = Change(self._state, events, after)
        self._state = after
        for reader in tuple(self._readers):
            reader.offer(change)
        self._wake()

    def replace(self, state: State) -> None:
        """Puts another state in place, from a snapshot: readers are told to look afresh."""
        self._state = state
        for reader in tuple(self._readers):
            reader.lose()
        self._wake()

    def changes(self) -> Reader:
        """Returns an iterator over every change from now on."""
        reader = Reader(self, self._reader_buffer)
        self._readers.add(reader)
        return reader

    async def wait_for_seq(self, seq: int, timeout_s: float) -> None:
        """Returns when the state reflects ``seq``. Raises ConnectionFailedError after ``timeout_s``."""
        if self._state.seq >= seq:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (seq, reached)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await reached
        except TimeoutError as e:
            raise ConnectionFailedError(
                f"this replica knows the log up to {self._state.seq} and did not reach {seq} within {timeout_s} s",
                hint="ask again, or ask another replica",
            ) from e
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def _wake(self) -> None:
        for seq, reached in self._waiting:
            if seq <= self._state.seq and not reached.done():
                reached.set_result(None)


class Reader:
    """An iterator with a bounded buffer. Dropping it is enough to end it."""

    def __init__(self, feed: Feed, buffer: int) -> None:
        self._feed = feed
        self._buffer: deque[Change] = deque()
        self._limit = buffer
        self._lost = False
        self._news = asyncio.Event()

    def offer(self, change: Change) -> None:
        if self._lost:
            return
        if len(self._buffer) >= self._limit:
            self.lose()
            return
        self._buffer.append(change)
        self._news.set()

    def lose(self) -> None:
        self._buffer.clear()
        self._lost = True
        self._news.set()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Change:
        await self._news.wait()
        if self._lost:
            self._lost = False
            self._news.clear()
            return Change(self._feed.state, (), self._feed.state)
        change = self._buffer.popleft()
        if not self._buffer:
            self._news.clear()
        return change
