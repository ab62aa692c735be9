"""gpuctl up: starts or joins the embedded cluster of this machine."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from phalanx.cli.options import Command, Session

_RETRY_S = 10.0


def up(session: Session, simulate: str) -> None:
    """Starts or joins the embedded cluster, and prints its address and a link to its page."""
    from phalanx.client import Client
    from phalanx.connection import Connection
    from phalanx.embedded import ensure
    from phalanx.embedded.devices import VARIABLE

    if simulate:
        os.environ[VARIABLE] = simulate
    screen = session.screen()
    screen.status("starting store, control plane and agent…")
    connection = ensure(say=screen.detail)
    screen.clear_status()
    here = Connection(connection.address, connection.token, connection.ca_path, embedded=True)
    link = Client(here, retry_s=_RETRY_S).login_link()
    if screen.look.json:
        answer = asdict(connection)
        del answer["token"]
        screen.emit({**answer, "login_link": link})
        return
    screen.note("started the embedded cluster" if connection.started else "the embedded cluster is running")
    screen.data(f"address  {connection.address}")
    screen.data(f"page     {link}")
    if connection.simulates:
        screen.note(f"it looks like {connection.simulates}; its {connection.simulated_gpus} GPUs are simulated")
    elif connection.simulated_gpus:
        screen.note(f"there is no NVIDIA GPU here: its {connection.simulated_gpus} GPUs are simulated, ranks use gloo")
    screen.note("the link signs you in once; `gpuctl open` makes another. It stops ten minutes after its last client")


command = Command(
    "up",
    callback=up,
    help="Start or join the embedded cluster of this machine: store, control plane and one agent, on loopback.",
    params=[
        click.Option(
            ["--simulate"],
            default="",
            metavar="MACHINE",
            help="Look like a machine that `gpuctl topo` knows, as hgx_h100, or like one in a file; ranks use gloo.",
        )
    ],
    examples=("gpuctl up", "gpuctl up --simulate hgx_h100", "gpuctl up --json"),
)
