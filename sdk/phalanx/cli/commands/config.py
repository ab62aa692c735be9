"""gpuctl config: where the settings come from."""

from __future__ import annotations

from typing import Any

import click

from phalanx.cli.options import Command, Session, common_options


def show(session: Session, origin: bool) -> None:
    """Prints the settings that hold here. A token is shown by its beginning only."""
    from phalanx import config

    screen = session.screen()
    settings = config.resolve({"profile": session.profile})
    rows = {
        name: {"value": hide(value.text) if name == "token" else value.text, "origin": value.origin}
        for name, value in settings.items()
    }
    if screen.look.json:
        screen.emit(rows if origin else {name: row["value"] for name, row in rows.items()})
        return
    for name, row in rows.items():
        source = f"    # {row['origin']}" if origin else ""
        screen.data(f"{name:<8} = {row['value'] or '-'}{source}")
    screen.note(f"profiles live in {config.config_path()}")


def hide(token: str) -> str:
    """Returns a token's public part: ``px_<id>_…``."""
    head, _, _ = token.rpartition("_")
    return f"{head}_…" if head else ("…" if token else "")


def _show_alone(**params: Any) -> None:
    """Without a subcommand the settings are shown."""
    ctx = click.get_current_context()
    session = ctx.ensure_object(Session)
    session.take(params)
    if ctx.invoked_subcommand is None:
        show(session, origin=False)


command = click.Group(
    "config",
    invoke_without_command=True,
    callback=_show_alone,
    params=list[click.Parameter](common_options()),
    help="Where the settings come from: flag, environment, project file, profile, embedded cluster.",
    commands=[
        Command(
            "show",
            callback=show,
            help="Print the settings that hold in this folder; with --origin where each comes from.",
            params=[click.Option(["--origin"], is_flag=True, help="Where each value comes from.")],
            examples=("gpuctl config show --origin", "gpuctl config show --profile work --json"),
        )
    ],
)
