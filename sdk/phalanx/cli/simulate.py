"""gpuctl topo simulate: starts a fleet of played nodes beside a cell's real ones, and takes it away again.

The fleet is a child process that ends when its standard input does, so that it never outlives this command.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING

import click

from phalanx.cli.fleet import Group, fabric_of, is_fleets, orders, plan, summary
from phalanx.cli.options import Command, Session
from phalanx.cli.topology_file import parsed, text_of
from phalanx.core.clock import SystemClock
from phalanx.core.errors import ConnectionFailedError, InvalidSpecError, NotBuiltError
from phalanx.core.played import PLAYED
from phalanx.core.states import NodeState
from phalanx.core.topology.importers.detect import read_node
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.presets import PRESETS, nearest_preset, preset

if TYPE_CHECKING:
    from phalanx.cli.render import Screen
    from phalanx.client import Client

_LOOK_S = 0.25
_LATE_MS = 60_000
_LEAVES_WITHIN_S = 20.0


def simulate(session: Session, machines: tuple[str, ...], *, fabric: bool, group: int, name: str, call: float) -> None:
    """Plays nodes until Ctrl-C."""
    from phalanx.cli.target import open_client

    screen = session.screen()
    groups = plan(machines, name, _look)
    if importlib.util.find_spec("phalanx_agent") is None:
        raise NotBuiltError("the agent is not installed here", hint="pip install 'phalanx[all]'")
    target = session.target(start=True)
    client = open_client(target, timeout_s=session.timeout_s)
    names = [node_id for each in groups for node_id in each.node_ids]
    _ensure_new(client, names)
    screen.status(f"starting {summary(groups)}…")
    with _stopped_by_signals() as stop, _fabric(client, groups, name, group if fabric else 0):
        tokens = {node_id: client.create_join_token()[0] for node_id in names}
        here = target.connection
        with tempfile.TemporaryDirectory(prefix="phalanx-fleet-", ignore_cleanup_errors=True) as folder:
            call_ms = round(call * 1000)
            text = orders(groups, tokens, address=here.address, ca=here.ca_path, folder=folder, call_ms=call_ms)
            _play(screen, client, groups, text, stop)
        screen.clear_status()
    screen.note("the simulated fleet has left")


def _play(screen: Screen, client: Client, groups: Sequence[Group], text: str, stop: Event) -> None:
    """Keeps the fleet's process until it is told to stop, and waits for the nodes to leave."""
    with _fleet(text, quiet=not screen.look.verbose) as process:
        _wait_ready(screen, client, process, stop, [node_id for group in groups for node_id in group.node_ids])
        if not stop.is_set():
            _tell(screen, groups)
        while not stop.wait(_LOOK_S):
            _ensure_alive(process)
        screen.status("the nodes are leaving…")


def _look(machine: str) -> NodeTopology:
    if machine in PRESETS:
        return preset(machine)
    if Path(machine).is_file():
        return parsed(machine, text_of(machine), read_node)
    near = nearest_preset(machine)
    raise InvalidSpecError(
        f"no machine {machine[:60]!r}{f': did you mean {near}?' if near else ''}",
        hint=f"a topology file, or one of: {', '.join(PRESETS)}",
    )


def _ensure_new(client: Client, names: Sequence[str]) -> None:
    """Two fleets of one name would take each other's nodes over. What is left of a killed one is taken up."""
    alive = {node.node_id for node in client.list_nodes() if node.state != NodeState.LOST.value}
    taken = [name for name in names if name in alive]
    if taken:
        raise InvalidSpecError(
            f"there is a node {taken[0]} already ({len(taken)} of these names are taken)",
            hint="give this fleet another --name; nodes of a fleet that was killed are free again in 20 s",
        )


