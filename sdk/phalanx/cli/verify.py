"""gpuctl topo verify: gangs of the platform's own try what connects the GPUs of nodes; what they found and should."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import click

from phalanx.cli.exits import Exit
from phalanx.cli.options import Command, Session
from phalanx.cli.render import Screen
from phalanx.cli.text import some
from phalanx.cli.topology_text import headline
from phalanx.core.errors import InvalidSpecError, NotFoundError, PhalanxError
from phalanx.core.played import is_played
from phalanx.core.states import GpuState
from phalanx.core.topology.choice import choose
from phalanx.core.topology.figures import figures_of, known_link
from phalanx.core.topology.node import Gpu, NodeTopology
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.tables import MOST_DEVICES, build_tables
from phalanx.core.topology.verified import Verified, findings, kind_of, unverified, with_checks
from phalanx.core.views import NodeView

if TYPE_CHECKING:
    from phalanx.call import Call
    from phalanx.client import Client

COLUMNS = ("LINK", "PAIRS", "SLOWEST", "MEDIAN", "FASTEST", "MODEL GB/S")
_OUT = frozenset({GpuState.DOWN, GpuState.QUARANTINED, GpuState.EXTERNAL})
_LOW = 0.9
_ALIKE_AT_LEAST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One node whose links are tried. ``peers``: what an all-reduce moves on nodes of its pool that look alike."""

    node: NodeView
    topology: NodeTopology
    gpus: int
    peers: tuple[float, ...]

    @property
    def simulated(self) -> bool:
        return all(gpu.info.simulated for gpu in self.node.gpus)


def verify(session: Session, node: str) -> None:
    """Runs a gang on each node and tells what it found; exit 1 where a link is wrong or slow."""
    from phalanx.connection import use
    from phalanx.verifying import verification

    screen = session.screen()
    target = session.target()
    client = session.client()
    trials = _trials(client, node, screen)
    use(target.connection)
    with _taken_along() as calls:
        calls.extend(verification(trial.node.node_id, trial.gpus).spawn() for trial in trials)
        pairs = zip(trials, tuple(calls), strict=True)
        faulty = [_show(screen, trial, _wait(screen, trial, call, session.timeout_s)) for trial, call in pairs]
    if any(faulty):
        raise SystemExit(int(Exit.FAILED))


@contextmanager
def _taken_along() -> Generator[list[Call[Verified | None]]]:
    """Cancels the calls where this program is told to end before they have: Ctrl-C or SIGTERM."""
    calls: list[Call[Verified | None]] = []
    former = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield calls
    except KeyboardInterrupt:
        for call in calls:
            with suppress(PhalanxError):
                call.cancel()
        raise
    finally:
        signal.signal(signal.SIGTERM, former)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _wait(screen: Screen, trial: Trial, call: Call[Verified | None], timeout_s: float | None) -> Verified | None:
    screen.note(f"{trial.node.node_id}: {trial.gpus} GPUs, call {call.id}")
    return call.get(timeout_s)


def _trials(client: Client, named: str, screen: Screen) -> list[Trial]:
    nodes = client.list_nodes()
    if named and all(node.node_id != named for node in nodes):
        there = some([node.node_id for node in nodes]) or "none"
        raise NotFoundError(f"no node is called {named[:60]!r}: there are {there}", hint="gpuctl nodes")
    known = {node.node_id: _topology(client, node) for node in nodes if not _is_played(node)}
    if named and named not in known:
        raise InvalidSpecError(f"{named} is played: there is nothing to verify on it")
    wanted = [node for node in nodes if node.node_id in known and node.node_id in (named or node.node_id)]
    sizes = {node.node_id: _size(node, known[node.node_id], screen) for node in wanted}
    found = [
        Trial(
            node=node,
            topology=known[node.node_id],
            gpus=sizes[node.node_id],
            peers=_peers(node, nodes, known),
        )
        for node in wanted
        if sizes[node.node_id] > 1
    ]
    if not found:
        raise InvalidSpecError(f"{named or 'no node'} has {'no' if named else ''} two GPUs that a gang may have")
    return found


def _is_played(node: NodeView) -> bool:
    return any(is_played(gpu.info.model) for gpu in node.gpus)


def _topology(client: Client, node: NodeView) -> NodeTopology:
    """What the node says, or its GPUs alone where it says nothing."""
    try:
        return client.topology(node.node_id)
    except NotFoundError:
        gpus = [gpu.info for gpu in node.gpus]
        return NodeTopology(gpus=tuple(Gpu(uuid=gpu.uuid, index=gpu.index, model=gpu.model) for gpu in gpus))


