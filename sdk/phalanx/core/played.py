"""Played GPUs: those of a fleet that exists on paper only. Gangs on them are played, no code of anybody's runs.

A simulated GPU may be either: ranks on CPU stand in for it, or it is played. What is played says so in its model's
name, and is never given to a function that did not ask for it by that word: `gpu="played"`, `gpu="played H100"`.
The scheduler keeps to this, and an agent of played GPUs refuses everything else.
"""

from __future__ import annotations

from functools import lru_cache

PLAYED = "played"
"""What such models begin with, what a function asks with, and the pool that their nodes are shown in."""


def played_model(model: str) -> str:
    """Returns the name of a model that is played: ``played NVIDIA H100 80GB HBM3``."""
    return f"{PLAYED} {model}" if model else f"{PLAYED} GPU"


@lru_cache(maxsize=1024)
def is_played(model: str) -> bool:
    """Says whether GPUs of this model are played."""
    return _without_word(model) is not None


def asks_for_played(wanted: str) -> bool:
    """Says whether a function wants played GPUs and no others."""
    words = _words(wanted)
    return bool(words) and all(_without_word(word) is not None for word in words)


def model_matches(wanted: str, model: str) -> bool:
    """Says whether a GPU of this model is one that a function asks for.

    ``"H100|H200"`` fits any model with one of these words in it, whatever the case; "" fits all that are not played.
    """
    played = _without_word(model)
    words = _words(wanted)
    if played is None:
        return not words or any(word in model.lower() for word in words)
    return asks_for_played(wanted) and any((_without_word(word) or "") in played for word in words)


def _words(wanted: str) -> list[str]:
    return [word.strip().lower() for word in wanted.split("|") if word.strip()]


def _without_word(model: str) -> str | None:
    """Returns the rest of a name that begins with the word, in small letters; None for others."""
    first, _, rest = model.lower().partition(" ")
    return rest.strip() if first == PLAYED else None
