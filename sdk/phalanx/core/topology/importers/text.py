"""What the readers of tables for people share: plain lines, and lists such as "0,3-9,11-17"."""

from __future__ import annotations

import re

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.reading import bounded_lines

_MAX_LINES = 50_000
_MAX_LABELS = 4096
_ESCAPE = re.compile(r"(?:\x1b|\^\[)?\[[0-9;]{0,16}m|\x1b\[[0-9;?]{0,16}[A-Za-z]")
_RANGES = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*")


def plain_lines(text: str, what: str) -> list[str]:
    """Returns lines without terminal escapes, with tabs widened to 8 columns.

    Raises UnreadableTopologyError where the text or a line is too large, and over 50,000 lines. ``what`` names what was
    to be read.
    """
    lines = bounded_lines(text, what)
    if len(lines) > _MAX_LINES:
        raise UnreadableTopologyError(f"{len(lines)} lines: {what} has at most {_MAX_LINES}")
    return [_ESCAPE.sub("", line).replace("\r", " ").expandtabs(8) for line in lines]


def is_list(word: str) -> bool:
    """Whether it is a list as the kernel writes them: "0", "0-1", "0,3-9"."""
    return _RANGES.fullmatch(word) is not None


def labels_of(word: str) -> tuple[int, ...] | None:
    """Returns the numbers of a list such as "0,3-9", each once and in order; None for "N/A" and anything else."""
    if not is_list(word):
        return None
    found: set[int] = set()
    for part in word.split(","):
        first, _, last = part.partition("-")
        run = range(int(first), int(last or first) + 1)
        if not 0 < len(run) <= _MAX_LABELS or len(found) >= _MAX_LABELS:
            return None
        found.update(run)
    return tuple(sorted(found))


def shortened(notes: list[str], most: int = 40) -> tuple[str, ...]:
    """Returns the notes, or the first of them and how many more there were."""
    if len(notes) <= most:
        return tuple(notes)
    return (*notes[:most], f"and {len(notes) - most} more")
