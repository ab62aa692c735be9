"""The table that `nvidia-smi topo -m` prints, put back together: which word stands in which row and column.

What it copes with: text before and after, escapes, indentation, lines that a terminal wrapped (also within a word),
blank affinity columns, a table cut off at any side, rows that are missing. Which lines belong together is found here,
which words do in `topo_rows.py`, and what they mean in `topo_text.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.text import plain_lines
from phalanx.core.topology.importers.topo_rows import CELL, HEADINGS, Entry, affinity_of, rejoined_heading, split_row

GPU = re.compile(r"GPU(?:0|[1-9][0-9]{0,3})")
MIG = re.compile(r"MIG\S*|GPU[0-9]{1,4}[./:]\S+")
_LABEL = re.compile(r"(?:GPU|NIC)[0-9]{1,4}")
_NAME = re.compile(r"[A-Za-z_][\w.:/@-]{0,63}")
_FRAGMENT = re.compile(r"[A-Z0-9,/-]+")
_NIC_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4}):\s*(\S{1,64})\s*")
_MAX_COLUMNS = 640
_MAX_PIECES = 64
"""Lines that one row, or the heading, may be wrapped to."""


@dataclass(slots=True)
class Table:
    """``columns``: labels in the heading's order. ``cells``: word by (row label, column label)."""

    columns: list[str]
    headings: tuple[str, ...]
    cells: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    affinity: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """Word by heading, by row label; only what was there."""
    rows: dict[str, int] = field(default_factory=dict[str, int])
    """Line by label."""
    mig_rows: list[str] = field(default_factory=list[str])
    """The GPU's label for each row of a MIG device, or "" where the text does not tell."""
    nic_names: dict[str, str] = field(default_factory=dict[str, str])
    nvlink_in_legend: bool | None = None
    """None: there is no legend."""
    pcie_only: bool = False
    """The command line above the table says ``-mp``."""
    notes: list[str] = field(default_factory=list[str])


def read_table(text: str) -> Table:
    """Raises UnreadableTopologyError where there is no such table."""
    lines = plain_lines(text, "the text of `nvidia-smi topo -m`")
    first = next((at for at, line in enumerate(lines) if _is_gpu_row(line.split(maxsplit=2))), None)
    if first is None:
        raise UnreadableTopologyError("expected a row such as `GPU0  X  NV4  0-31`, as `nvidia-smi topo -m` prints")
    above = range(max(0, first - _MAX_PIECES), first)
    head = next((at for at in above if _is_heading(lines[at].split())), None)
    if head is None:
        entries = _entries(lines, first, {label for label in _row_labels(lines[first:]) if not label.isupper()})
        table = _headless(entries)
    else:
        table = _heading(Entry(head + 1, lines[head:first]), _row_labels(lines[first:]))
        entries = _entries(lines, first, set(table.columns))
    table.pcie_only = any("topo" in line and "-mp" in line for line in lines[:first])
    gpu = ""
    for entry in entries:
        gpu = _add_row(table, entry, gpu) or gpu
    _legend(table, lines[first:])
    return table


def _is_heading(words: list[str]) -> bool:
    """`GPU0 GPU1 … CPU Affinity`; every word is a name."""
    if not words or not (GPU.fullmatch(words[0]) or MIG.fullmatch(words[0])):
        return False
    return not any(CELL.fullmatch(word) for word in words[1:2]) and all(_NAME.fullmatch(word) for word in words)


def _is_gpu_row(words: list[str]) -> bool:
    return len(words) > 1 and GPU.fullmatch(words[0]) is not None and CELL.fullmatch(words[1]) is not None


def _row_labels(lines: list[str]) -> set[str]:
    split = (line.split(maxsplit=2) for line in lines)
    return {words[0] for words in split if len(words) > 1 and CELL.fullmatch(words[1])}


