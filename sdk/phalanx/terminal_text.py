"""What may be written to a terminal of text that somebody else's program wrote: nothing that moves, hides or answers.

For display only: what is stored, and what a program reads, is left as it is. Pure.
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erasing
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # OSC and other strings: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_RESET = "\x1b[0m"


def harmless(text: str, *, colours: bool = False) -> str:
    """Returns one line of text without escape sequences, other control characters made visible.

    With ``colours`` those stay, and end with the line.
    """
    if text.isascii() and text.isprintable():
        return text
    parts: list[str] = []
    at, coloured = 0, False
    for found in _ESCAPES.finditer(text):
        parts.append(_visible(text[at : found.start()]))
        if colours and _COLOUR.fullmatch(found[0]):
            parts.append(found[0])
            coloured = True
        at = found.end()
    parts.append(_visible(text[at:]))
    return "".join(parts) + (_RESET if coloured else "")


def _visible(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else "�", text)
