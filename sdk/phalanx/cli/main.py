"""gpuctl: where it starts. Commands are imported when they run; `--help` and `--version` import none of them."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from phalanx.cli.exits import Exit
from phalanx.cli.options import Session, common_options

SECTIONS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "This machine",
        (
            ("up", "Start or join the embedded cluster and print its address and page."),
            ("down", "Stop the embedded cluster at once."),
            ("status", "What the cluster is, and what it is doing."),
            ("doctor", "What is missing on this machine, and how to fix it."),
        ),
    ),
    (
        "Functions and calls",
        (
            ("run", "Run a function of a file on a gang, and watch it."),
            ("deploy", "Deploy the functions of a file, all at once."),
            ("ps", "Calls that are alive, or all of them."),
            ("graph", "A call and the calls that it made, as a tree."),
            ("map", "How far a spawned map has come, and what failed of it."),
            ("logs", "What the ranks of a call wrote."),
            ("stack", "Where the ranks of a running call stand."),
            ("steps", "How long the ranks' steps take, and which rank is slow."),
            ("attach", "Debug a rank that waits at a breakpoint."),
            ("shell", "A shell beside a rank of a running call."),
            ("release", "End a gang that is held after its call's failure."),
            ("report", "What is known of a call that failed."),
            ("replay", "Run a call again on this machine."),
            ("explain", "Why a call or gang stands where it stands, and what its ranks got."),
            ("cancel", "End a call on all its ranks."),
        ),
    ),
    (
        "Cluster",
        (
            ("queue", "Calls that wait, in their order, why, and what accounts hold."),
            ("when", "When a gang could start, and what it would wait for."),
            ("at", "The cluster as it was at a moment."),
            ("policy", "Who gets how much: weights, guarantees and limits."),
            ("simulate", "How long who would wait: jobs played on a fleet on paper."),
            ("nodes", "Nodes and their GPUs."),
            ("cordon", "Place nothing new on nodes."),
            ("drain", "Let what runs on nodes end, and place nothing new there."),
            ("uncordon", "Give nodes back to work."),
            ("topo", "What connects the GPUs of nodes, and which are best together."),
            ("cost", "What was used and what it costs, by call, function, user or phase."),
            ("open", "A link that signs you in to the live page."),
            ("webhook", "Show or rotate what signs the webhooks of your workspace."),
            ("token", "Create, list and revoke API tokens."),
            ("config", "Where the settings come from."),
        ),
    ),
)
EXAMPLES = ("gpuctl up", "gpuctl run examples/hello_gang.py", "gpuctl logs c-0d5t… -f --rank 0")
_NAMES = tuple(name for _, rows in SECTIONS for name, _ in rows)


class Root(click.Group):
    """The group of all commands, by name; the module of a command is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _NAMES:
            return None
        return import_module(f"phalanx.cli.commands.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Answers a mistyped command with the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in _NAMES:
            from difflib import get_close_matches

            near = get_close_matches(args[0], _NAMES, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from phalanx.cli.helping import write_group_help

        write_group_help(SECTIONS, EXAMPLES, self.options, ctx, formatter)

    @property
    def options(self) -> list[click.Option]:
        return [p for p in self.params if isinstance(p, click.Option)]


def _enter(**params: Any) -> None:
    click.get_current_context().ensure_object(Session).take(params)


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from phalanx.embedded.version import installed_version

        click.echo(f"gpuctl {installed_version()}")
        ctx.exit()


root = Root(
    "gpuctl",
    help="Run functions on gangs of GPUs, and watch them.",
    callback=_enter,
    params=[
        *common_options(),
        click.Option(
            ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="The version."
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main() -> None:
    """The program: runs a command and ends with its exit code."""
    session = Session()
    try:
        code = _run(session, sys.argv[1:] or ["--help"])
    except BrokenPipeError:
        code = 0
        _drop_output()
    if code == Exit.INTERRUPTED:
        _leave_at_once(int(code))
    sys.exit(int(code))


def _run(session: Session, argv: list[str]) -> int:
    try:
        result = root.main(argv, prog_name="gpuctl", standalone_mode=False, obj=session)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as e:  # noqa: BLE001 (the process boundary: told in three lines, and the exit code says it)
        from phalanx.cli.endings import tell

        return tell(e, session.screen())


def _leave_at_once(code: int) -> NoReturn:
    """An interrupted wait may leave a stream of gRPC's half open, and the interpreter would wait for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _drop_output() -> None:
    """Whoever read the output has gone: nothing more is written, also not at the interpreter's end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())


if __name__ == "__main__":
    main()
