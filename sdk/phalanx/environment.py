"""The environment that a function's ranks start in: ``phalanx.env(pip=[...], preload=[...], vars={...})``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from phalanx.core.errors import InvalidSpecError
from phalanx.core.spec import EnvSpec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_OURS = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GROUP_RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
    }
)


def env(*, pip: Iterable[str] = (), preload: Iterable[str] = (), vars: Mapping[str, str] | None = None) -> EnvSpec:  # noqa: A002
    """Returns what a function's ranks start with.

    ``pip``: requirements to install, once per set. ``preload``: modules to import before the ranks are forked, for
    slow imports. ``vars``: environment variables. Raises InvalidSpecError on anything else.
    """
    return EnvSpec(
        pip=_texts("pip", pip),
        preload=tuple(_module(name) for name in _texts("preload", preload)),
        variables=tuple(sorted(_variable(name, value) for name, value in (vars or {}).items())),
    )


def _texts(what: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise InvalidSpecError(f"env({what}={values!r}): give a list, as {what}=[{values!r}]")
    out = tuple(values)
    for value in out:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidSpecError(f"env({what}=[...]) holds {value!r}: give non-empty strings")
    return out


def _module(name: str) -> str:
    if not _MODULE.fullmatch(name):
        raise InvalidSpecError(f"env(preload=[...]) holds {name!r}: give module names, as 'transformers'")
    return name


def _variable(name: str, value: str) -> tuple[str, str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpecError(f"env(vars=...) has the name {name!r}: use letters, digits and underscores")
    if not isinstance(value, str) or "\0" in value:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpecError(f"env(vars={{{name!r}: {value!r}}}): give a string")
    if not _is_unicode(value):
        raise InvalidSpecError(f"env(vars={{{name!r}: {value!r}}}): the value is not Unicode text; write it as ASCII")
    if name in _OURS:
        raise InvalidSpecError(f"env(vars=...) sets {name}, which Phalanx sets for every rank: leave it out")
    return name, value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
