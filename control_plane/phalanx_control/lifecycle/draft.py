"""A decision being made: events so far, and the state as it would be after them. Lives for one command only."""

from __future__ import annotations

from phalanx.core.spec import FunctionSpec
from phalanx_control.state.apply import apply
from phalanx_control.state.commands import Now
from phalanx_control.state.events import AnyEvent, Events
from phalanx_control.state.model import Call, Gang, State


class Draft:
    """Collects events and folds each at once, so that a later step of the same decision sees the earlier ones."""

    def __init__(self, state: State, now: Now) -> None:
        self.state = state
        self.now = now
        self._events: list[AnyEvent] = []

    def add(self, *events: AnyEvent) -> None:
        """Appends events, in order."""
        for event in events:
            self.state = apply(self.state, event, self.now.log_ms)
            self._events.append(event)

    def done(self) -> Events:
        """Returns what was decided."""
        return tuple(self._events)

    def gang(self, gang_id: str) -> Gang | None:
        return self.state.gangs.get(gang_id)

    def call(self, call_id: str) -> Call:
        return self.state.calls[call_id]

    def spec(self, function_id: str) -> FunctionSpec:
        return self.state.functions[function_id].spec
