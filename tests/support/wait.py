"""Waiting in tests: for a condition, with a bound and a name, never for a length of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

POLL_S = 0.01
DEFAULT_TIMEOUT_S = 10.0


def wait_until(predicate: Callable[[], object], description: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Returns once ``predicate()`` is true. Raises AssertionError naming ``description`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {description}")
        time.sleep(POLL_S)


async def wait_until_async(
    predicate: Callable[[], object | Awaitable[object]], description: str, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """As :func:`wait_until`, letting the event loop run; ``predicate`` may be a coroutine function."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = predicate()
        if await answer if isinstance(answer, Awaitable) else answer:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {description}")
        await asyncio.sleep(POLL_S)
