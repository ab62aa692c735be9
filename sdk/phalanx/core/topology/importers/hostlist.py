"""Expands Slurm's lists of names: ``srv[1101-1108,2101],login`` is nine names. Pure, bounded."""

from __future__ import annotations

import re

from phalanx.core.topology.errors import UnreadableTopologyError

MAX_NAMES = 200_000
MAX_LENGTH = 255
_MAX_BRACKETS = 4
_PIECE = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand(text: str, *, line: int) -> list[str]:
    """Returns the names in their order. Raises UnreadableTopologyError for bad brackets and for too many names."""
    names: list[str] = []
    at = 0
    while at < len(text):
        group, at = _group(text, at, line)
        if len(names) + len(group) > MAX_NAMES:
            raise _too_many(line)
        names += group
        at += 1
    return names


def _group(text: str, at: int, line: int) -> tuple[list[str], int]:
    """Returns the names up to the next comma outside brackets, and where that comma is."""
    names, brackets = [""], 0
    while at < len(text) and text[at] != ",":
        match = _PIECE.match(text, at)
        assert match is not None
        if match.end() == at or len(match[1]) > MAX_LENGTH:
            raise UnreadableTopologyError(
                f"{text[at : at + 40]!r}: expected a list such as node[001-032,040]", line=line
            )
        at = match.end()
        endings = [match[1]] if match[2] is None else [match[1] + number for number in _numbers(match[2], line)]
        brackets += match[2] is not None
        if brackets > _MAX_BRACKETS or len(names) * len(endings) > MAX_NAMES:
            raise _too_many(line)
        names = [name + ending for name in names for ending in endings]
    return [name for name in names if name], at


def _numbers(ranges: str, line: int) -> list[str]:
    """Returns "001", "002", … for "001-002": as many digits as the first has."""
    found: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise UnreadableTopologyError(f"[{ranges[:40]}]: expected ranges such as 001-032,040", line=line)
        first, last = int(match[1]), int(match[2] or match[1])
        if len(found) + last - first >= MAX_NAMES:
            raise _too_many(line)
        found += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return found


def _too_many(line: int) -> UnreadableTopologyError:
    return UnreadableTopologyError(f"more than {MAX_NAMES} names: no cluster has so many nodes", line=line)
