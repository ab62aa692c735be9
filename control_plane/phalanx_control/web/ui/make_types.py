"""Writes `src/types.ts` from the view dataclasses, so that the page cannot name a field that the server does not send.

`python make_types.py` writes the file; with ``--check`` it only compares, and exits 1 when they differ. Reads Python
classes only; the build of the page does not need it.
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from phalanx.core import messages, spec, views

TARGET = Path(__file__).parent / "src" / "types.ts"
ROOTS = (views.NodeView, views.CallView, views.GangView, views.ServerInfo)
HEADER = "// Written by make_types.py from phalanx.core.views and .messages: run `make ui-types` after changes.\n"
_PLAIN = {int: "number", float: "number", str: "string", bool: "boolean", bytes: "string"}


def main(arguments: list[str]) -> int:
    """Writes or compares; returns the exit status."""
    text = render()
    if "--check" not in arguments:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    sys.stderr.write(f"{TARGET.name} does not fit phalanx.core.views: run `make ui-types`\n")
    return 1


def render() -> str:
    """Returns one interface and one all-default value per class, dependencies first."""
    ordered: dict[type, None] = {}
    for root in ROOTS:
        ordered.update(dict.fromkeys(_with_parts(root)))
    return HEADER + "".join(_interface(cls) + _empty(cls) for cls in ordered)


def _with_parts(cls: type) -> Iterator[type]:
    for _, hint in _hints(cls):
        inner = _element(hint)
        if is_dataclass(inner):
            yield from _with_parts(typing.cast("type", inner))
    yield cls


def _hints(cls: type) -> list[tuple[str, Any]]:
    hints = typing.get_type_hints(cls, {**vars(spec), **vars(messages), **vars(views)})
    return [(f.name, hints[f.name]) for f in fields(cls)]


def _element(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint


def _word(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"readonly {_word(_element(hint))}[]"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "string"
    return _PLAIN.get(hint) or hint.__name__


def _interface(cls: type) -> str:
    lines = "".join(f"  readonly {name}: {_word(hint)};\n" for name, hint in _hints(cls))
    return f"\nexport interface {cls.__name__} {{\n{lines}}}\n"


def _empty(cls: type) -> str:
    value = cls()
    lines = "".join(f"  {name}: {_literal(getattr(value, name))},\n" for name, _ in _hints(cls))
    return f"export const no{cls.__name__}: {cls.__name__} = {{\n{lines}}};\n"


def _literal(value: Any) -> str:
    if is_dataclass(value):
        return f"no{type(value).__name__}"
    if isinstance(value, bytes):
        return '""'
    return json.dumps(value.value if isinstance(value, Enum) else value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
