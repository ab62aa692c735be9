"""The only file of gpuctl that prints. Data goes to standard output; progress, hints and errors to standard error.

On a terminal tables are fitted to its width and one status line is kept at the bottom; elsewhere all is plain lines.
With ``json`` standard output carries JSON and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, TextIO

from phalanx.cli import palette
from phalanx.cli.folding import Folded
from phalanx.cli.problem import Problem, problem_of
from phalanx.cli.tables import fitted_table, plain_table
from phalanx.core.messages import ErrorInfo
from phalanx.terminal_text import harmless

_ERASE_LINE = "\r\x1b[2K"
_STATE = rf"(?<!\S)(?:{'|'.join(palette.STATES)})(?!\S)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How to show things: what the flags, NO_COLOR, FORCE_COLOR and CI ask for. None means: decide by the terminal."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    colour: bool | None = None
    progress: bool | None = None


class Screen:
    """Writes for one command."""

    def __init__(self, look: Look, *, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.look = look
        self._out = _tolerant(out or sys.stdout)
        self._err = _tolerant(err or sys.stderr)
        self._colour_out = wants_colour(look, self._out)
        self._colour_err = wants_colour(look, self._err)
        self._truecolour = os.environ.get("COLORTERM", "") in ("truecolor", "24bit")
        self._status = ""
        self.live = wants_progress(look, self._err)
        """Whether a status line is drawn; otherwise changes are told as lines with a time."""

    def data(self, text: str) -> None:
        """One line of what was asked for."""
        self._above_status(self._out, text)

    def note(self, text: str) -> None:
        """One line beside the data: progress, a hint. Not shown with ``-q``."""
        if not self.look.quiet:
            self._above_status(self._err, text)

    def detail(self, text: str) -> None:
        """One line for ``-v`` only."""
        if self.look.verbose:
            self._above_status(self._err, text)

    def emit(self, value: Any) -> None:
        """One JSON document on one line: the whole answer, or one event of a stream."""
        self._above_status(self._out, json.dumps(plain(value), default=str))

    def log(self, line: Folded) -> None:
        """One line of ranks, on the stream that they wrote it to."""
        stream, colour = (self._err, self._colour_err) if line.stream == "stderr" else (self._out, self._colour_out)
        prefix = line.prefix
        if colour:
            shade = palette.rank_colour(line.ranks[0]) if len(line.ranks) == 1 else palette.FAINT
            prefix = palette.paint(prefix, shade, truecolour=self._truecolour)
        self._above_status(stream, f"{prefix} {harmless(line.text, colours=colour)}")

    def raw(self, data: bytes) -> None:
        """Bytes as they are, on standard output."""
        buffer = getattr(self._out, "buffer", None)
        if buffer is None:
            self._write(self._out, data.decode(errors="replace"))
        else:
            buffer.write(data)
            buffer.flush()

    def state(self, word: str) -> str:
        """Returns a state as icon, word and colour for a line of notes."""
        shown = f"{palette.ICONS.get(word, '·')} {word}"
        if self._colour_err and word in palette.STATES:
            return palette.paint(shown, palette.STATES[word], truecolour=self._truecolour)
        return shown

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
        """A table on standard output; ``empty`` is told instead of one without rows."""
        if not rows:
            self.note(empty)
        elif self._out.isatty():
            self._rich_table(columns, rows)
        else:
            for line in plain_table(columns, rows):
                self.data(line)

    def status(self, text: str) -> None:
        """Redraws the one line at the bottom; nothing where there is no terminal."""
        if not self.live or text == self._status:
            return
        width = _width(self._err)
        self._status = text if len(text) < width else text[: width - 2] + "…"
        self._write(self._err, f"{_ERASE_LINE}{self._status}")

    def clear_status(self) -> None:
        """Takes the status line away."""
        if self._status:
            self._status = ""
            self._write(self._err, _ERASE_LINE)

    def problem(self, error: BaseException) -> None:
        """An error in three lines; the traceback before them with ``-v``. A JSON object instead with ``--json``."""
        self.clear_status()
        remote = str(getattr(error, "remote_traceback", "")).rstrip()
        if remote and not self.look.quiet:
            self._write(self._err, remote + "\n")
        if self.look.verbose:
            self._write(self._err, "".join(traceback.format_exception(error)))
        self.three_lines(problem_of(error))

    def help(self, text: str) -> None:
        """A help page that nobody asked for, on standard error."""
        self._write(self._err, f"{text}\n")

    def three_lines(self, problem: Problem) -> None:
        """What happened, why, and what to do next, on standard error."""
        if self.look.json:
            self._write(self._err, json.dumps({"error": asdict(problem)}) + "\n")
            return
        first, why, hint = problem.lines()
        if self._colour_err:
            first = palette.paint(first, palette.ERROR, truecolour=self._truecolour)
            hint = palette.paint(hint, palette.HINT, truecolour=self._truecolour)
        self._write(self._err, f"{first}\n{why}\n{hint}\n")

    def _above_status(self, stream: TextIO, text: str) -> None:
        if self._status:
            self._write(self._err, _ERASE_LINE)
        self._write(stream, f"{text}\n")
        if self._status:
            self._write(self._err, self._status)

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()

    def _rich_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich.console import Console
        from rich.text import Text

        console = Console(file=self._out, no_color=not self._colour_out, highlight=False)
        heads, *lines = fitted_table(columns, rows, _width(self._out))
        console.print(Text(heads, style="bold"), soft_wrap=True)
        for line in lines:
            text = Text(line)
            found = None if line.startswith(" ") else re.search(_STATE, line)
            if found:
                text.stylize(palette.STATES[found[0]], *found.span())
            console.print(text, soft_wrap=True)


def plain(value: Any) -> Any:
    """Returns dataclasses, enums and bytes as JSON can hold them; keys keep their order, which is stable.

    An error that says nothing is null: there was none.
    """
    if isinstance(value, ErrorInfo) and not value:
        return None
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def wants_colour(look: Look, stream: TextIO) -> bool:
    """``--no-color`` wins, then NO_COLOR, then FORCE_COLOR, then whether it is a terminal."""
    if look.colour is not None:
        return look.colour and not look.json
    if look.json or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_progress(look: Look, stream: TextIO) -> bool:
    """A status line needs a terminal, and nobody who asked for JSON, quiet, no progress, or runs in CI."""
    if look.json or look.quiet or os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty() and look.progress is not False


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _tolerant(stream: TextIO) -> TextIO:
    """What the locale cannot write becomes an escape, never an error."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return stream
