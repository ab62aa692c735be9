"""What the services need from the controller and its store, and nothing more. No behaviour lives here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from phalanx.core.messages import ToAgent
from phalanx_control.state.commands import Command
from phalanx_control.state.events import Events
from phalanx_control.state.model import State

Send = Callable[[ToAgent], None]
"""Puts one message into an agent's outgoing queue; never waits."""


class ControllerPort(Protocol):
    """The controller, as the services use it. ``state`` and ``seq`` show durable entries only."""

    @property
    def state(self) -> State: ...

    @property
    def seq(self) -> int: ...

    async def execute(self, command: Command, bodies: Mapping[str, bytes] = ...) -> Events:
        """Decides, makes durable, and only then returns. Raises the PhalanxError of a refusal."""
        ...

    def changes(self) -> AsyncIterator[tuple[State, Events, State]]: ...

    async def wait_for_seq(self, seq: int) -> None: ...
