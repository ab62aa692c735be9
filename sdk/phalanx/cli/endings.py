"""How gpuctl ends when something went wrong: three lines and an exit code. Imported when that happens."""

from __future__ import annotations

import click

from phalanx.cli.exits import Exit, exit_of
from phalanx.cli.problem import Problem
from phalanx.cli.render import Screen

_HELP_ASKED: type[click.UsageError] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""How newer versions of click say that a group was named without a command."""


def tell(error: BaseException, screen: Screen) -> Exit:
    """Tells ``error`` and returns the exit code that it leads to."""
    if isinstance(error, _HELP_ASKED) and error.ctx is not None:
        screen.help(error.ctx.get_help())
        return Exit.USAGE
    if isinstance(error, click.UsageError):
        screen.three_lines(_usage_problem(error))
        return Exit.USAGE
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        screen.problem(error if isinstance(error, KeyboardInterrupt) else KeyboardInterrupt(*error.args))
        return Exit.INTERRUPTED
    screen.problem(error)
    return exit_of(error)


def _usage_problem(error: click.UsageError) -> Problem:
    path = error.ctx.command_path if error.ctx else "gpuctl"
    return Problem("USAGE", error.format_message(), "the command line is not complete or not right", f"{path} --help")
