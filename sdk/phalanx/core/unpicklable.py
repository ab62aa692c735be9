"""Finds which element of a value cannot travel, so that the error can name it: ``result["a"][2]``. Pure."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_MAX_DEPTH = 40
_MAX_CHILDREN = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    value: object


def locate(value: object, path: str, fails: Callable[[object], bool]) -> Found:
    """Returns the innermost element that ``fails`` on its own, with its path from ``path``."""
    seen: set[int] = set()
    for _ in range(_MAX_DEPTH):
        seen.add(id(value))
        bad = next(((step, child) for step, child in _children(value) if id(child) not in seen and fails(child)), None)
        if bad is None:
            break
        path += bad[0]
        value = bad[1]
    return Found(path, value)


def describe_type(value: object) -> str:
    """Returns the type as a user would write it."""
    cls = type(value)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return f"a value of type {name}"


def _children(value: object) -> Iterator[tuple[str, Any]]:
    for number, item in enumerate(_all_children(value)):
        if number >= _MAX_CHILDREN:
            return
        yield item


def _all_children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for k, v in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield f"[{k!r}]".replace("'", '"'), v
            yield f" key {k!r}", k
    elif isinstance(value, (list, tuple, deque)):
        for i, v in enumerate(value):  # pyright: ignore[reportUnknownVariableType]
            yield f"[{i}]", v
    elif isinstance(value, (set, frozenset)):
        for v in value:  # pyright: ignore[reportUnknownVariableType]
            yield "{…}", v
    elif isinstance(value, types.FunctionType):
        yield from _used_by(value)
    else:
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif not isinstance(value, type):
        for name, v in getattr(value, "__dict__", {}).items():
            yield f".{name}", v
        for name in _slots_of(type(value)):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _slots_of(cls: type) -> Iterator[str]:
    for each in cls.__mro__:
        slots = each.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else map(str, slots)


def _used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f" (its closure holds {name!r})", cell.cell_contents
        except ValueError:
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" (it uses the global {name!r})", function.__globals__[name]
    for i, v in enumerate(function.__defaults__ or ()):
        yield f" (default {i})", v
