"""How gpuctl ends when something went wrong: three lines and an exit code. Imported when that happens."""

from __future__ import annotations

from difflib import get_close_matches

import click

from phalanx.cli.exits import Exit, exit_of
from phalanx.cli.problem import Problem
from phalanx.cli.render import Screen

_HELP_ASKED: type[click.UsageError] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""How newer versions of click say that a group was named without a command."""

_NEAR = 0.7
"""How much alike, from 0 to 1, a mistyped option and the one that was meant are."""


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
    what, why = _parts(error)
    return Problem("USAGE", what, why or _usage(error.ctx), f"{path} --help")


def _parts(error: click.UsageError) -> tuple[str, str]:
    """What is wrong and, where click's message says more than that, the rest of the message."""
    message = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption):
        return f"{error.message}{_meant(error)}", ""
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        head, _, tail = message.partition(": ")
        return head, tail
    return message, ""


def _meant(error: click.NoSuchOption) -> str:
    """Names the option that was meant where one is near. Click compares the dashes too, and takes almost any."""
    known = {option.lstrip("-"): option for option in error.possibilities or ()}
    near = get_close_matches(error.option_name.lstrip("-"), known, n=1, cutoff=_NEAR)
    return f" Did you mean {known[near[0]]!r}?" if near else ""


def _usage(ctx: click.Context | None) -> str:
    if ctx is None:
        return "the command line is not complete or not right"
    return f"the usage is {ctx.command_path} {' '.join(ctx.command.collect_usage_pieces(ctx))}"
