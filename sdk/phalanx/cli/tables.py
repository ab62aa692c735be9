"""Tables as lines: as wide as they are for a pipe, fitted to the width of a terminal. Pure.

What people copy, ids and names of nodes, and numbers are never cut. Where a table is too wide, its last column of prose
goes on in lines of its own, then names of models and functions are shortened, then columns stand closer.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_RIGHT = frozenset({"GPUS", "COST", "GPU-S", "MEMORY", "AGE", "TIME", "RANKS", "CALLS", "SHARE"})
_PROSE = frozenset({"WHAT", "WHY", "WHY NOT"})
_SHORTENED = {"MODEL": 12, "FUNCTION": 8, "SUBJECT": 12}
_ROOM_FOR_PROSE = 30
_INDENT = "    "


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table as lines of padded columns, nothing cut off."""
    return _lines(columns, [columns, *rows], _widths(columns, rows), "  ")


def fitted_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Returns a table as lines that fit a terminal, the first of them its heads, where it can be made to."""
    widths = _widths(columns, rows)
    if _total(widths, 2) <= width:
        return plain_table(columns, rows)
    if columns[-1] not in _PROSE:
        return _shortened(columns, rows, width)
    room = width - _total(widths[:-1], 2) - 2
    if room >= min(_ROOM_FOR_PROSE, widths[-1]):
        return _wrapped(columns, rows, room)
    return _prose_below(columns, rows, width)


def _wrapped(columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[str]:
    """The last column goes on below itself."""
    cut: list[Sequence[str]] = []
    for row in rows:
        first, *more = textwrap.wrap(row[-1], room) or [""]
        cut.append((*row[:-1], first))
        cut += [(*[""] * (len(row) - 1), text) for text in more]
    return plain_table(columns, cut)


def _prose_below(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The last column stands below each row; not where it repeats one of the others."""
    heads, *lines = _shortened(columns[:-1], [row[:-1] for row in rows], width)
    told = [heads]
    for line, row in zip(lines, rows, strict=True):
        told.append(line)
        if row[-1] not in row[:-1]:
            told += textwrap.wrap(row[-1], width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return told


def _shortened(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    natural = _widths(columns, rows)
    for gap in (2, 1):
        widths = list(natural)
        for at, name in enumerate(columns):
            over = _total(widths, gap) - width
            if over > 0 and name in _SHORTENED:
                widths[at] = max(min(_SHORTENED[name], widths[at]), widths[at] - over)
        if _total(widths, gap) <= width:
            break
    cut = [[_cut(cell, widths[at]) for at, cell in enumerate(row)] for row in (columns, *rows)]
    return _lines(columns, cut, widths, " " * gap)


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], gap: str) -> list[str]:
    right = [name in _RIGHT for name in columns]
    return [
        gap.join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(cells[at]) for cells in (columns, *rows)) for at in range(len(columns))]


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"
