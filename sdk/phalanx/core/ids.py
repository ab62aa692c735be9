"""Identifiers. Made at random by whoever creates the thing, never by a counter, so that no two makers can clash."""

from __future__ import annotations

import os
from typing import NewType

CallId = NewType("CallId", str)
GangId = NewType("GangId", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUES = {c: i for i, c in enumerate(_ALPHABET)}
RAW_BYTES = 16
_TEXT_CHARS = 26
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_SHIFTS = tuple(range(120, -1, -10))


def new_raw_id() -> bytes:
    """Returns 16 random bytes, the form in which an id travels in a frame header."""
    return os.urandom(RAW_BYTES)


def id_text(prefix: str, raw: bytes) -> str:
    """Writes 16 bytes as ``<prefix>-<26 characters>``."""
    value = int.from_bytes(raw, "big")
    return f"{prefix}-{''.join([_PAIRS[value >> shift & 1023] for shift in _SHIFTS])}"


def id_raw(text: str) -> bytes:
    """Reads what :func:`id_text` wrote. Raises ValueError on anything else."""
    _, dash, body = text.rpartition("-")
    if not dash or len(body) != _TEXT_CHARS or any(c not in _VALUES for c in body):
        raise ValueError(f"not an id: {text!r}")
    value = 0
    for c in body:
        value = value << 5 | _VALUES[c]
    if value >= 1 << 128:
        raise ValueError(f"not an id: {text!r}")
    return value.to_bytes(RAW_BYTES, "big")


def new_call_id() -> CallId:
    """Returns a fresh call id, made by the SDK before the first send."""
    return CallId(id_text("c", new_raw_id()))


def new_gang_id(raw: bytes) -> GangId:
    """Returns the gang id of 16 given bytes: pure code is handed its randomness."""
    return GangId(id_text("g", raw))
