"""Flags that every command has, the command class that adds them, and what a command is given.

They may stand before or after the command's name; the later wins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from phalanx.cli.render import Screen
    from phalanx.cli.target import Target
    from phalanx.client import Client

_POSITIVE = click.FloatRange(min=0, min_open=True)
COMMON = ("json", "quiet", "verbose", "no_color", "no_progress", "timeout", "profile")


@dataclass(slots=True)
class Session:
    """What a command works with: its screen, and a connection that is opened when it is first asked for."""

    flags: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def timeout_s(self) -> float | None:
        return self.flags.get("timeout")

    @property
    def profile(self) -> str:
        return self.flags.get("profile") or os.environ.get("PHALANX_PROFILE", "")

    def screen(self) -> Screen:
        """Returns the screen that the flags ask for."""
        from phalanx.cli.render import Look, Screen  # `--help` needs neither

        return Screen(
            Look(
                json=bool(self.flags.get("json")),
                quiet=bool(self.flags.get("quiet")),
                verbose=bool(self.flags.get("verbose")),
                colour=False if self.flags.get("no_color") else None,
                progress=False if self.flags.get("no_progress") else None,
            )
        )

    def target(self, *, start: bool = False) -> Target:
        """Returns the configured cluster; ``start`` also starts the embedded one when nothing is configured."""
        from phalanx.cli.target import resolve

        return resolve(self.profile, start=start, say=self.screen().note)

    def client(self) -> Client:
        """Connects to the configured control plane, or to the embedded one when it runs."""
        from phalanx.cli.target import open_client

        return open_client(self.target(), timeout_s=self.timeout_s)

    def take(self, params: dict[str, Any]) -> None:
        """Takes the common flags out of a command's parameters."""
        for name in COMMON:
            value = params.pop(name, None)
            if value not in (None, False):
                self.flags[name] = value


def common_options() -> list[click.Option]:
    """Returns fresh options for one command."""
    return [
        click.Option(["--json"], is_flag=True, help="JSON on standard output, one document a line."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Data and errors only."),
        click.Option(["-v", "--verbose"], is_flag=True, help="More detail, and tracebacks."),
        click.Option(["--no-color", "no_color"], is_flag=True, help="No colours; so does NO_COLOR."),
        click.Option(["--no-progress", "no_progress"], is_flag=True, help="No status line."),
        click.Option(["--timeout"], type=_POSITIVE, metavar="SECONDS", help="Give up after this long (exit 124)."),
        click.Option(["--profile"], metavar="NAME", help="Profile of the configuration file."),
    ]


class Command(click.Command):
    """A command with the common flags; its callback's first argument is the Session."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.common = common_options()
        self.params = [*self.params, *self.common]

    def invoke(self, ctx: click.Context) -> Any:
        session = ctx.ensure_object(Session)
        session.take(ctx.params)
        callback = self.callback
        return ctx.invoke(callback, session, **ctx.params) if callback is not None else None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from phalanx.cli.helping import write_command_help

        write_command_help(self, ctx, formatter)
