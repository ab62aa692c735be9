"""Which lines of a call's output are asked for: by rank, stream, time and pattern, with lines around, or the last ones.

Pure: lines in, lines out, in their order.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta

from phalanx.core.errors import InvalidSpecError
from phalanx.log_lines import LogLine

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Empty, zero or None: all. Times are wall times in ms, ``around`` lines of the same rank before and behind."""

    ranks: frozenset[int] = frozenset()
    stream: str = ""
    since_ms: int = 0
    until_ms: int = 0
    pattern: re.Pattern[str] | None = None
    around: int = 0

    def of(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yields the lines that are asked for; a passing line only where its last state would be."""
        near: dict[tuple[str, int, str], _Near] = {}
        for line in lines:
            if not self._in_range(line):
                continue
            if self.pattern is None:
                yield line
                continue
            found = self.pattern.search(line.text) is not None
            if line.passing:
                if found:
                    yield line
                continue
            key = (line.node_id, line.rank, line.stream)
            yield from near.setdefault(key, _Near(deque(maxlen=self.around))).see(line, found, self.around)

    def _in_range(self, line: LogLine) -> bool:
        if self.ranks and line.rank not in self.ranks:
            return False
        if self.stream and line.stream != self.stream:
            return False
        return line.at_ms >= self.since_ms and not (self.until_ms and line.at_ms > self.until_ms)


@dataclass(slots=True)
class _Near:
    """One rank's lines before the present one, and how many behind the last match are still wanted."""

    before: deque[LogLine]
    behind: int = field(default=0)

    def see(self, line: LogLine, found: bool, around: int) -> Iterator[LogLine]:
        if found:
            yield from self.before
            self.before.clear()
            self.behind = around
            yield line
        elif self.behind:
            self.behind -= 1
            yield line
        else:
            self.before.append(line)


def last(lines: Iterable[LogLine], count: int | None) -> Iterator[LogLine]:
    """Yields the last ``count`` lines; all of them for None."""
    return iter(lines if count is None else deque(lines, maxlen=count))


def pattern_of(grep: str) -> re.Pattern[str] | None:
    """Returns the compiled pattern; None for an empty one. Raises InvalidSpecError that says what is wrong with it."""
    try:
        return re.compile(grep) if grep else None
    except (re.error, OverflowError) as e:
        hint = "put a backslash before a character that stands for itself, as in '\\('"
        raise InvalidSpecError(f"--grep {grep!r} is not a regular expression\n{e}", hint=hint) from e


def time_ms(words: str, option: str, *, now_ms: int) -> int:
    """Reads ``10m`` as the wall time ten minutes ago, a date as that time here unless it names its zone, and an empty
    text as 0. Raises InvalidSpecError.
    """
    if not words:
        return 0
    number, unit = words[:-1], words[-1]
    if unit in _UNITS_MS and number.isdecimal():
        return now_ms - int(number) * _UNITS_MS[unit]
    try:
        return round(_moment(words, now_ms).timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as e:
        why = "it is neither a number with s, m, h or d, nor a date"
        hint = "write it like 90s, 10m, 2h, 1d, 14:05 or 2026-11-30T12:00"
        raise InvalidSpecError(f"{option} {words!r} is not a time\n{why}", hint=hint) from e


def _moment(words: str, now_ms: int) -> datetime:
    """Reads a date, or a time of day as the last one there was."""
    if ":" not in words or "-" in words:
        return datetime.fromisoformat(words)
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
    found = datetime.combine(now.date(), time.fromisoformat(words)).astimezone()
    return found if found <= now else found - timedelta(days=1)
