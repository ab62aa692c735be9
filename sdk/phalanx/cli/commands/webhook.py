"""gpuctl webhook: what signs the webhooks of a workspace."""

from __future__ import annotations

import click

from phalanx.cli.options import Command, Session
from phalanx.core.views import WebhookSecret


def secret(session: Session) -> None:
    """Prints the secret that receivers verify with."""
    _show(session, session.client().webhook_secret())


def rotate(session: Session) -> None:
    """Lets a new secret sign, and prints it."""
    found = session.client().rotate_webhook_secret()
    _show(session, found)
    session.screen().note("the one before it signs as well for 24 hours: give receivers the new one until then")


def _show(session: Session, found: WebhookSecret) -> None:
    screen = session.screen()
    if screen.look.json:
        screen.emit(found)
    else:
        screen.data(found.secret)


command = click.Group(
    "webhook",
    help="Show or rotate what signs the webhooks of your workspace. Receivers check it with "
    "phalanx.webhooks.verify, or any library of the Standard Webhooks specification. For admins.",
    commands=[
        Command(
            "secret",
            callback=secret,
            help="Print the secret that receivers verify with.",
            examples=("gpuctl webhook secret", "gpuctl webhook secret --json"),
        ),
        Command(
            "rotate",
            callback=rotate,
            help="Let a new secret sign, and print it. The one before it signs as well for 24 hours.",
            examples=("gpuctl webhook rotate -q",),
        ),
    ],
)
