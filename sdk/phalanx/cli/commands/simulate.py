"""gpuctl simulate: what the scheduler would do with jobs of a trace, or of this cluster, on a fleet on paper.

The scheduler is the control plane's, so it runs as its own program; this only asks, waits and shows.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli import simulation_history as history
from phalanx.cli.options import Command, Session
from phalanx.cli.simulation_picture import picture
from phalanx.cli.simulation_text import COLUMNS, headlines, wait_rows
from phalanx.cli.topology_file import write_picture
from phalanx.core.clock import SystemClock
from phalanx.core.errors import InvalidSpecError, NotBuiltError, PhalanxError

if TYPE_CHECKING:
    from phalanx.cli.render import Screen

POLICIES = ("live", "fifo", "easy", "any")
_WRONG = 2


def simulate(session: Session, trace: str, fleet: str, *, live: bool, svg: str, **asked: Any) -> None:
    """Plays a trace, or with ``live`` the calls that this cluster has had, and tells how long everybody waited."""
    screen = session.screen()
    if importlib.util.find_spec("phalanx_control") is None:
        raise NotBuiltError("the control plane is not installed here", hint="pip install 'phalanx[all]'")
    if bool(trace) == live:
        raise InvalidSpecError("name one file of jobs, or --live for the calls of this cluster", hint=_EXAMPLES[0])
    if not live and not fleet:
        raise InvalidSpecError("no fleet is named", hint=f"--fleet '64 x aws_p5'; {_EXAMPLES[0]}")
    with tempfile.TemporaryDirectory(prefix="phalanx-simulate-") as folder:
        if live:
            trace, known = _history(session, screen, Path(folder))
            fleet = fleet or known
        found = _run(screen, [trace, "--fleet", fleet, *_words(asked)])
    if svg:
        write_picture(svg, picture(found))
    _tell(screen, found, svg)


def _history(session: Session, screen: Screen, folder: Path) -> tuple[str, str]:
    """Writes this cluster's calls and nodes as files; returns their names."""
    client = session.client()
    screen.status("asking for the history…")
    calls = client.list_calls(ended_too=True, limit=history.MOST_CALLS)
    nodes = client.list_nodes()
    screen.clear_status()
    jobs, left_out = history.jobs_of(calls, SystemClock().wall_ms())
    if not jobs:
        raise InvalidSpecError("this cluster has no call that began", hint="gpuctl ps --all; or name a file of jobs")
    if len(calls) == history.MOST_CALLS:
        screen.note(f"the newest {history.MOST_CALLS:,} calls are played; there are more")
    if left_out:
        screen.note(f"{left_out} calls that never began are left out: nobody knows how long they would have run")
    trace, fleet = folder / "calls.jsonl", folder / "nodes.json"
    trace.write_text("".join(f"{json.dumps(job)}\n" for job in jobs), encoding="utf-8")
    fleet.write_text(json.dumps(history.fleet_of(nodes)), encoding="utf-8")
    return str(trace), str(fleet)


def _words(asked: dict[str, Any]) -> Iterator[str]:
    """Yields the options that were given, as the simulator takes them."""
    for name, value in asked.items():
        for each in value if isinstance(value, tuple) else (value,):
            if each not in (None, "", 0):
                yield f"--{name}"
                yield str(each)


def _run(screen: Screen, words: Sequence[str]) -> dict[str, Any]:
    """Runs the simulator, showing how far it is. Raises what it says is wrong."""
    command = (sys.executable, "-P", "-m", "phalanx_control.simulator", *words)
    with (
        tempfile.TemporaryFile() as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as process,
    ):
        assert process.stderr is not None
        screen.status("reading…")
        try:
            said = [_follow(screen, line.rstrip("\n")) for line in process.stderr]
            status = process.wait()
        finally:
            process.kill()
            screen.clear_status()
        out.seek(0)
        text = out.read()
    if status not in (0, _WRONG) or not text:
        raise PhalanxError(f"the simulator ended with status {status}", hint=said[-1] if said else "-v shows more")
    found: dict[str, Any] = json.loads(text)
    if "error" in found:
        raise InvalidSpecError(found["error"]["message"], hint=found["error"]["hint"])
    return found


def _follow(screen: Screen, line: str) -> str:
    screen.status(f"{line} have arrived…" if line.endswith(" jobs") else line)
    screen.detail(line)
    return line


def _tell(screen: Screen, found: dict[str, Any], svg: str) -> None:
    if screen.look.json:
        screen.emit(found)
        return
    for line in headlines(found):
        screen.data(line)
    screen.table(COLUMNS, wait_rows(found), empty="no jobs")
    if svg:
        screen.note(f"waits and use are drawn in {svg}")


_EXAMPLES = (
    "gpuctl simulate jobs.jsonl --fleet '64 x aws_p5'",
    "gpuctl simulate philly_jobs.csv --fleet 80x8 --load 0.9 --policy easy",
    "gpuctl simulate --live --add '16 x hgx_h100' --svg more.svg",
)
_SECONDS = click.FloatRange(0, 30 * 86_400)


def _seconds(name: str, text: str) -> click.Option:
    return click.Option([name], type=_SECONDS, default=0, metavar="SECONDS", help=text)


command = Command(
    "simulate",
    callback=simulate,
    help="Play jobs on a fleet on paper, in virtual time, with the scheduler that runs here: how long who would wait. "
    'Jobs: openb\'s or Philly\'s lists, or lines like {"at": 0, "duration": 60, "gpus": 8, "workspace": "a"}.',
    params=[
        click.Argument(["trace"], default="", metavar="[TRACE]"),
        click.Option(
            ["--fleet"], default="", metavar="SPEC|FILE", help="'64 x aws_p5', '8x8', '4 x 8 gpu=A100', or a file."
        ),
        click.Option(["--add"], multiple=True, metavar="SPEC|FILE", help="More nodes beside them."),
        click.Option(["--live"], is_flag=True, help="The calls that this cluster has had, on its nodes."),
        click.Option(["--load"], type=click.FloatRange(0.01, 10), help="Arrivals so near that 0.9 asks for 90 %."),
        click.Option(
            ["--policy"],
            type=click.Choice(POLICIES),
            default="live",
            show_default=True,
            help="The scheduler, or: strictly first come, EASY backfilling that knows durations, whoever fits.",
        ),
        click.Option(
            ["--accounts"], default="", metavar="FILE", help="Who gets how much, as `gpuctl policy set` takes."
        ),
        click.Option(["--limit"], type=click.IntRange(1), help="So many jobs, the first ones."),
        click.Option(["--seed"], type=click.IntRange(0), default=0, help="Order of jobs whose list has no times."),
        click.Option(
            ["--timeouts"],
            type=click.FloatRange(0, 1000),
            default=0,
            help="Callers say how long jobs run at most: so many times what is true. 0: they say nothing.",
        ),
        _seconds("--start", "How long a gang takes to start."),
        _seconds("--warm", "How long a gang stays after its last call."),
        _seconds("--every", "Passes are so far apart at least while jobs wait: faster, and less exact."),
        click.Option(["--svg"], default="", metavar="FILE", help="Draw waits by size and use over time."),
    ],
    examples=_EXAMPLES,
)
