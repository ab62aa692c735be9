"""How names of machines and switches are put in order, and what makers call things. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

NaturalKey = tuple[tuple[str, int, str], ...]

_DIGITS = re.compile(r"([0-9]+)")
_MOST_DIGITS = 18
_AMD = ("gfx", "amd", "instinct", "radeon")


def natural_key(name: str) -> NaturalKey:
    """Orders names as people do, ``leaf-2`` before ``leaf-10``. Two names never have the same key."""
    parts = _DIGITS.split(name)
    return tuple(("", int(part[-_MOST_DIGITS:]), part) if at % 2 else (part, 0, "") for at, part in enumerate(parts))


def links_of(model: str) -> str:
    """Returns what a GPU's maker calls the links between its GPUs, ``NVLink`` where nothing says otherwise."""
    return "xGMI" if model.lower().startswith(_AMD) else "NVLink"


def told_apart(names: Iterable[str]) -> list[str]:
    """Returns the names in their order, a later one of the same name with its number: ``eth0``, ``eth0 (2)``."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found
