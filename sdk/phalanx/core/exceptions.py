"""Exceptions to bytes and back, with their cause chain, never failing in between.

What leaves here was loaded once by its sender. An exception whose own pickling loses or breaks something (required
or keyword-only constructor arguments, a `__reduce__` that raises on load) is rebuilt without its constructor, from
``args`` and attributes, so that the caller's ``except`` still matches its type.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

from phalanx.core.errors import RemoteError
from phalanx.core.picklers import dumps_by_value

MAX_BYTES = 64 * 1024
"""A larger exception travels with its long texts cut, or else as text alone: errors are stored in the log."""
MAX_MESSAGE_CHARS = 8_000
_MAX_CHAIN = 16

_CONTROL = (SystemExit, KeyboardInterrupt, GeneratorExit)
_CONTROL_MODULES = frozenset({"builtins", "asyncio.exceptions", "phalanx.context"})
"""Whose exceptions outside Exception say something to a process or a task, which the caller's must not obey."""

_Link = tuple[bytes, bool, int, str]
"""One exception on its way: pickled, whether it hides its context, and under which of those before it it stands, as
"cause" or "context"."""


def pack_exception(exc: BaseException) -> bytes:
    """Returns the exception with its causes and contexts, or b"" when it does not survive a round trip tried here.

    Of a long or large chain what lies nearest to the exception travels.
    """
    chain: list[_Link] = []
    seen = {id(exc)}
    waiting: deque[tuple[BaseException, int, str]] = deque([(exc, -1, "")])
    while waiting and len(chain) < _MAX_CHAIN:
        this, above, link = waiting.popleft()
        data = _pack_one(this)
        if not data:
            continue
        for under, name in ((this.__cause__, "cause"), (this.__context__, "context")):
            if under is not None and id(under) not in seen:
                seen.add(id(under))
                waiting.append((under, len(chain), name))
        chain.append((data, this.__suppress_context__, above, link))
    while chain and sum(len(data) for data, *_ in chain) > MAX_BYTES:
        chain.pop()
    return pickle.dumps(chain, protocol=5) if chain else b""


def unpack_exception(data: bytes) -> BaseException | None:
    """Returns the exception with its causes and contexts, or None when it does not load here."""
    chain: list[_Link] | None = _load(data) if data else None
    if not isinstance(chain, list) or not chain:
        return None
    loaded = [_load(packed) for packed, *_ in chain]
    first = loaded[0]
    if not isinstance(first, BaseException):
        return None
    for under, (_, suppress, above, link) in zip(loaded, chain, strict=True):
        if not isinstance(under, BaseException):
            continue
        over = loaded[above] if above >= 0 else None
        if isinstance(over, BaseException):
            over_suppresses = over.__suppress_context__
            setattr(over, f"__{link}__", under)
            over.__suppress_context__ = over_suppresses
        under.__suppress_context__ = suppress
    return first


def _pack_one(exc: BaseException) -> bytes:
    if not _may_be_raised_elsewhere(exc):
        return b""
    group = isinstance(exc, BaseExceptionGroup)
    for encode in (_members_apart,) if group else (_plain, _without_constructor):
        data = encode(exc)
        if len(data) > MAX_BYTES:
            return _cut(exc)
        loaded = _tried(data) if data else None
        if type(loaded) is type(exc) and (group or (_text(loaded) == _text(exc) and _slots(loaded) >= _slots(exc))):
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
    return data if len(data) <= MAX_BYTES and data and type(_tried(data)) is type(exc) else b""


def _members_apart(exc: Any) -> bytes:
    """A group, with each member's own type and causes where those can travel, and its text otherwise."""
    members: list[bytes] = []
    room = MAX_BYTES // 2
    for number, member in enumerate(exc.exceptions):
        data = pack_exception(member) or pack_exception(_in_words(member))
        room -= len(data)
        if room < 0 and members:
            left = len(exc.exceptions) - number
            members.append(pack_exception(RemoteError(f"… and {left:,} more exceptions of this group")))
            break
        members.append(data)
    message = shorten(exc.message, MAX_MESSAGE_CHARS)
    return _dump(_Regrouped(type(exc), message, members, _state_of(exc)))


def _in_words(exc: BaseException) -> RemoteError:
    stand_in = RemoteError(f"{type(exc).__qualname__}: {shorten(_text(exc) or '', MAX_MESSAGE_CHARS // 8)}")
    stand_in.type_name = type(exc).__qualname__
    return stand_in


class _Regrouped:
    """Pickles as the group that it stands for."""

    def __init__(self, cls: type[Any], message: str, members: list[bytes], state: dict[str, Any]) -> None:
        self._parts = (cls, message, members, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return regroup, self._parts


def regroup(cls: type[Any], message: str, members: list[bytes], state: dict[str, Any]) -> BaseException:
    """Makes the group of its members, without running its constructor."""
    loaded = [unpack_exception(data) or RemoteError("an exception that does not load here") for data in members]
    make: Any = cls.__new__
    exc: BaseException = make(cls, message, loaded)
    vars(exc).update(state)
    return exc


def _plain(exc: BaseException) -> bytes:
    return _dump(exc)


def _without_constructor(exc: BaseException) -> bytes:
    return _dump(_Rebuilt(type(exc), exc.args, _state_of(exc)))


def _state_of(exc: BaseException) -> dict[str, Any]:
    slots = {name: getattr(exc, name) for name in _slots(exc)}
    return {k: v for k, v in (vars(exc) | slots).items() if _dump(v)}


def _slots(exc: BaseException | None) -> set[str]:
    """Returns the names of the values that the exception holds outside its ``__dict__``; pickle leaves them out."""
    declared = (cls.__dict__.get("__slots__", ()) for cls in type(exc).__mro__)
    names = {name for each in declared for name in ((each,) if isinstance(each, str) else each)}
    return {name for name in names if not name.startswith("__") and hasattr(exc, name)}


class _Rebuilt:
    """Pickles as the exception it stands for."""

    def __init__(self, cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> None:
        self._parts = (cls, args, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, self._parts


def rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Makes the exception without running its constructor."""
    exc = cls.__new__(cls, *args)
    for name, value in state.items():
        object.__setattr__(exc, name, value)
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


def _tried(data: bytes) -> Any:
    """As the caller will load it; what is raised here, on the sender, was made by the exception itself."""
    try:
        return _load(data)
    except (KeyboardInterrupt, GeneratorExit):
        return None
