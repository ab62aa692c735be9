"""gpuctl stack: where the ranks of a running call stand. Asks the keepers; the call is never touched."""

from __future__ import annotations

from collections.abc import Sequence

import click

from phalanx.cli.options import Command, Session
from phalanx.cli.target import full_id
from phalanx.core.collectives import RankState, describe, to_dict
from phalanx.core.errors import NotFoundError
from phalanx.core.stacks import RankStack, alike, ranks_text
from phalanx.ranks_now import ranks_now


def stack(session: Session, call: str, *, ranks: tuple[int, ...]) -> None:
    """Shows each stack once, with the ranks that stand there."""
    screen = session.screen()
    client = session.client()
    call_id = full_id(client, call)
    states = ranks_now(client, call_id)
    missing = sorted(set(ranks) - {s.rank for s in states})
    if missing:
        have = ranks_text([s.rank for s in states])
        raise NotFoundError(f"no {ranks_text(missing)} of call {call_id} answers: {have} did", hint="gpuctl ps")
    states = [s for s in states if not ranks or s.rank in ranks]
    if screen.look.json:
        for state in states:
            screen.emit(to_dict(state))
        return
    for line in stack_lines(states):
        screen.data(line)


def stack_lines(states: Sequence[RankState]) -> list[str]:
    """Returns a heading for all ranks that stand in one place, and below it their stack, innermost frame last."""
    lines: list[str] = []
    by_rank = {s.rank: s for s in states}
    stacks = [RankStack(rank=s.rank, node_id=s.node_id, places=s.places) for s in states]
    for ranks, found in alike(stacks):
        lines += ["", describe([by_rank[r] for r in ranks])] if lines else [describe([by_rank[r] for r in ranks])]
        lines += [f"  {p.shown}  {p.function}" for p in reversed(found.places)]
    return lines


command = Command(
    "stack",
    callback=stack,
    help="Where the ranks of a running call stand: their Python stacks and the collectives that they wait in. Ranks "
    "with the same stack are shown once. Works while ranks sit in a collective or hold the interpreter.",
    params=[
        click.Argument(["call"]),
        click.Option(["--rank", "ranks"], type=int, multiple=True, help="This rank only; may be repeated."),
    ],
    examples=("gpuctl stack c-0d5t…", "gpuctl stack c-0d5t… --rank 1 --json"),
)
