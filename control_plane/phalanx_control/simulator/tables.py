"""Rows of CSV files, whose mistakes are told by line and column. No I/O: texts come in."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phalanx.core.errors import InvalidSpecError


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file, by the names of its columns."""

    file: str
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        return self.cells.get(column, "")

    def number(self, column: str) -> float:
        """Returns a number of at least 0. Raises InvalidSpecError naming the place."""
        said = self.text(column)
        try:
            value = float(said)
        except ValueError:
            raise self.wrong(column, "is no number") from None
        if not math.isfinite(value) or value < 0:
            raise self.wrong(column, "must be 0 or more")
        return value

    def whole(self, column: str) -> int:
        value = self.number(column)
        if value != int(value):
            raise self.wrong(column, "must be a whole number")
        return int(value)

    def wrong(self, column: str, why: str) -> InvalidSpecError:
        """Returns what to raise about one cell."""
        where = f"{self.file}, line {self.line}, column {column!r}"
        return InvalidSpecError(
            f"{where}: {self.text(column)[:60]!r} {why}", hint=f"mend line {self.line} of {self.file}"
        )


def rows_of(text: str, file: str, columns: Sequence[str], *, what: str) -> Iterator[Row]:
    """Yields the rows of a file that has these columns, perhaps among others. Raises InvalidSpecError elsewhere."""
    reader = csv.reader(io.StringIO(text))
    header = next(reader, [])
    missing = [column for column in columns if column not in header]
    if missing:
        raise InvalidSpecError(
            f"{file}, line 1: {what} needs the column {missing[0]!r}", hint=f"its first line names {', '.join(columns)}"
        )
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            raise InvalidSpecError(
                f"{file}, line {reader.line_num}: {len(cells)} cells where the first line names {len(header)}",
                hint=f"mend line {reader.line_num} of {file}",
            )
        yield Row(file, reader.line_num, dict(zip(header, cells, strict=True)))
