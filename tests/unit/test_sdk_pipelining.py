"""Many acts at a time: bounded, lazy, in order or as they come. And the ids of maps."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Iterator

import pytest

from phalanx.core.errors import InvalidSpecError
from phalanx.core.ids import id_text
from phalanx.map_call import MapCall
from phalanx.pipelining import pipelined
from phalanx.workers import MAX_THREADS


def test_results_come_in_order_and_items_are_taken_lazily() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    jobs = pipelined(items(), lambda n: n * n, width=4)
    assert [next(jobs).result() for _ in range(3)] == [0, 1, 4]
    assert len(taken) <= 6
    assert [job.result() for job in jobs] == [n * n for n in range(3, 100)]


def test_without_order_what_ends_first_comes_first() -> None:
    gate = threading.Event()
    jobs = pipelined(range(3), lambda n: gate.wait(10) if n == 0 else n, width=3, order=False)
    assert {next(jobs).item, next(jobs).item} == {1, 2}
    gate.set()
    assert [job.item for job in jobs] == [0]


class Item:
    """Something that says when nobody has it any more."""


@pytest.mark.parametrize("order", [True, False])
def test_nothing_is_kept_of_what_was_given_out(order: bool) -> None:
    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def items() -> Iterator[Item]:
        for _ in range(2000):
            item = Item()
            alive.add(item)
            yield item

    most = 0
    for _job in pipelined(items(), id, width=4, order=order):
        most = max(most, len(alive))
    assert most < MAX_THREADS + 20, "each idle thread may still have its last one"


def test_an_error_is_raised_where_its_result_is_asked_for() -> None:
    jobs = list(pipelined([1, 0], lambda n: 1 / n))
    assert jobs[0].result() == 1
    with pytest.raises(ZeroDivisionError):
        jobs[1].result()


def test_a_map_is_its_id_wherever_it_is_known() -> None:
    made = MapCall[int](f"{id_text('m', b'0123456789abcdef')}-3")
    again = pickle.loads(pickle.dumps(made))
    assert len(again) == 3
    ids = [made.call(n).id for n in range(3)]
    assert ids == [MapCall.from_id(made.id).call(n).id for n in range(3)]
    assert len(set(ids)) == 3
    with pytest.raises(IndexError, match=r"input 3: map m-.* has 3"):
        made.call(3)


@pytest.mark.parametrize("wrong", ["", "m-1", "c-60r30c1g60r30c1g60r30c1g60-3", "m-60r30c1g60r30c1g60r30c1g60-x"])
def test_what_is_no_map_id_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"is not a map id: they look like m-0123…-1000"):
        MapCall.from_id(wrong)
