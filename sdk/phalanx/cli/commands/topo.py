"""gpuctl topo: what nodes look like, which GPUs are best together, and whether a file says what it should."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli import fabric, simulate, verify
from phalanx.cli.options import Command, Session
from phalanx.cli.shorthand import Shorthand
from phalanx.cli.text import folded, some
from phalanx.cli.topology_file import parsed, text_of, write_picture
from phalanx.cli.topology_picture import picture
from phalanx.cli.topology_text import drawing, headline
from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.core.topology.choice import choose
from phalanx.core.topology.codec import to_json
from phalanx.core.topology.devices import devices_of
from phalanx.core.topology.fabric import Fabric
from phalanx.core.topology.importers.detect import read, read_node
from phalanx.core.topology.islands import Spread, build_islands, choose_spread
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.presets import PRESETS, nearest_preset, preset
from phalanx.core.topology.ranking import Ranked, rank_sets, rank_spread
from phalanx.core.topology.tables import MOST_DEVICES, build_tables

if TYPE_CHECKING:
    from phalanx.client import Client

SET_COLUMNS = ("", "GPUS", "RING", "RING GB/S", "PAIRS GB/S", "WHY NOT")
_SHOWN = 5


def show(session: Session, node: str, svg: str) -> None:
    """Draws one node, or all of them."""
    screen = session.screen()
    found = _nodes(session, node)
    if svg:
        if len(found) != 1:
            raise InvalidSpecError("--svg draws one node: name it", hint="gpuctl nodes")
        write_picture(svg, picture(*found[0]))
        screen.note(f"{found[0][0]} is drawn in {svg}")
        return
    if screen.look.json:
        for name, topology in found:
            screen.emit({"node": name, "topology": json.loads(to_json(topology))})
        return
    for at, (names, topology) in enumerate(_alike(found)):
        if at:
            screen.data("")
        for line in drawing(folded(names), topology):
            screen.data(line)


def rank(session: Session, node: str, gpus: int, free: str, top: int) -> None:
    """Shows the best sets of a size, and why the others lose."""
    screen = session.screen()
    ((name, topology),) = _nodes(session, node)
    ranked, why = _ranked(name, topology, _mask(topology, free), gpus, top)
    if screen.look.json:
        for each in ranked:
            screen.emit(each)
        return
    screen.data(f"{headline(name, topology)}: {why}")
    screen.table(SET_COLUMNS, [_row(each) for each in ranked], empty="no set")


def _ranked(name: str, topology: NodeTopology, free: int, gpus: int, top: int) -> tuple[Sequence[Ranked], str]:
    """Returns the best sets and why the first is chosen. Raises InvalidSpecError where there is none."""
    if len(devices_of(topology)) > MOST_DEVICES:
        islands = build_islands(topology)
        spread = choose_spread(islands, free, gpus)
        if isinstance(spread, Spread):
            return [rank_spread(islands, spread)], f"{spread.why}; other sets of so many GPUs are not listed"
        raise InvalidSpecError(f"no set of {gpus} on {name}: {spread.reason}")
    chosen = choose(build_tables(topology), free, gpus)
    if not isinstance(chosen, Chosen):
        raise InvalidSpecError(f"no set of {gpus} on {name}: {chosen.reason}")
    return rank_sets(chosen, top), chosen.why


def import_file(session: Session, file: str) -> None:
    """Reads a file in any of the formats and shows what it says."""
    screen = session.screen()
    text = text_of(file)
    facts = parsed(file, text, read).facts
    if isinstance(facts, Fabric):
        fabric.draw(screen, facts)
        return
    topology = parsed(file, text, read_node)
    if screen.look.json:
        screen.data(to_json(topology))
        return
    for line in drawing(Path(file).name, topology):
        screen.data(line)


def _nodes(session: Session, named: str) -> list[tuple[str, NodeTopology]]:
    """A node of the cluster, a preset, or a file; without a name every node that has said what it looks like."""
    if named in PRESETS:
        return [(named, preset(named))]
    if named and Path(named).is_file():
        return [(Path(named).name, parsed(named, text_of(named), read_node))]
    client = session.client()
    if named:
        return [(named, _topology(client, named))]
    found: list[tuple[str, NodeTopology]] = []
    for node in client.list_nodes():
        try:
            found.append((node.node_id, client.topology(node.node_id)))
        except NotFoundError as e:
            session.screen().note(str(e))
    if not found:
        raise NotFoundError(
            "no node has said what connects its GPUs",
            hint=f"try one of the presets: gpuctl topo {next(iter(PRESETS))}",
        )
    return found


def _alike(found: list[tuple[str, NodeTopology]]) -> list[tuple[list[str], NodeTopology]]:
    """Returns the nodes, those whose drawings are the same together."""
    groups: dict[str, tuple[list[str], NodeTopology]] = {}
    for name, topology in found:
        groups.setdefault("\n".join(drawing("", topology)), ([], topology))[0].append(name)
    return list(groups.values())


def _topology(client: Client, named: str) -> NodeTopology:
    """Returns what a node looks like. Raises NotFoundError, saying all that the name might have been."""
    try:
        return client.topology(named)
    except NotFoundError:
        nodes = [node.node_id for node in client.list_nodes()]
        if named in nodes:
            raise
    near = next(iter(get_close_matches(named, nodes, n=1, cutoff=0.8)), "") or nearest_preset(named)
    what = f"no node, machine or file is called {named[:60]!r}{f'; did you mean {near}?' if near else ''}"
    there = f"nodes are {some(nodes) or 'none'}; machines are {', '.join(PRESETS)}"
    raise NotFoundError(f"{what}\n{there}", hint=f"gpuctl topo {near}" if near else "gpuctl nodes")


def _mask(topology: NodeTopology, free: str) -> int:
    """Reads ``0,1,4`` as positions; empty means all."""
    if not free:
        return (1 << len(topology.gpus)) - 1
    by_index = {str(gpu.index): at for at, gpu in enumerate(topology.gpus)}
    wanted = [word.strip() for word in free.split(",") if word.strip()]
    unknown = [word for word in wanted if word not in by_index]
    if unknown:
        raise InvalidSpecError(f"--free names GPU {unknown[0]!r}: the node has {', '.join(by_index)}")
    return sum({1 << by_index[word] for word in wanted})


def _row(each: Ranked) -> tuple[str, ...]:
    mark = "best" if not each.why_not else ""
    return mark, each.gpus, each.ring, f"{each.ring_gbyte_s:.1f}", f"{each.pairs_gbyte_s:.1f}", each.why_not


_NODE = click.Argument(["node"], default="", metavar="NODE|PRESET|FILE")

command = Shorthand(
    "topo",
    help="What nodes look like, and which of their GPUs are best together.",
    commands=[
        Command(
            "show",
            callback=show,
            help="Draw a node: islands, links, NUMA nodes and network ports; without a name all nodes.",
            params=[
                _NODE,
                click.Option(["--svg"], default="", metavar="FILE", help="Write a picture instead."),
            ],
            examples=("gpuctl topo", "gpuctl topo dgx1_v100", "gpuctl topo node7 --svg node7.svg"),
        ),
        Command(
            "rank",
            callback=rank,
            help="The best sets of GPUS on a node, and why the others lose.",
            params=[
                click.Argument(["node"], metavar="NODE|PRESET|FILE"),
                click.Argument(["gpus"], type=click.IntRange(1, 4096)),
                click.Option(["--free"], default="", metavar="0,1,4", help="The GPUs that are free; all without."),
                click.Option(["--top"], type=click.IntRange(1, 100), default=_SHOWN, show_default=True, help="Sets."),
            ],
            examples=("gpuctl topo rank dgx1_v100 2", "gpuctl topo rank node7 4 --free 0,2,3,5,6"),
        ),
        Command(
            "import",
            callback=import_file,
            help="Read a file about a node (nvidia-smi topo -m, NCCL XML, our JSON) or a fabric; show what it says.",
            params=[click.Argument(["file"], type=click.Path(exists=True, dir_okay=False))],
            examples=("gpuctl topo import topo.txt", "gpuctl topo import nccl.xml --json"),
        ),
        verify.command,
        simulate.command,
        fabric.command,
    ],
)