def _size(node: NodeView, topology: NodeTopology, screen: Screen) -> int:
    """Returns how many GPUs one gang may have there at most: a pair that is known to be wrong is not tried again."""
    places = {gpu.uuid: at for at, gpu in enumerate(topology.gpus)}
    usable = [gpu.info for gpu in node.gpus if gpu.info.state not in _OUT and gpu.info.uuid in places]
    if len(topology.gpus) > MOST_DEVICES or not any(link.copies is False for row in topology.links for link in row):
        return len(usable)
    for sentence in findings(topology):
        screen.note(f"{node.node_id}: {sentence}; `phalanx-agent clear-gpu` there lets it be tried again")
    tables = build_tables(topology)
    free = sum(1 << places[gpu.uuid] for gpu in usable)
    sizes = range(len(usable), 1, -1)
    return next((size for size in sizes if isinstance(choose(tables, free, size), Chosen)), 0)


def _peers(node: NodeView, nodes: tuple[NodeView, ...], known: dict[str, NodeTopology]) -> tuple[float, ...]:
    own = known[node.node_id]
    alike = (
        known[other.node_id].all_reduce_gbyte_s
        for other in nodes
        if other.node_id in known and other.node_id != node.node_id and other.pool == node.pool
        if [gpu.model for gpu in known[other.node_id].gpus] == [gpu.model for gpu in own.gpus]
    )
    return tuple(figure for figure in alike if figure is not None)


def _show(screen: Screen, trial: Trial, seen: Verified | None) -> bool:
    """Tells what was found; says whether a link is faulty."""
    if seen is None:
        raise NotFoundError(f"{trial.node.node_id}: its gang verified nothing", hint="its agent is older than this")
    topology = with_checks(trial.topology, seen.pairs, simulated=trial.simulated)
    told = list(findings(topology))
    if screen.look.json:
        screen.emit(
            {
                "node": seen.node_id,
                "simulated": trial.simulated,
                "pairs": seen.pairs,
                "all_reduce": {
                    "gpus": len(seen.gpus),
                    "gbyte_s": seen.all_reduce_gbyte_s,
                    "model_gbyte_s": _model_gbyte_s(topology, seen.gpus),
                    "pool_median_gbyte_s": median(trial.peers) if trial.peers else None,
                },
                "faulty": told,
            }
        )
        return bool(told)
    right = sum(check.copies for check in seen.pairs)
    screen.data(
        f"{headline(seen.node_id, topology)}: {right} of {len(seen.pairs)} pairs copy {seen.size_bytes >> 20} MiB right"
    )
    for sentence in told:
        screen.data(f"  {sentence}")
    screen.table(COLUMNS, list(_rows(topology, seen)), empty="no pair")
    screen.data(f"  {_all_reduce_words(trial, topology, seen)}")
    return bool(told)


def _rows(topology: NodeTopology, seen: Verified) -> list[tuple[str, ...]]:
    figures = figures_of(topology)
    bare = {gpu.uuid: at for at, gpu in enumerate(topology.gpus)}
    kinds: dict[str, list[float]] = {}
    models: dict[str, set[float]] = {}
    for check in seen.pairs:
        i, j = bare[check.gpus[0]], bare[check.gpus[1]]
        kind = kind_of(known_link(topology, i, j))
        kinds.setdefault(kind, []).append(check.gbyte_s)
        models.setdefault(kind, set()).add(figures.usual_mbyte_s(topology, i, j) / 1000)
    return [
        (
            kind,
            str(len(rates)),
            f"{min(rates):.3g}",
            f"{median(rates):.3g}",
            f"{max(rates):.3g}",
            " to ".join(f"{figure:g}" for figure in sorted({min(models[kind]), max(models[kind])})),
        )
        for kind, rates in sorted(kinds.items())
    ]


def _model_gbyte_s(topology: NodeTopology, gpus: tuple[str, ...]) -> float | None:
    """The ring that the gang should have by the model; None where too little is known."""
    places = {gpu.uuid: at for at, gpu in enumerate(topology.gpus)}
    if not topology.links or len(topology.gpus) > MOST_DEVICES:
        return None
    mask = sum(1 << places[uuid] for uuid in gpus)
    return build_tables(unverified(topology)).rings.bottleneck(mask) / 1000


def _all_reduce_words(trial: Trial, topology: NodeTopology, seen: Verified) -> str:
    figure = seen.all_reduce_gbyte_s
    words = [f"all-reduce over {len(seen.gpus)} GPUs: {figure:.3g} GB/s on the bus"]
    model = _model_gbyte_s(topology, seen.gpus)
    if trial.simulated:
        words.append("the GPUs are simulated, so this is the host's memory and says nothing of the model")
    elif model:
        words.append(f"{figure / model:.0%} of the model's {model:g}")
    if len(trial.peers) >= _ALIKE_AT_LEAST:
        part = figure / median(trial.peers)
        low = "LOW: " if part < _LOW else ""
        words.append(f"{low}{part:.0%} of the median of {len(trial.peers)} nodes alike in its pool")
    return ", ".join(words)


command = Command(
    "verify",
    callback=verify,
    help="Try what connects the GPUs of a node, or of all: copies between each pair, and an all-reduce, in a gang of "
    "the platform's own. It waits until the GPUs are free. Exit 1 where a link is wrong or slow.",
    params=[click.Argument(["node"], default="", metavar="[NODE]")],
    examples=("gpuctl topo verify", "gpuctl topo verify node7 --json"),
)
