"""The words of one row of the table that `nvidia-smi topo -m` prints, made whole and told apart.

The tool separates the links by tabs and never leaves one out, so they are counted. The affinity columns can be blank,
so they are told apart by where they stand: a tab is 8 columns wide, and an affinity column 16.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from phalanx.core.topology.importers.text import is_list

CPU, NUMA, MEMORY_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
HEADINGS = (CPU, NUMA, MEMORY_NUMA)
CELL = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|N/A")
_CELL_LIKE = re.compile(r"X|[A-Z][A-Z0-9]{1,4}|N/A")
_WORD = re.compile(r"\S+")
_HEADING_WORDS = frozenset(word for heading in HEADINGS for word in heading.split())
_TAB = 8
_COLUMN = 16
_MAX_TAIL = 32


@dataclass(slots=True)
class Entry:
    """One row, or the heading, as the lines it was wrapped to. ``line`` is the first one's number."""

    line: int
    pieces: list[str]

    @property
    def label(self) -> str:
        return self.pieces[0].split(maxsplit=1)[0]

    def words(self) -> list[list[str]]:
        return [piece.split() for piece in self.pieces]


def rejoined_heading(entry: Entry, labels: set[str]) -> list[str]:
    """Returns the heading's words. ``labels``: what rows are called, which tells a wrapped name from two."""
    words: list[str] = []
    for piece in entry.words():
        for at, word in enumerate(piece):
            if at == 0 and words and _one_name(words[-1], word, labels):
                words[-1] += word
            else:
                words.append(word)
    return words


def _one_name(left: str, right: str, labels: set[str]) -> bool:
    if left in labels and right in labels:
        return False
    if left + right in labels or right[0].isdigit() or right[0] == "_":
        return True
    return left + right in _HEADING_WORDS and not (left in _HEADING_WORDS and right in _HEADING_WORDS)


def split_row(entry: Entry, count: int) -> tuple[list[str], list[str]]:
    """Returns the ``count`` links, or as many as there are, and the words after them; wrapped words are whole again."""
    words: list[str] = []
    seams: set[int] = set()
    for piece in entry.words():
        for at, word in enumerate(piece):
            if at == 0 and len(words) > 1 and _one_cell(words[-1], word, within=len(words) - 1 <= count):
                words[-1] += word
            else:
                seams.update({len(words)} if at == 0 else ())
                words.append(word)
    links = words[1 : count + 1]
    end = next((at for at, word in enumerate(links) if not _CELL_LIKE.fullmatch(word)), len(links))
    tail = words[1 + end :][:_MAX_TAIL]
    return links[:end], _joined_lists(tail, {seam - 1 - end for seam in seams})


def _one_cell(left: str, right: str, *, within: bool) -> bool:
    if left + right == "N/A":
        return True
    whole = CELL.fullmatch(left) and CELL.fullmatch(right)
    return within and not whole and CELL.fullmatch(left + right) is not None


def _joined_lists(words: list[str], seams: set[int]) -> list[str]:
    """Joins lists that were wrapped at a comma or hyphen, or that have spaces."""
    joined: list[str] = []
    for at, word in enumerate(words):
        if joined and (joined[-1][-1] in ",-" or (at in seams and word[0] in ",-")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def affinity_of(entry: Entry, headings: tuple[str, ...], tail: list[str], notes: list[str]) -> dict[str, str]:
    """Returns words by heading; those that cannot be told apart are left out, with a note."""
    if len(entry.pieces) > 1 and len(tail) == len(headings) + 1:
        tail = _joined_digits(entry, tail)
    if len(tail) == len(headings):
        return dict(zip(headings, tail, strict=True))
    if not tail or not headings:
        return {}
    placed = _by_place(entry, headings, tail)
    if placed is None:
        what = " ".join(tail)[:60]
        notes.append(f"line {entry.line}: {entry.label}: cannot tell which of {', '.join(headings)} {what!r} is")
    return placed or {}


def _joined_digits(entry: Entry, tail: list[str]) -> list[str]:
    """There is one word too many: a list was wrapped between two digits."""
    firsts = {piece[0] for piece in entry.words()[1:]}
    for at in range(1, len(tail)):
        if tail[at] in firsts and is_list(tail[at - 1] + tail[at]):
            return [*tail[: at - 1], tail[at - 1] + tail[at], *tail[at + 1 :]]
    return tail


def _by_place(entry: Entry, headings: tuple[str, ...], tail: list[str]) -> dict[str, str] | None:
    """Returns None where the tool's layout is lost."""
    words = [(match.start(), match[0]) for match in _WORD.finditer(entry.pieces[0])]
    links, rest = words[1 : -len(tail)], words[-len(tail) :]
    if len(entry.pieces) > 1 or not links or [word for _, word in rest] != tail or not _in_columns(words[0], links):
        return None
    margin = next((place for place, word in links if word != "X"), words[0][0]) % _TAB
    start = (links[-1][0] - margin) // _TAB * _TAB + _TAB + margin
    found: dict[str, str] = {}
    for place, word in rest:
        found[_heading_at(place - start, found.get(CPU, ""))] = word
    return found if len(found) == len(tail) and found.keys() <= set(headings) else None


def _in_columns(label: tuple[int, str], links: list[tuple[int, str]]) -> bool:
    """Whether the links still stand 8 apart (an X stands one further), not one space."""
    gaps = [right[0] - left[0] for left, right in pairwise(links)]
    return min(gaps, default=links[0][0] - label[0]) >= _TAB - 1


def _heading_at(offset: int, cpus: str) -> str:
    """After a blank CPU affinity there is one tab, after a short one two, so NUMA affinity starts at 8 or at 16."""
    if offset < _TAB // 2:
        return CPU
    wider = max(0, len(cpus) // _TAB * _TAB + _TAB - _COLUMN)
    return NUMA if offset - wider <= _COLUMN else MEMORY_NUMA
