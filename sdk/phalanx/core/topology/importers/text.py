"""What the readers of tables for people share: plain lines, and lists such as "0,3-9,11-17"."""

from __future__ import annotations

import re

from phalanx.core.topology.errors import UnreadableTopologyError

MAX_CHARS = 4 << 20
_MAX_LINE = 1 << 16
_MAX_LINES = 50_000
_MAX_LABELS = 4096
_ESCAPE = re.compile(r"(?:\x1b|\^\[)?\[[0-9;]{0,16}m|\x1b\[[0-9;?]{0,16}[A-Za-z]")
_RANGES = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*")


def plain_lines(text: str, what: str) -> list[str]:
    """Returns lines without terminal escapes, with tabs widened to 8 columns.

    Raises UnreadableTopologyError over 4 Mi characters, 50,000 lines, or 64 Ki characters in a line. ``what`` names
    what was to be read.
    """
    if len(text) > MAX_CHARS:
        raise UnreadableTopologyError(f"{len(text)} characters: expected {MAX_CHARS} at most of {what}")
    lines = text.split("\n")
    if len(lines) > _MAX_LINES:
        raise UnreadableTopologyError(f"{len(lines)} lines: expected {_MAX_LINES} at most of {what}")
    for number, line in enumerate(lines, 1):
        if len(line) > _MAX_LINE:
            raise UnreadableTopologyError(
                f"{len(line)} characters in a line of {what}: {_MAX_LINE} at most", line=number
            )
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
