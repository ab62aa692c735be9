"""Inputs of a map: looked at one ahead, never lost, from any kind of iterable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from phalanx.core.errors import CallCancelledError, InvalidSpecError
from phalanx.core.serialization import Packed, pack_arguments, unpack
from phalanx.inputs import FromLoop, Inputs, Plain, inputs_of
from tests.support.wait import wait_until_async


def pack(item: Any) -> Packed:
    return pack_arguments((item,), {})


def value(packed: Packed) -> Any:
    (item,), _ = unpack(packed.tobytes())
    return item


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


async def drain(inputs: Inputs) -> list[Any]:
    """Takes all there is on another thread, as a map does."""

    def take_all() -> list[Any]:
        found: list[Any] = []
        while (more := inputs.peek()) is not False:
            if more:
                found.append(value(inputs.take()))
            else:
                inputs.wait(1)
        return found

    inputs.begin()
    return await asyncio.to_thread(take_all)


async def test_every_kind_of_iterable_is_taken_in_order() -> None:
    assert await drain(inputs_of([0, 1, 2], pack)) == [0, 1, 2]
    assert await drain(inputs_of(numbers(3), pack)) == [0, 1, 2]
    assert await drain(inputs_of(numbers(0), pack)) == []


def test_one_input_is_looked_at_ahead_and_given_back() -> None:
    inputs = Plain(iter(range(4)), pack)
    assert inputs.peek()
    assert value(inputs.take()) == 0
    assert inputs.peek()
    assert list(inputs.rest()) == [1, 2, 3]


async def test_async_inputs_that_were_not_taken_are_given_back() -> None:
    inputs = FromLoop(numbers(4), pack)
    inputs.begin()
    await wait_until_async(lambda: bool(inputs.peek()), "the first input is there")
    assert value(inputs.take()) == 0
    inputs.peek()
    assert [number async for number in inputs.rest()] == [1, 2, 3]


def test_what_the_inputs_raise_is_raised_and_nothing_comes_after_it() -> None:
    def inputs() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    plain = Plain(inputs(), pack)
    assert plain.peek()
    plain.take()
    with pytest.raises(LookupError, match=r"no more"):
        plain.peek()
    assert not plain.peek()


async def test_closing_ends_the_wait_for_an_input_and_lets_its_source_clean_up() -> None:
    seen: list[str] = []

    async def never() -> AsyncIterator[int]:
        try:
            await asyncio.get_running_loop().create_future()
            yield 1
        finally:
            seen.append("cleaned up")

    inputs = FromLoop(never(), pack)
    inputs.begin()
    assert inputs.peek() is None
    await asyncio.sleep(0)
    inputs.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert seen == ["cleaned up"]


@pytest.mark.filterwarnings("error")
def test_a_loop_that_has_ended_gives_no_inputs_and_leaves_no_coroutine_behind() -> None:
    async def begin() -> FromLoop:
        inputs = FromLoop(numbers(3), pack)
        inputs.begin()
        return inputs

    inputs = asyncio.run(begin())
    with pytest.raises(CallCancelledError, match=r"event loop that the inputs come from has ended"):
        inputs.peek()


def test_async_inputs_of_a_plain_map_are_refused_with_the_fix() -> None:
    with pytest.raises(InvalidSpecError, match=r"the inputs are an async_generator") as caught:
        Plain(numbers(1), pack)  # pyright: ignore[reportArgumentType]
    assert caught.value.hint == "use .aio(...)"