@contextmanager
def _fabric(client: Client, groups: Sequence[Group], prefix: str, group_nodes: int) -> Generator[None]:
    """Tells the cell the fleet's fabric for as long as the block runs; nothing for ``group_nodes`` 0."""
    if not group_nodes:
        yield
        return
    known = client.fabric()
    if known.is_set and not is_fleets(known.fabric, prefix):
        raise InvalidSpecError(
            "this cell has been told a fabric already, and --fabric would replace it",
            hint="gpuctl topo fabric clear, or leave --fabric out",
        )
    ours = fabric_of(groups, prefix, group_nodes)
    client.set_fabric(ours)
    try:
        yield
    finally:
        if client.fabric().fabric.domains == ours.domains:
            client.set_fabric(None)


@contextmanager
def _fleet(text: str, *, quiet: bool) -> Generator[subprocess.Popen[str]]:
    """Runs the fleet's process; leaving the block lets its nodes leave and waits for that."""
    command = (sys.executable, "-P", "-m", "phalanx_agent.fleet.main")
    errors = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(_LEAVES_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_ready(
    screen: Screen, client: Client, process: subprocess.Popen[str], stop: Event, names: Sequence[str]
) -> None:
    """Returns when the cell knows all nodes, or when it is told to stop; says so once when that takes long."""
    clock = SystemClock()
    late_ms = clock.monotonic_ms() + _LATE_MS
    wanted = set(names)
    while not stop.wait(_LOOK_S):
        ready = {node.node_id for node in client.list_nodes() if node.state == NodeState.READY.value} & wanted
        if ready == wanted:
            break
        _ensure_alive(process)
        screen.status(f"{len(ready)} of {len(wanted)} nodes have joined…")
        if clock.monotonic_ms() > late_ms:
            late_ms += 10 * _LATE_MS
            screen.note(f"{len(ready)} of {len(wanted)} nodes have joined; -v shows what the others meet")
    screen.clear_status()


def _ensure_alive(process: subprocess.Popen[str]) -> None:
    status = process.poll()
    if status is not None:
        raise ConnectionFailedError(f"the fleet's process ended with status {status}", hint="-v shows its words")


def _tell(screen: Screen, groups: Sequence[Group]) -> None:
    if screen.look.json:
        nodes = [{"machine": group.machine, "nodes": group.node_ids} for group in groups]
        screen.emit({"played": nodes, "gpus": sum(len(g.node_ids) * len(g.topology.gpus) for g in groups)})
        return
    screen.data(f"playing {summary(groups)}")
    screen.note(
        f'nothing runs on them: calls of functions with gpu="{PLAYED}" go there, take their time and return None; '
        "no other function is ever placed there"
    )
    screen.note("gpuctl nodes, gpuctl topo rank NODE 4, gpuctl open    to see them; Ctrl-C ends the fleet")


@contextmanager
def _stopped_by_signals() -> Generator[Event]:
    """Turns Ctrl-C and SIGTERM into an event, so that the nodes can leave."""
    stop = Event()

    def set_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    former = {number: signal.signal(number, set_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


command = Command(
    "simulate",
    callback=simulate,
    help="Play a fleet of nodes beside the cell's own until Ctrl-C: they join, are shown and scheduled, and run "
    f'nothing. Only functions with gpu="{PLAYED}" are placed on them.',
    params=[
        click.Argument(["machines"], nargs=-1, required=True, metavar="COUNT x PRESET|FILE..."),
        click.Option(["--fabric"], is_flag=True, help="Tell the cell a fabric for them too: rail groups in one pod."),
        click.Option(
            ["--group"], type=click.IntRange(1), default=8, show_default=True, help="Nodes of one rail group."
        ),
        click.Option(["--name"], default=PLAYED, show_default=True, help="What the nodes' names begin with."),
        click.Option(
            ["--call"],
            type=click.FloatRange(0.01, 86_400),
            default=10.0,
            show_default=True,
            metavar="SECONDS",
            help="How long each call takes.",
        ),
    ],
    examples=("gpuctl topo simulate 64 x aws_p5 --fabric", "gpuctl topo simulate 8 x dgx_h100 4 x pcie_l4 --call 60"),
)
