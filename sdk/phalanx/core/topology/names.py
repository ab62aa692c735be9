"""How names of machines and switches are put in order, and what makers call things. Pure."""

from __future__ import annotations

import re

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
