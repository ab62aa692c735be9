"""Exceptions to bytes and back, with their cause chain, never failing in between.

What leaves here was loaded once by its sender. An exception whose own pickling loses or breaks something (required
or keyword-only constructor arguments, a `__reduce__` that raises on load) is rebuilt without its constructor, from
``args`` and attributes, so that the caller's ``except`` still matches its type.
"""

from __future__ import annotations

import pickle
from typing import Any

from phalanx.core.picklers import dumps_by_value

MAX_BYTES = 64 * 1024
"""A larger exception travels with its long texts cut, or else as text alone: errors are stored in the log."""
MAX_MESSAGE_CHARS = 8_000
_MAX_CHAIN = 16

_CONTROL = (SystemExit, KeyboardInterrupt, GeneratorExit)
_CONTROL_MODULES = frozenset({"builtins", "asyncio.exceptions", "phalanx.context"})
"""Whose exceptions outside Exception say something to a process or a task, which the caller's must not obey."""

_Link = tuple[bytes, str, bool]


def pack_exception(exc: BaseException) -> bytes:
    """Returns the exception and its causes, or b"" when it does not survive a round trip tried here."""
    chain: list[_Link] = []
    seen: set[int] = set()
    link, this = "", exc
    while this is not None and id(this) not in seen and len(chain) < _MAX_CHAIN:
        seen.add(id(this))
        data = _pack_one(this)
        if not data:
            break
        chain.append((data, link, this.__suppress_context__))
        link, this = ("cause", this.__cause__) if this.__cause__ is not None else ("context", this.__context__)
    while chain and sum(len(data) for data, _, _ in chain) > MAX_BYTES:
        chain.pop()
    return pickle.dumps(chain, protocol=5) if chain else b""


def unpack_exception(data: bytes) -> BaseException | None:
    """Returns the exception with its causes, or None when it does not load here."""
    if not data:
        return None
    chain: list[_Link] | None = _load(data)
    if not isinstance(chain, list) or not chain:
        return None
    first = _load(chain[0][0])
    if not isinstance(first, BaseException):
        return None
    this = first
    this.__suppress_context__ = chain[0][2]
    for packed, link, suppress in chain[1:]:
        under = _load(packed)
        if not isinstance(under, BaseException):
            break
        under.__suppress_context__ = suppress
        this = _attach(this, under, link)
    return first


def _attach(this: BaseException, under: BaseException, link: str) -> BaseException:
    if link == "cause":
        this.__cause__ = under
    else:
        this.__context__ = under
    return under


def _pack_one(exc: BaseException) -> bytes:
    if not _may_be_raised_elsewhere(exc):
        return b""
    for encode in (_plain, _without_constructor):
        data = encode(exc)
        if len(data) > MAX_BYTES:
            return _cut(exc)
        loaded = _load(data) if data else None
        if type(loaded) is type(exc) and _text(loaded) == _text(exc):
            return data
    return b""


def _may_be_raised_elsewhere(exc: BaseException) -> bool:
    if isinstance(exc, Exception):
        return True
    return not isinstance(exc, _CONTROL) and not any(
        cls.__module__ in _CONTROL_MODULES for cls in type(exc).__mro__ if cls not in (BaseException, object)
    )


def _cut(exc: BaseException) -> bytes:
    """Returns a large exception with its long texts shortened, so that the caller's ``except`` still matches."""
    args = tuple(shorten(a, MAX_MESSAGE_CHARS) if isinstance(a, str) else a for a in exc.args)
    state = {k: v for k, v in vars(exc).items() if 0 < len(_dump(v)) <= MAX_MESSAGE_CHARS}
    data = _dump(_Rebuilt(type(exc), args, state))
    return data if len(data) <= MAX_BYTES and data and type(_load(data)) is type(exc) else b""


def _plain(exc: BaseException) -> bytes:
    return _dump(exc)


def _without_constructor(exc: BaseException) -> bytes:
    state = {k: v for k, v in vars(exc).items() if _dump(v)}
    return _dump(_Rebuilt(type(exc), exc.args, state))


class _Rebuilt:
    """Pickles as the exception it stands for."""

    def __init__(self, cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> None:
        self._parts = (cls, args, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, self._parts


def rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Makes the exception without running its constructor."""
    exc = cls.__new__(cls, *args)
    vars(exc).update(state)
    return exc


def shorten(text: str, limit: int) -> str:
    """Returns ``text`` with its middle left out where it is longer than ``limit`` characters, and says so."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} of {len(text):,} characters left out …\n{text[-half:]}"


def _text(exc: BaseException | None) -> str | None:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001  a user's __str__ may raise anything; both sides then compare equal
        return None


def _dump(value: object) -> bytes:
    try:
        return dumps_by_value(value)
    except Exception:  # noqa: BLE001  user code runs here; the next way of encoding is tried
        return b""


def _load(data: bytes) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301  both ends belong to one authenticated user
    except (Exception, SystemExit):  # noqa: BLE001  user code runs here; the text of the error always remains
        return None
