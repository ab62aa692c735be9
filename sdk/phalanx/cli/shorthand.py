"""A group of commands whose `show` may be left out."""

from __future__ import annotations

import click


class Shorthand(click.Group):
    """`gpuctl topo NODE` is short for `gpuctl topo show NODE`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args or args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["show", *args]
        return super().parse_args(ctx, args)
