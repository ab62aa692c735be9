"""What `gpuctl nodes`, `cordon` and `drain` say of a node that takes no work."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.cli.commands.drain import drain
from phalanx.cli.commands.nodes import why
from phalanx.cli.options import Session
from phalanx.core.errors import InvalidSpecError
from phalanx.core.views import NodeView

NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (NodeView(state="ready"), ""),
        (NodeView(state="ready", reason="chosen last: 2 gangs died"), "chosen last: 2 gangs died"),
        (NodeView(state="cordoned", reason="cordoned by ana: fan", gangs=2), "cordoned by ana: fan"),
        (
            NodeView(state="draining", reason="drained by ana", gangs=1, drain_until_ms=NOW_MS + 90_000),
            "drained by ana; 1 gang left, calls may run for 1m 30s more",
        ),
        (
            NodeView(state="draining", reason="drained by ana", gangs=2, drain_until_ms=NOW_MS - 1),
            "drained by ana; 2 gangs left, being ended",
        ),
        (NodeView(state="draining", reason="drained by ana"), "drained by ana; nothing runs there any more"),
        (NodeView(state="lost", reason="drained by ana", gangs=1), "drained by ana"),
    ],
)
def test_a_node_is_told_with_who_took_it_out_of_use_and_how_far_its_drain_has_come(node: NodeView, words: str) -> None:
    assert why(node, NOW_MS) == words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deadline": "5m", "now": True}, "--deadline 5m and --now: give one of the two"),
        ({"deadline": "soon", "now": False}, "--deadline='soon': give seconds as a number, or text such as"),
    ],
)
def test_a_deadline_that_makes_no_sense_is_refused_before_anybody_is_asked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        drain(Session(), ("n1",), reason="", wait=False, **options)
