"""gpuctl logs: what the ranks of a call wrote. Never touches the call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

import click

from phalanx.cli.folding import OutLine, fold
from phalanx.cli.options import Command, Session
from phalanx.cli.render import Screen
from phalanx.cli.target import full_id
from phalanx.core.clock import SystemClock
from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.core.views import CallView
from phalanx.logs import LogLine, read_logs

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def logs(session: Session, call: str, *, follow: bool, ranks: tuple[int, ...], since: str, grep: str) -> None:
    """Shows the output that is there, and with ``follow`` what comes until the call has ended."""
    screen = session.screen()
    wanted = _Wanted(frozenset(ranks), since_ms(since), pattern_of(grep))
    client = session.client()
    call_id = full_id(client, call)
    _check_ranks(client.get_call(call_id), ranks)
    lines = (line for line in read_logs(client, call_id, follow=follow) if wanted.has(line))
    try:
        for_each = _show_json if screen.look.json else (_show_live if follow else _show_all)
        for_each(screen, lines)
    except KeyboardInterrupt:
        screen.note(f"stopped watching; {call_id} is not touched")


def _check_ranks(view: CallView, ranks: tuple[int, ...]) -> None:
    """A call whose size is not known yet may have any rank."""
    wrong = [rank for rank in ranks if rank < 0 or (view.world_size and rank >= view.world_size)]
    if wrong:
        has = "rank 0 only" if view.world_size == 1 else f"ranks 0 to {view.world_size - 1}"
        raise NotFoundError(
            f"call {view.call_id} has no rank {wrong[0]}" + (f": it has {has}" if view.world_size else ""),
            hint=f"gpuctl logs {view.call_id}",
        )


class _Wanted:
    """Which lines are asked for."""

    def __init__(self, ranks: frozenset[int], since: int, pattern: re.Pattern[str] | None) -> None:
        self._ranks = ranks
        self._since = since
        self._pattern = pattern

    def has(self, line: LogLine) -> bool:
        if self._ranks and line.rank not in self._ranks:
            return False
        if line.at_ms < self._since:
            return False
        return self._pattern is None or self._pattern.search(line.text) is not None


def _show_json(screen: Screen, lines: Iterator[LogLine]) -> None:
    for line in lines:
        screen.emit(line)


def _show_live(screen: Screen, lines: Iterator[LogLine]) -> None:
    """Each line as it comes: waiting for other ranks' same line would hold it back."""
    nodes: dict[str, int] = {}
    for line in lines:
        for folded in fold([_out(line, nodes)]):
            screen.log(folded)


def _show_all(screen: Screen, lines: Iterator[LogLine]) -> None:
    nodes: dict[str, int] = {}
    for folded in fold([_out(line, nodes) for line in lines]):
        screen.log(folded)


def _out(line: LogLine, nodes: dict[str, int]) -> OutLine:
    return OutLine(line.rank, nodes.setdefault(line.node_id, len(nodes)), line.stream, line.text)


def pattern_of(grep: str) -> re.Pattern[str] | None:
    """Returns the compiled pattern; None for an empty one. Raises InvalidSpecError that says what is wrong with it."""
    try:
        return re.compile(grep) if grep else None
    except (re.error, OverflowError) as e:
        hint = "put a backslash before a character that stands for itself, as in '\\('"
        raise InvalidSpecError(f"--grep {grep!r} is not a regular expression\n{e}", hint=hint) from e


def since_ms(words: str) -> int:
    """Reads ``10m`` as the wall time ten minutes ago, a date as that time here unless it names its zone, and an empty
    text as the beginning. Raises InvalidSpecError.
    """
    if not words:
        return 0
    number, unit = words[:-1], words[-1]
    if unit in _UNITS_MS and number.isdecimal():
        return SystemClock().wall_ms() - int(number) * _UNITS_MS[unit]
    try:
        return round(datetime.fromisoformat(words).timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as e:
        why = "it is neither a number with s, m, h or d, nor a date"
        hint = "write it like 90s, 10m, 2h, 1d or 2026-11-30T12:00"
        raise InvalidSpecError(f"--since {words!r} is not a time\n{why}", hint=hint) from e


command = Command(
    "logs",
    callback=logs,
    help="What the ranks of a call wrote, with rank prefixes; lines that are the same on several ranks are folded. "
    "The call is never touched.",
    params=[
        click.Argument(["call"]),
        click.Option(["-f", "--follow"], is_flag=True, help="Go on until the call has ended."),
        click.Option(["--rank", "ranks"], type=int, multiple=True, help="This rank only; may be repeated."),
        click.Option(
            ["--since"],
            default="",
            metavar="TIME",
            help="Only what is younger: 10m, 2h, 2026-11-30T12:00.",
        ),
        click.Option(["--grep"], default="", metavar="REGEX", help="Only lines that match."),
    ],
    examples=("gpuctl logs c-0d5t… -f --rank 0", "gpuctl logs c-0d5t… --grep 'loss|error' --since 10m"),
)
