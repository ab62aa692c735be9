"""What the services need from the controller and its store, and nothing more. No behaviour lives here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from phalanx.core.messages import Report, ToAgent
from phalanx_control.state.commands import Command
from phalanx_control.state.events import Events
from phalanx_control.state.model import State

Send = Callable[[ToAgent], None]
"""Puts one message into an agent's outgoing queue; never waits."""


class Leadership(Protocol):
    """Who leads, as far as this replica knows. ``leader_address`` is the clients' address, empty while nobody does."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def leader_address(self) -> str: ...

    @property
    def leader_id(self) -> str:
        """Under which this replica leads, or would."""
        ...


class StateSource(Protocol):
    """What has a state to show; durable entries only."""

    @property
    def state(self) -> State: ...


class ControllerPort(Leadership, StateSource, Protocol):
    """The controller, as the services use it. ``seq`` shows durable entries only."""

    @property
    def seq(self) -> int: ...

    async def execute(self, command: Command, bodies: Mapping[str, bytes] = ...) -> Events:
        """Decides, makes durable, and only then returns. Raises the PhalanxError of a refusal."""
        ...

    def changes(self) -> AsyncIterator[tuple[State, Events, State]]:
        """Yields ``(before, events, after)`` per durable batch; without events: some were missed, look afresh."""
        ...

    async def wait_for_seq(self, seq: int) -> None: ...

    def note_report(self, node_id: str, report: Report) -> None:
        """Keeps an agent's fast facts."""
        ...

    def attach(self, node_id: str, send: Send) -> None:
        """From now on ``send`` reaches the node's agent; after a Hello it is told all that it should be doing."""
        ...

    def detach(self, node_id: str, send: Send) -> None:
        """Forgets ``send``, unless a newer session has taken its place."""
        ...


class BodyReader(Protocol):
    """Reads the bodies that the log refers to."""

    async def body(self, name: str) -> bytes:
        """Raises NotFoundError when it never was, or has expired."""
        ...


class LiveStream(Protocol):
    """The capped stream of fast facts."""

    async def put_live(self, fact: Mapping[str, Any]) -> None: ...

    async def read_live(self, after_id: str, *, block_ms: int = 0) -> list[tuple[str, dict[str, Any]]]: ...
