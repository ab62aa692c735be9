"""Durations as users write them: seconds, or text such as "90s", "10m", "1h30m", "500ms". Pure."""

from __future__ import annotations

import re
from datetime import timedelta

from phalanx.core.errors import InvalidSpecError

Duration = float | str | timedelta
"""Seconds, or text such as "90s", "10m", "1h30m", "500ms"."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")


def seconds(what: str, value: Duration) -> float:
    """Returns a duration in seconds. Raises InvalidSpecError with examples of what is right."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # noqa: PLR0124
        return float(value)
    if isinstance(value, str):
        parts = _DURATION.findall(value)
        if parts and not _DURATION.sub("", value).strip():
            return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    raise InvalidSpecError(f"{what}={value!r}: give seconds as a number, or text such as '90s', '10m', '1h30m'")


def from_none(what: str, value: Duration) -> float:
    """Returns a duration in seconds that is not negative. Raises InvalidSpecError."""
    number = seconds(what, value)
    if number < 0:
        raise InvalidSpecError(f"{what}={value!r}: give 0 seconds or more")
    return number


def positive(what: str, value: Duration) -> float:
    """Returns a duration in seconds that is more than none. Raises InvalidSpecError."""
    number = seconds(what, value)
    if number <= 0:
        raise InvalidSpecError(f"{what}={value!r}: give more than 0 seconds, or leave it out")
    return number
