"""Reads JSON that people and clouds write, bounded, with facts that may be missing or of another kind. Pure."""

from __future__ import annotations

import json
from typing import cast

from phalanx.core.topology.errors import UnreadableTopologyError

Object = dict[str, object]


def read_json(text: str, what: str, *, max_chars: int) -> object:
    """Returns what the text holds. Raises UnreadableTopologyError, with the line, for what is not JSON."""
    if len(text) > max_chars:
        raise UnreadableTopologyError(f"{what} of {len(text)} characters: at most {max_chars} are read")
    try:
        return cast("object", json.loads(text))
    except json.JSONDecodeError as error:
        raise UnreadableTopologyError(f"expected JSON: {error.msg}", line=error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise UnreadableTopologyError(f"expected JSON: {str(error)[:100]}") from error


def object_in(value: object) -> Object:
    """Returns an object's facts; none for anything else."""
    return cast("Object", value) if isinstance(value, dict) else {}


def list_in(value: object) -> list[object]:
    """Returns a list's items; none for anything else."""
    return cast("list[object]", value) if isinstance(value, list) else []


def text_in(facts: Object, *names: str) -> str:
    """Returns the first of these facts that is a text, without space around it; "" where none is.

    Case does not count: one cloud writes ``subblock`` in its reference and ``subBlock`` in its answers.
    """
    by_name = {name.lower(): value for name, value in facts.items()}
    for name in names:
        value = by_name.get(name.lower())
        if isinstance(value, str) and value.strip():
            return value.strip()[:255]
    return ""
