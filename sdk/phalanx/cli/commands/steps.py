"""gpuctl steps: how long the steps of a running call's ranks take, and which rank is slow. Asks the keepers only."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import click

from phalanx.cli.options import Command, Session
from phalanx.cli.render import Screen
from phalanx.cli.target import full_id
from phalanx.client import Client
from phalanx.core.errors import NotFoundError
from phalanx.core.messages import GpuInfo
from phalanx.core.steps import MIN_STEPS, SLOW_RATIO, RankSteps, rows_to_json, slow_text
from phalanx.ranks_now import steps_now

COLUMNS = ("RANK", "NODE", "GPU", "STEP", "STEPS", "STEP MS", "OWN MS", "RATIO", "MARK", "HEALTH")
_EVERY_S = 2.0
_EMPTY = "no rank has marked two steps yet: they do with phalanx.current().progress(step)"


def steps(session: Session, call: str, *, watch: bool) -> None:
    """Shows each rank's figures once, or with ``watch`` again and again until the call has ended."""
    screen = session.screen()
    client = session.client()
    call_id = full_id(client, call)
    _show(screen, client, steps_now(client, call_id))
    while watch:
        threading.Event().wait(_EVERY_S)
        try:
            rows = steps_now(client, call_id)
        except NotFoundError:
            return
        _show(screen, client, rows)


def _show(screen: Screen, client: Client, rows: Sequence[RankSteps]) -> None:
    gpus = {gpu.info.uuid: gpu.info for node in client.list_nodes() for gpu in node.gpus}
    if screen.look.json:
        for row in rows_to_json(rows):
            info = gpus.get(row["gpu"])
            screen.emit({**row, "gpu_index": info.index if info else None, "health": info.reason if info else ""})
        return
    screen.table(COLUMNS, [_row(row, gpus) for row in rows], empty=_EMPTY)
    slow = slow_text(rows)
    if slow:
        screen.data(slow)


def _row(row: RankSteps, gpus: Mapping[str, GpuInfo]) -> tuple[str, ...]:
    info = gpus.get(row.gpu)
    return (
        str(row.rank),
        row.node_id,
        str(info.index) if info is not None else "-",
        str(row.step),
        str(row.steps),
        f"{row.step_ms:.1f}",
        "-" if row.own_ms is None else f"{row.own_ms:.1f}",
        f"{row.ratio:.2f}",
        "slow" if row.slow else "",
        info.reason if info is not None and info.reason else "-",
    )


command = Command(
    "steps",
    callback=steps,
    help="How long the steps of a running call's ranks take: the time between two progress marks, and of it the rank's "
    "own, without its longest wait for the others in a collective. The ranks of a gang that works in step all take the "
    f"same time for one; the slow one waits least. A rank with {SLOW_RATIO:g} times the gang's median or more is "
    f"marked, from {MIN_STEPS} steps on.",
    params=[
        click.Argument(["call"]),
        click.Option(["--watch"], is_flag=True, help=f"Again every {_EVERY_S:g} s, until the call has ended."),
    ],
    examples=("gpuctl steps c-0d5t…", "gpuctl steps c-0d5t… --json"),
)
