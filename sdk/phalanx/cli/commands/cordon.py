"""gpuctl cordon: nodes on which nothing new is placed."""

from __future__ import annotations

import click

from phalanx.cli.node_states import say
from phalanx.cli.options import Command, Session
from phalanx.core.states import NodeState


def cordon(session: Session, nodes: tuple[str, ...], reason: str) -> None:
    """Cordons each node."""
    say(session, nodes, NodeState.CORDONED, reason=reason)


command = Command(
    "cordon",
    callback=cordon,
    help="Place nothing new on nodes, until `gpuctl uncordon`. What runs there goes on, and gangs that are warm take "
    "calls until they end by themselves; `gpuctl drain` ends them. Restarts of the node change nothing.",
    params=[
        click.Argument(["nodes"], nargs=-1, required=True, metavar="NODE…"),
        click.Option(["--reason"], default="", metavar="TEXT", help="Shown to whoever waits, and in `gpuctl nodes`."),
    ],
    examples=("gpuctl cordon node7 --reason 'a fan is loud'", "gpuctl cordon node7 node8"),
)
