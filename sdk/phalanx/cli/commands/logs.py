"""gpuctl logs: what the ranks of a call wrote. Never touches the call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from phalanx.cli.folding import OutLine, fold
from phalanx.cli.log_choice import Choice, last, pattern_of, time_ms
from phalanx.cli.options import Command, Session
from phalanx.cli.render import Screen
from phalanx.cli.target import full_id
from phalanx.client import is_terminal
from phalanx.core.clock import SystemClock
from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.core.views import CallView
from phalanx.log_lines import STREAM_NAMES, LogLine
from phalanx.logs import CallLogs


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command's options, as they were given; ``tail`` None: all."""

    follow: bool = False
    ranks: tuple[int, ...] = ()
    stream: str | None = None
    since: str = ""
    until: str = ""
    grep: str = ""
    context: int = 0
    tail: int | None = None
    raw: bool = False

    def choice(self, now_ms: int) -> Choice:
        return Choice(
            ranks=frozenset(self.ranks),
            stream=self.stream or "",
            since_ms=time_ms(self.since, "--since", now_ms=now_ms),
            until_ms=time_ms(self.until, "--until", now_ms=now_ms),
            pattern=pattern_of(self.grep),
            around=self.context,
        )

    def refuse_lines(self, *, as_json: bool) -> None:
        """Raises InvalidSpecError for options that choose among lines: ``raw`` output has none."""
        said = {
            "--grep": self.grep,
            "--context": self.context,
            "--tail": self.tail is not None,
            "--since": self.since,
            "--until": self.until,
            "--json": as_json,
        }
        wrong = [name for name, value in said.items() if value]
        if wrong:
            raise InvalidSpecError(
                f"--raw does not go with {wrong[0]}\nit writes bytes as the ranks did, not lines",
                hint="choose with --rank and --stream, and search what was written",
            )


def logs(session: Session, call: str, **options: Any) -> None:
    """Shows the output that is there, and with ``follow`` what comes until the call has ended."""
    screen, asked = session.screen(), Asked(**options)
    choice = asked.choice(SystemClock().wall_ms())
    if asked.raw:
        asked.refuse_lines(as_json=screen.look.json)
    client = session.client()
    call_id = full_id(client, call)
    view = client.get_call(call_id)
    _check_ranks(view, asked.ranks)
    output = CallLogs(client, call_id, passing=asked.follow and screen.live and not screen.look.json)
    try:
        if asked.raw:
            _show_raw(screen, output, choice, follow=asked.follow)
        else:
            _show_lines(screen, output, choice, follow=asked.follow, tail=asked.tail)
    except KeyboardInterrupt:
        screen.clear_status()
        screen.note(f"stopped watching; {call_id} is not touched")
        return
    _tell_end(screen, output, over=asked.follow or is_terminal(view))


def _check_ranks(view: CallView, ranks: tuple[int, ...]) -> None:
    """A call whose size is not known yet may have any rank."""
    wrong = [rank for rank in ranks if rank < 0 or (view.world_size and rank >= view.world_size)]
    if wrong:
        has = "rank 0 only" if view.world_size == 1 else f"ranks 0 to {view.world_size - 1}"
        raise NotFoundError(
            f"call {view.call_id} has no rank {wrong[0]}" + (f": it has {has}" if view.world_size else ""),
            hint=f"gpuctl logs {view.call_id}",
        )


def _show_raw(screen: Screen, output: CallLogs, choice: Choice, *, follow: bool) -> None:
    for chunk in output.chunks_live() if follow else output.chunks_now():
        if choice.ranks and chunk.rank not in choice.ranks:
            continue
        if not choice.stream or STREAM_NAMES.get(chunk.stream) == choice.stream:
            screen.raw(chunk.data)


def _show_lines(screen: Screen, output: CallLogs, choice: Choice, *, follow: bool, tail: int | None) -> None:
    if not follow:
        lines = last(choice.of(output.now()), tail)
    elif tail is None:
        lines = choice.of(output.live())
    else:
        there = last(choice.of(output.now(more=True)), tail)
        lines = itertools.chain(there, choice.of(output.live()))
    show = _show_json if screen.look.json else (_show_live if follow else _show_all)
    show(screen, lines)


def _show_json(screen: Screen, lines: Iterator[LogLine]) -> None:
    for line in lines:
        screen.emit(
            {
                "time": datetime.fromtimestamp(line.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
                "at_ms": line.at_ms,
                "node": line.node_id,
                "rank": line.rank,
                "stream": line.stream,
                "attempt": line.attempt,
                "text": line.text,
                **({"missing_bytes": line.missing} if line.missing else {}),
            }
        )


def _show_live(screen: Screen, lines: Iterator[LogLine]) -> None:
    """Each line as it comes: waiting for other ranks' same line would hold it back. A progress bar is rewritten."""
    nodes: dict[str, int] = {}
    for line in lines:
        folded = fold([_out(line, nodes)])[0]
        if line.passing:
            screen.status(f"{folded.prefix} {line.text}")
        else:
            screen.clear_status()
            screen.log(folded)
    screen.clear_status()


def _show_all(screen: Screen, lines: Iterator[LogLine]) -> None:
    nodes: dict[str, int] = {}
    for folded in fold([_out(line, nodes) for line in lines]):
        screen.log(folded)


def _out(line: LogLine, nodes: dict[str, int]) -> OutLine:
    return OutLine(line.rank, nodes.setdefault(line.node_id, len(nodes)), line.stream, line.text)


def _tell_end(screen: Screen, output: CallLogs, *, over: bool) -> None:
    """Says whether that was all, once the call is over; what it reads was counted, whatever was asked for."""
    tally = output.tally
    if screen.look.json:
        known = {"bytes": tally.received, "missing_bytes": tally.missing, "complete": over and tally.complete}
        screen.emit({"end": known})
    elif over:
        screen.note(tally.words)


command = Command(
    "logs",
    callback=logs,
    help="What the ranks of a call wrote, with rank prefixes; lines that are the same on several ranks are folded, and "
    "of a progress bar its last state is shown. The call is never touched.",
    params=[
        click.Argument(["call"]),
        click.Option(["-f", "--follow"], is_flag=True, help="Go on until the call has ended."),
        click.Option(["--rank", "ranks"], type=int, multiple=True, help="This rank only; may be repeated."),
        click.Option(["--stream"], type=click.Choice(["stdout", "stderr"]), help="This stream only."),
        click.Option(["--since"], default="", metavar="TIME", help="Only what is younger: 10m, 2h, 2026-11-30T12:00."),
        click.Option(["--until"], default="", metavar="TIME", help="Only what is older."),
        click.Option(["--grep"], default="", metavar="REGEX", help="Only lines that match."),
        click.Option(
            ["-C", "--context"],
            type=click.IntRange(min=0),
            default=0,
            metavar="N",
            help="With --grep: N lines of the same rank around each match, too.",
        ),
        click.Option(["--tail"], type=click.IntRange(min=0), metavar="N", help="Only the last N lines."),
        click.Option(["--raw"], is_flag=True, help="Bytes as they were written, without prefixes."),
    ],
    examples=(
        "gpuctl logs c-0d5t… -f --rank 0",
        "gpuctl logs c-0d5t… --grep 'loss|error' -C 3 --since 10m",
        "gpuctl logs c-0d5t… --raw --rank 3 --stream stderr > rank3.err",
    ),
)
