"""Colours of states and ranks, the same as on the page, as terminal codes. Pure."""

from __future__ import annotations

RANKS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#9aa6b5")
"""Okabe and Ito's seven, which stay apart for every kind of colour vision, and a grey."""
STATES = {
    "running": "#56b4e9",
    "busy": "#56b4e9",
    "queued": "#e6b03c",
    "accepted": "#e6b03c",
    "assigned": "#b48cff",
    "reserved": "#b48cff",
    "preparing": "#b48cff",
    "starting": "#b48cff",
    "succeeded": "#5ad6a0",
    "ready": "#5ad6a0",
    "failed": "#ff7b6b",
    "timed_out": "#ff7b6b",
    "lost": "#ff7b6b",
    "cancelling": "#9aa6b5",
    "cancelled": "#9aa6b5",
}
ICONS = {
    "succeeded": "✓",
    "failed": "✗",
    "timed_out": "✗",
    "cancelled": "○",
    "cancelling": "○",
    "running": "▶",
    "queued": "…",
    "accepted": "…",
    "assigned": "◔",
}
ERROR = "#ff7b6b"
HINT = "#56b4e9"
FAINT = "#9aa6b5"
RESET = "\x1b[0m"


def paint(text: str, hex_colour: str, *, truecolour: bool = True) -> str:
    """Wraps ``text`` in the codes of a colour written ``#rrggbb``; in 256 colours where the terminal has no more."""
    red, green, blue = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    if truecolour:
        return f"\x1b[38;2;{red};{green};{blue}m{text}{RESET}"
    cube = 16 + 36 * round(red / 51) + 6 * round(green / 51) + round(blue / 51)
    return f"\x1b[38;5;{cube}m{text}{RESET}"


def rank_colour(rank: int) -> str:
    """Returns the colour of a rank's prefix."""
    return RANKS[rank % len(RANKS)]
