"""A stream belongs to the process that began it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

import phalanx


@phalanx.gpu_function
def count(to: int) -> Iterator[int]:
    yield from range(to)


def test_a_stream_that_is_pickled_says_what_can_be_sent_instead() -> None:
    items = count.stream(3)
    with pytest.raises(TypeError, match=f"one reader.*send its items, or its call_id .{items.call_id}"):
        pickle.dumps(items)
