"""What kind of error an attempt ended with, as names: told by the rank that has the exception, judged without it.

A *kind* is the names of a class and of its bases, joined by ">". Nothing here loads or makes an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from phalanx.core import errors
from phalanx.core.errors import CallError, RemoteError
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause

MAX_KINDS = 32
"""Different kinds of errors that are told of one group."""
_BETWEEN = ">"
_BY_CAUSE: dict[Cause, type[CallError]] = {
    Cause.USER_EXCEPTION: RemoteError,
    Cause.OUT_OF_MEMORY: errors.OutOfMemoryError,
    Cause.TIMEOUT: errors.CallTimeoutError,
    Cause.HANG: errors.GangHangError,
    Cause.INFRASTRUCTURE: errors.RankDiedError,
    Cause.PREEMPTED: errors.RankDiedError,
    Cause.POISON: errors.PoisonError,
    Cause.CANCELLED: errors.CallCancelledError,
}
_BY_NAME: dict[str, type[CallError]] = {
    cls.__name__: cls
    for cls in (errors.OutcomeUnknownError, errors.RankDiedError, errors.GangStartError, *_BY_CAUSE.values())
}
_OF_THE_USER = (Cause.USER_EXCEPTION, Cause.OUT_OF_MEMORY)


def class_name(cls: type[BaseException]) -> str:
    """Returns the name by which a class is told: with its module, "builtins.ValueError"."""
    return f"{cls.__module__}.{cls.__qualname__}"


def kind_of(cls: type[BaseException]) -> str:
    """Returns the class's name and those of its bases, in the order in which Python looks things up."""
    return _BETWEEN.join(class_name(base) for base in cls.__mro__ if base is not object)


def kinds_of(exc: BaseException) -> tuple[str, ...]:
    """Returns the exception's own kind; for a group, behind it those of the exceptions in it, each once.

    Of more than ``MAX_KINDS`` the last one says no more than BaseException.
    """
    inside = dict.fromkeys(kind_of(type(leaf)) for leaf in _leaves(exc)) if isinstance(exc, BaseExceptionGroup) else {}
    kinds = (kind_of(type(exc)), *inside)
    return kinds if len(kinds) <= MAX_KINDS else (*kinds[: MAX_KINDS - 1], kind_of(BaseException))


def is_one_of(info: ErrorInfo, names: Iterable[str]) -> bool:
    """Says whether the error is of a class that ``names`` hold, or of a subclass of one.

    A group is where its own class is, or where every exception in it is. What the platform raises at the caller
    counts as well: a call that ran too long is a CallTimeoutError and a TimeoutError.
    """
    wanted = frozenset(names)
    if info.kinds and (_is(info.kinds[0], wanted) or (info.kinds[1:] and all(_is(k, wanted) for k in info.kinds[1:]))):
        return True
    told_by_platform = not info.kinds or info.cause is not Cause.USER_EXCEPTION
    return told_by_platform and _is(kind_of(platform_class(info)), wanted)


def platform_class(info: ErrorInfo) -> type[CallError]:
    """Returns what the caller gets raised where the user's own exception is not there, or does not load."""
    ours = not info.traceback or info.cause not in _OF_THE_USER or info.type_name == errors.RankDiedError.__name__
    cls = (_BY_NAME.get(info.type_name) if ours else None) or _BY_CAUSE[info.cause]
    if cls is RemoteError and (info.signal or (info.exit_code and not info.traceback)):
        return errors.RankDiedError
    return cls


def _is(kind: str, wanted: frozenset[str]) -> bool:
    return not wanted.isdisjoint(kind.split(_BETWEEN))


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    """An exception may hold itself, so what was seen is not entered again."""
    seen: set[int] = set()
    waiting = [exc]
    while waiting:
        at = waiting.pop(0)
        if id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", at).exceptions)
        else:
            yield at
