"""gpuctl when: when a gang could start, asked before anything is submitted."""

from __future__ import annotations

from typing import Any

import click

from phalanx.cli import text
from phalanx.cli.options import Command, Session
from phalanx.core.clock import SystemClock
from phalanx.core.spec import FunctionSpec, Resources
from phalanx.core.views import StartView


def when(session: Session, preemptible: bool, **asked: Any) -> None:
    """Asks the cell for a gang that nobody starts."""
    screen = session.screen()
    gpu = asked.pop("gpu") or ""
    spec = FunctionSpec(name="a gang", resources=Resources(gpu=gpu, **asked), preemptible=preemptible)
    found = session.client().start_of(spec)
    if screen.look.json:
        screen.emit(found)
        return
    screen.data(_answer(found, SystemClock().wall_ms()))
    if found.ahead:
        screen.data(
            f"{text.count(found.ahead, 'call')} {'waits' if found.ahead == 1 else 'wait'} already: gpuctl queue"
        )
    if found.fits_now:
        screen.data(f"with {text.count(found.fits_now, 'GPU')} it would start now")


def _answer(found: StartView, now_ms: int) -> str:
    if found.now:
        return f"now: {found.sentence}"
    if found.at_ms:
        return f"within {text.duration(found.at_ms - now_ms)}: {found.sentence}"
    return f"nobody knows: {found.sentence}"


command = Command(
    "when",
    callback=when,
    help="When a gang could start if it were asked for now, where, and what it would wait for. Nothing is submitted.",
    params=[
        click.Option(["--gpus"], type=float, default=1, show_default=True, help="GPUs of the whole gang."),
        click.Option(["--gpu"], metavar="MODEL", help="Their model, as H100 or 'H100|H200'."),
        click.Option(["--nodes"], type=int, default=0, help="Nodes to spread over, evenly."),
        click.Option(["--cpus"], type=float, default=0, help="Cores per rank."),
        click.Option(["--memory-gb"], type=float, default=0, help="Memory per rank."),
        click.Option(["--preemptible"], is_flag=True, help="It would give way to others."),
    ],
    examples=("gpuctl when --gpus 16", "gpuctl when --gpus 16 --nodes 2 --gpu H100"),
)
