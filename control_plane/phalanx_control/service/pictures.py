"""Views of the present moment: the pure `views` and `metering`, given this replica's fast facts and price book.

A standby hears no agents, so its views lack steps and queue depths; what is durable is the same everywhere.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import GangFacts
from phalanx.core.views import CallView, CostView, FunctionView, GangView, NodeView
from phalanx_control import views
from phalanx_control.lifecycle.facts import LiveFacts
from phalanx_control.metering.book import PriceBook, load_book
from phalanx_control.metering.cost import cost_by, cost_of_call
from phalanx_control.state.model import App, Call, Gang, Node, State
from phalanx_control.state.queries import function_label


class FactSource(Protocol):
    """What agents reported last."""

    def gang(self, gang_id: str, node_id: str) -> GangFacts | None: ...

    def last_heard_wall_ms(self, node_id: str) -> int: ...


class StatePictures:
    """Draws records of the state."""

    def __init__(self, facts: FactSource, book: PriceBook) -> None:
        self._facts = facts
        self._book = book

    def call(self, state: State, call: Call) -> CallView:
        return views.call_view(state, call, self._of_gang(state, call.gang_id), self._book)

    def gang(self, state: State, gang: Gang) -> GangView:
        return views.gang_view(state, gang, self._of_gang(state, gang.id))

    def node(self, state: State, node: Node) -> NodeView:
        node_id = node.info.node_id
        seen = LiveFacts(last_seen_ms={node_id: self._facts.last_heard_wall_ms(node_id)})
        return views.node_view(state, node, seen)

    def function(self, state: State, app: App, name: str) -> FunctionView:
        return views.function_view(state, app, name)

    def label(self, state: State, function_id: str) -> str:
        return function_label(state, function_id)

    def call_cost(self, state: State, call: Call) -> CostView:
        lead = self._lead_facts(state, call.gang_id)
        return cost_of_call(state, call, self._book, paused_ms=lead.paused_ms if lead is not None else 0)

    def costs(self, state: State, workspace: str, group_by: str) -> tuple[CostView, ...]:
        return cost_by(state, group_by, self._book, workspace=workspace)

    def depth(self, state: State, gang_id: str) -> int:
        facts = self._lead_facts(state, gang_id)
        return facts.depth + facts.in_flight if facts is not None else 0

    def _of_gang(self, state: State, gang_id: str) -> LiveFacts:
        facts = self._lead_facts(state, gang_id)
        return LiveFacts(gangs={(gang_id, state.gangs[gang_id].lead): facts}) if facts is not None else LiveFacts()

    def _lead_facts(self, state: State, gang_id: str) -> GangFacts | None:
        gang = state.gangs.get(gang_id)
        return self._facts.gang(gang_id, gang.lead) if gang is not None else None


def load_price_book(path: Path | None) -> PriceBook:
    """Reads the operator's price book, or the built-in one. Raises PriceBookError, or InvalidSpecError on no TOML."""
    try:
        text = path.read_text() if path else (files("phalanx_control") / "data" / "price_book.toml").read_text()
        return load_book(tomllib.loads(text))
    except (OSError, tomllib.TOMLDecodeError) as e:
        raise InvalidSpecError(f"--price-book {str(path)!r} cannot be read: {e}") from e
