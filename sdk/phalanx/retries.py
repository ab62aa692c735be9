"""How failed calls are tried again: `phalanx.Retries`, and the exceptions that `retry_on` names. Pure."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

from phalanx.core.errors import InvalidSpecError
from phalanx.core.kinds import class_name
from phalanx.core.spec import Retrying, check_retries
from phalanx.durations import Duration, seconds

RetryOn = type[BaseException] | str | Iterable[type[BaseException] | str]
"""Exception classes, or their names with the module, as "requests.exceptions.Timeout"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """A retry policy: the n-th retry waits ``initial_delay * backoff ** (n - 1)``, at most ``max_delay``.

    Raises InvalidSpecError on wrong use.
    """

    max_retries: int = 3
    backoff: float = 2.0
    initial_delay: Duration = 1.0
    max_delay: Duration = 60.0

    def __post_init__(self) -> None:
        _whole("max_retries", self.max_retries)
        self.retrying(())

    def retrying(self, retry_on: tuple[str, ...]) -> Retrying:
        if isinstance(self.backoff, bool) or not isinstance(self.backoff, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidSpecError(f"backoff={self.backoff!r}: give a number, as 2.0 to double the wait each time")
        return Retrying(
            backoff=self.backoff,
            initial_delay_s=seconds("initial_delay", self.initial_delay),
            max_delay_s=seconds("max_delay", self.max_delay),
            retry_on=retry_on,
        )


def merged(
    number: int, retrying: Retrying, retries: int | Retries | None, retry_on: RetryOn | None
) -> tuple[int, Retrying]:
    """Returns how often and how to try again: as it was, changed by what is asked for; None asks for nothing.

    Raises InvalidSpecError on wrong use, so also where exceptions are named and nothing is tried again.
    """
    names = retrying.retry_on if retry_on is None else class_names(retry_on)
    if isinstance(retries, Retries):
        number, retrying = retries.max_retries, retries.retrying(names)
    else:
        if retries is not None:
            number = _whole("retries", retries)
        retrying = Retrying(
            backoff=retrying.backoff,
            initial_delay_s=retrying.initial_delay_s,
            max_delay_s=retrying.max_delay_s,
            retry_on=names,
        )
    if retry_on is not None and number == 0:
        raise InvalidSpecError("retry_on=… without retries has no effect: give retries=3, or leave retry_on out")
    return number, retrying


def class_names(retry_on: RetryOn) -> tuple[str, ...]:
    """Returns the names of exception classes as ranks tell them. Raises InvalidSpecError for what is none."""
    items = tuple(retry_on) if isinstance(retry_on, Iterable) and not isinstance(retry_on, (str, type)) else (retry_on,)
    if not items:
        raise InvalidSpecError("retry_on=() names no exception: use retries=0 to try nothing again")
    return tuple(dict.fromkeys(map(_name, items)))


def _name(item: Any) -> str:
    if isinstance(item, type):
        if not issubclass(item, BaseException):
            raise InvalidSpecError(f"retry_on: {item.__qualname__} is not an exception class")
        return class_name(item)
    if not isinstance(item, str):
        raise InvalidSpecError(f"retry_on: {item!r} is neither an exception class nor the name of one")
    if "." not in item:
        found = getattr(builtins, item, None)
        if not _is_exception(found):
            raise InvalidSpecError(
                f"retry_on: {item!r} is no exception of Python's own: give the class, or its name with the module, as "
                f"'__main__.MyError'"
            )
        return class_name(found)
    return _home_of(item)


def _home_of(name: str) -> str:
    """A module may offer what another one defines: where it is imported here, the class says which."""
    module_name, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module_name), attribute, None)
    return class_name(found) if _is_exception(found) else name


def _is_exception(value: object) -> TypeGuard[type[BaseException]]:
    return isinstance(value, type) and issubclass(value, BaseException)


def _whole(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSpecError(f"{what}={value!r}: give a whole number, or phalanx.Retries(max_retries=3, …)")
    check_retries(value)
    return value
