"""gpuctl uncordon: nodes that take work again."""

from __future__ import annotations

import click

from phalanx.cli.node_states import say
from phalanx.cli.options import Command, Session
from phalanx.core.states import NodeState


def uncordon(session: Session, nodes: tuple[str, ...]) -> None:
    """Gives each node back."""
    say(session, nodes, NodeState.READY)


command = Command(
    "uncordon",
    callback=uncordon,
    help="Give nodes that were cordoned or drained back to work.",
    params=[click.Argument(["nodes"], nargs=-1, required=True, metavar="NODE…")],
    examples=("gpuctl uncordon node7",),
)
