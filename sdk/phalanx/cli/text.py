"""Numbers and times as people read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

_NAMED = 5
_IN_A_ROW = 3
_MOST_DIGITS = 9


def duration(ms: int) -> str:
    """Returns milliseconds as ``0.4 s``, ``12 s``, ``3m 04s``, ``2h 05m`` or ``4d 01h``."""
    if ms < 10_000:
        return f"{max(0, ms) / 1000:.1f} s"
    if ms < 60_000:
        return f"{ms // 1000} s"
    if ms < 3_600_000:
        return f"{ms // 60_000}m {ms // 1000 % 60:02}s"
    if ms < 86_400_000:
        return f"{ms // 3_600_000}h {ms // 60_000 % 60:02}m"
    return f"{ms // 86_400_000}d {ms // 3_600_000 % 24:02}h"


def ago(then_ms: int, now_ms: int) -> str:
    """Returns how long ago a wall time was, ``-`` when it has not come yet."""
    return f"{duration(max(0, now_ms - then_ms))} ago" if then_ms else "-"


def size(count: float) -> str:
    """Returns bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def money(amount: str, currency: str) -> str:
    """Returns a decimal string rounded for display: two digits, or as many as a small amount needs."""
    value = Decimal(amount or "0")
    digits = 2 if value == 0 or abs(value) >= 1 else 4 if abs(value) >= Decimal("0.01") else 6
    return f"{value:.{digits}f} {currency}"


def gpu_seconds(ms: int) -> str:
    """Returns GPU-milliseconds as GPU-seconds."""
    return f"{ms / 1000:.1f} GPU-s"


def some(names: Sequence[str]) -> str:
    """Returns the first few of some names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def folded(names: Sequence[str]) -> str:
    """Returns names with three or more in a row as one, as Slurm writes them: ``node[001-017], node019``."""
    runs: list[list[str]] = []
    for name in names:
        if runs and name == _next(runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(_run(run) for run in runs)


def _next(name: str) -> str:
    stem, digits = _apart(name)
    return f"{stem}{int(digits) + 1:0{len(digits)}d}" if digits else ""


def _run(run: Sequence[str]) -> str:
    if len(run) < _IN_A_ROW:
        return ", ".join(run)
    stem, first = _apart(run[0])
    return f"{stem}[{first}-{_apart(run[-1])[1]}]"


def _apart(name: str) -> tuple[str, str]:
    """Takes the digits off the end of a name."""
    stem = name.rstrip("0123456789")
    at = max(len(stem), len(name) - _MOST_DIGITS)
    return name[:at], name[at:]


def count(number: int, thing: str) -> str:
    """Returns ``1 node``, ``2 nodes``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """Returns 1st, 2nd, 3rd, 4th, 11th …"""
    tail = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{tail}"
