"""Help pages: sections, options apart from the ones that every command has, and examples. Writes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from phalanx.cli.options import Command

_EXIT_CODES = (
    ("0", "ok"),
    ("1", "the remote function failed"),
    ("2", "wrong usage"),
    ("3", "not found"),
    ("4", "authentication"),
    ("5", "unschedulable, or over quota"),
    ("6", "cancelled"),
    ("7", "control plane unreachable"),
    ("124", "timeout"),
    ("130", "interrupted"),
)


def write_group_help(
    sections: Sequence[tuple[str, Sequence[tuple[str, str]]]],
    examples: Sequence[str],
    options: Sequence[click.Option],
    ctx: click.Context,
    formatter: click.HelpFormatter,
) -> None:
    """Writes the page of a group: what it is, commands by section, examples, flags, exit codes."""
    formatter.write_usage(ctx.command_path, "COMMAND [ARGS]…")
    _write_text(formatter, ctx.command.help or "")
    for title, rows in sections:
        _write_rows(formatter, title, rows)
    _write_examples(formatter, examples)
    _write_options(formatter, "Options of every command", options, ctx)
    if ctx.parent is None:
        _write_rows(formatter, "Exit codes", _EXIT_CODES)


def write_command_help(command: Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Writes the page of a command: usage, what it does, its own options, examples, common options."""
    formatter.write_usage(ctx.command_path, " ".join(command.collect_usage_pieces(ctx)))
    _write_text(formatter, command.help or "")
    own = [p for p in command.params if isinstance(p, click.Option) and p not in command.common]
    _write_options(formatter, "Options", own, ctx)
    _write_examples(formatter, command.examples)
    _write_options(formatter, "Common options", command.common, ctx)


def _write_text(formatter: click.HelpFormatter, text: str) -> None:
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(text.replace("\b", ""))


def _write_rows(formatter: click.HelpFormatter, title: str, rows: Sequence[tuple[str, str]]) -> None:
    with formatter.section(title):
        formatter.write_dl(list(rows), col_spacing=3)


def _write_options(
    formatter: click.HelpFormatter, title: str, options: Sequence[click.Option], ctx: click.Context
) -> None:
    rows = [row for option in options if (row := option.get_help_record(ctx)) is not None]
    if rows:
        _write_rows(formatter, title, rows)


def _write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    if not examples:
        return
    with formatter.section("Examples"):
        for example in examples:
            formatter.write(f"{'':>{formatter.current_indent}}$ {example}\n")
