"""gpuctl topo fabric: the network between the cell's nodes, told to the cell and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from phalanx.cli.fabric_picture import fabric_picture
from phalanx.cli.fabric_text import drawing
from phalanx.cli.options import Command, Session
from phalanx.cli.shorthand import Shorthand
from phalanx.cli.text import count, some
from phalanx.cli.topology_file import parsed, text_of, write_picture
from phalanx.core.topology.fabric import Fabric
from phalanx.core.topology.fabric_codec import fabric_to_json
from phalanx.core.topology.importers.detect import Format, read_fabric

if TYPE_CHECKING:
    from phalanx.cli.render import Screen

_FORMATS = {
    "json": Format.FABRIC_JSON,
    "slurm": Format.SLURM,
    "ibnetdiscover": Format.IBNETDISCOVER,
    "aws": Format.AWS,
    "gcp": Format.GCP,
    "azure": Format.AZURE,
}


def show(session: Session, svg: str) -> None:
    """Draws the fabric with what agents know of their nodes."""
    screen = session.screen()
    known = session.client().fabric()
    if svg:
        write_picture(svg, fabric_picture(known.fabric, absent=frozenset(known.absent)))
        screen.note(f"the fabric is drawn in {svg}")
        return
    if screen.look.json:
        screen.emit({"is_set": known.is_set, "absent": known.absent, "fabric": known.fabric})
        return
    for line in drawing(known.fabric, absent=frozenset(known.absent)):
        screen.data(line)
    if not known.is_set:
        screen.note("nobody has told this cell its fabric: `gpuctl topo fabric set FILE`")


def draw(screen: Screen, fabric: Fabric) -> None:
    """Shows a fabric that no cell was asked about."""
    if screen.look.json:
        screen.data(fabric_to_json(fabric))
        return
    for line in drawing(fabric):
        screen.data(line)


def set_fabric(session: Session, file: str, written_as: str) -> None:
    """Reads a file and tells the cell."""
    screen = session.screen()
    fabric = parsed(file, text_of(file), lambda text: read_fabric(text, _FORMATS[written_as] if written_as else None))
    known = session.client().set_fabric(fabric)
    if screen.look.json:
        screen.emit({"nodes": len(fabric.nodes), "absent": known.absent, "notes": fabric.notes})
        return
    screen.note(_told(fabric, known.fabric, known.absent))
    for note in fabric.notes:
        screen.note(note)


def clear(session: Session) -> None:
    """Lets the cell forget the fabric; what agents know of NVLink domains stays."""
    screen = session.screen()
    client = session.client()
    was_set = client.fabric().is_set
    client.set_fabric(None)
    if screen.look.json:
        screen.emit({"cleared": was_set})
    else:
        screen.note("the fabric is forgotten" if was_set else "nothing to forget: nobody has told this cell its fabric")


def _told(fabric: Fabric, known: Fabric, absent: tuple[str, ...]) -> str:
    named = {node.id for node in fabric.nodes}
    text = f"the fabric of {count(len(named), 'node')} and {count(len(fabric.domains), 'domain')} is set"
    if absent:
        text += f"; not joined yet, and kept: {some(absent)}"
    outside = [node.id for node in known.nodes if node.id not in named]
    if outside:
        text += f"; nodes of this cell that it does not name: {some(outside)}"
    return text


command = Shorthand(
    "fabric",
    help="The network between nodes: gangs of several nodes are placed near together by it.",
    commands=[
        Command(
            "show",
            callback=show,
            help="Draw the fabric, and what is known of each node.",
            params=[click.Option(["--svg"], default="", metavar="FILE", help="Write a picture instead.")],
            examples=("gpuctl topo fabric", "gpuctl topo fabric --json", "gpuctl topo fabric show --svg fabric.svg"),
        ),
        Command(
            "set",
            callback=set_fabric,
            help="Tell the cell its fabric, in place of what it knew: Slurm topology.conf, ibnetdiscover, instance "
            "topology of AWS, GCP or Azure, or our JSON.",
            params=[
                click.Argument(["file"], type=click.Path(exists=True, dir_okay=False)),
                click.Option(
                    ["--format", "written_as"],
                    type=click.Choice(list(_FORMATS)),
                    help="How the file is written; found out without.",
                ),
            ],
            examples=("gpuctl topo fabric set topology.conf", "gpuctl topo fabric set nodes.json --format aws"),
        ),
        Command("clear", callback=clear, help="Forget the fabric.", examples=("gpuctl topo fabric clear",)),
    ],
)