def _heading(entry: Entry, labels: set[str]) -> Table:
    words = rejoined_heading(entry, labels)
    end = next((at for at, word in enumerate(words) if word in ("CPU", "NUMA", "GPU")), len(words))
    columns = words[:end]
    if len(columns) > _MAX_COLUMNS:
        raise UnreadableTopologyError(f"{len(columns)} columns: expected {_MAX_COLUMNS} at most", line=entry.line)
    if len(set(columns)) < len(columns):
        twice = next(label for label in columns if columns.count(label) > 1)
        raise UnreadableTopologyError(f"two columns are called {twice}: expected each name once", line=entry.line)
    rest = " ".join(words[end:])
    return Table(columns, tuple(heading for heading in HEADINGS if heading in rest))


def _headless(entries: list[Entry]) -> Table:
    """The heading was cut off: a row's X stands under its own name."""
    named: dict[int, str] = {}
    for entry in entries:
        words = [word for piece in entry.words() for word in piece]
        if "X" in words:
            named.setdefault(words.index("X") - 1, words[0])
    if not named or max(named) >= _MAX_COLUMNS or len(set(named.values())) < len(named):
        raise UnreadableTopologyError("expected the heading `GPU0  GPU1 …  CPU Affinity` above", line=entries[0].line)
    table = Table([named.get(at, f"column {at + 1}") for at in range(max(named) + 1)], ())
    table.notes.append("the heading is missing: columns are named after the rows, and affinity is unknown")
    return table


def _entries(lines: list[str], first: int, columns: set[str]) -> list[Entry]:
    """Rows with the lines that continue them, up to the legend or another table."""
    entries: list[Entry] = []
    open_row = False
    for number, line in enumerate(lines[first:], first + 1):
        words = line.split()
        if _starts_row(words, columns):
            entries.append(Entry(number, [line]))
            open_row = True
        elif " = " in line or line.strip().startswith(("Legend", "NIC Legend")) or _is_heading(words):
            break
        elif open_row and words and all(_FRAGMENT.fullmatch(word) for word in words):
            entries[-1].pieces.append(line)
            open_row = len(entries[-1].pieces) < _MAX_PIECES
        else:
            open_row = False
    return entries


def _starts_row(words: list[str], columns: set[str]) -> bool:
    if not words:
        return False
    if MIG.fullmatch(words[0]):
        return True
    known = words[0] in columns or _LABEL.fullmatch(words[0]) is not None
    return known and len(words) > 1 and CELL.fullmatch(words[1]) is not None


def _add_row(table: Table, entry: Entry, gpu_above: str) -> str:
    """Returns the row's label where it is a GPU's."""
    label = entry.label
    if MIG.fullmatch(label):
        parent = GPU.match(label)
        table.mig_rows.append(parent[0] if parent else gpu_above)
        return ""
    is_gpu = GPU.fullmatch(label) is not None
    if label in table.rows:
        table.notes.append(f"line {entry.line}: {label} has a row already, in line {table.rows[label]}: left out")
        return ""
    table.rows[label] = entry.line
    cells, tail = split_row(entry, len(table.columns))
    _add_cells(table, label, cells)
    if is_gpu:
        table.affinity[label] = affinity_of(entry, table.headings, tail, table.notes)
    return label if is_gpu else ""


def _add_cells(table: Table, label: str, cells: list[str]) -> None:
    line = table.rows[label]
    at = cells.index("X") if "X" in cells else None
    if at is not None and label in table.columns and table.columns[at] != label:
        table.notes.append(f"line {line}: {label}'s X stands under {table.columns[at]}: the row's links are left out")
        return
    if len(cells) < len(table.columns):
        table.notes.append(f"line {line}: {label} has {len(cells)} of {len(table.columns)} columns")
    table.cells.update({(label, column): cell for column, cell in zip(table.columns, cells, strict=False)})


def _legend(table: Table, lines: list[str]) -> None:
    for line in lines:
        left, equals, _ = line.partition("=")
        if equals and left.strip() in ("X", "SYS", "SOC", "NODE", "PHB", "PXB", "PIX", "NV#"):
            table.nvlink_in_legend = bool(table.nvlink_in_legend) or left.strip() == "NV#"
        elif match := _NIC_LEGEND.fullmatch(line):
            table.nic_names.setdefault(match[1], match[2])
