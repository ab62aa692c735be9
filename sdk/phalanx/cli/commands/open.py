"""gpuctl open: a link to the live page."""

from __future__ import annotations

import click

from phalanx.cli.options import Command, Session


def open_page(session: Session, browser: bool) -> None:
    """Prints a link that signs its opener in once, within five minutes; opens it too when asked."""
    screen = session.screen()
    link = session.client().login_link()
    if screen.look.json:
        screen.emit({"login_link": link})
    else:
        screen.data(link)
        screen.note("it signs you in once, within five minutes")
    if browser:
        click.launch(link)


command = Command(
    "open",
    callback=open_page,
    help="Print a link that signs you in to the live page, once, within five minutes.",
    params=[click.Option(["--browser"], is_flag=True, help="Open it in the default browser too.")],
    examples=("gpuctl open", "gpuctl open --browser"),
)
