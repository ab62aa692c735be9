"""Which rank of a gang is slow, from when its ranks marked their steps and entered their collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phalanx.core.clock import ManualClock
from phalanx.core.steps import KEPT_STEPS, MIN_STEPS, RankSteps, StepBook, rows_from_json, rows_to_json, slow_text
from phalanx_agent.worker.steps import EVERY_MS, Marks, entered

PLACES = {rank: ("n0", f"GPU-{rank}") for rank in range(4)}
MS = 1000


def walked(steps: int, work_ms: list[list[float]]) -> StepBook:
    """A gang whose ranks work for ``work_ms[rank][i]`` before the i-th collective of each step, and wait in each."""
    book, now = StepBook(), [1_000 * MS] * len(work_ms)
    marks: list[list[tuple[int, int]]] = [[] for _ in work_ms]
    told: list[list[tuple[str, int, int, int]]] = [[] for _ in work_ms]
    number = 0
    for step in range(steps + 1):
        for at in range(len(work_ms[0])):
            number += 1
            for rank, work in enumerate(work_ms):
                now[rank] += int(work[at] * MS)
                told[rank].append(("0", number, now[rank], -1))
            now = [max(now) + 100] * len(now)
        for rank, moment in enumerate(now):
            marks[rank].append((step, moment))
    for rank in range(len(work_ms)):
        book.marked(rank, marks[rank])
        book.entered(rank, told[rank])
    book.settle()
    return book


def collector() -> tuple[list[dict[str, Any]], Callable[..., None]]:
    sent: list[dict[str, Any]] = []

    def send(event: str, **meta: Any) -> None:
        sent.append({"event": event, **meta})

    return sent, send


def clock_ns(clock: ManualClock) -> Callable[[], int]:
    return lambda: clock.wall_ms() * 1_000_000


def slow(rows: tuple[RankSteps, ...]) -> list[int]:
    return [row.rank for row in rows if row.slow]


def test_the_rank_that_the_others_wait_for_is_slow_though_all_steps_take_the_same_time() -> None:
    rows = walked(20, [[20], [20], [70], [20]]).rows(PLACES)
    assert slow(rows) == [2]
    assert {round(row.step_ms) for row in rows} == {70}
    assert [round(row.own_ms or 0) for row in rows] == [20, 20, 70, 20]
    assert slow_text(rows) == "rank 2 on n0, GPU-2, is slow: 70.1 ms of its own a step, 3.5 x the median"


def test_the_wait_counts_in_whichever_collective_of_a_step_it_is() -> None:
    assert slow(walked(20, [[20, 1, 1], [20, 1, 1], [70, 1, 1], [20, 1, 1]]).rows(PLACES)) == [2]
    assert slow(walked(20, [[1, 1, 20], [1, 1, 20], [1, 1, 70], [1, 1, 20]]).rows(PLACES)) == [2]


@pytest.mark.parametrize("extra_ms", [0, 2, 5], ids=["none", "a little", "below the limit"])
def test_nobody_is_slow_below_the_limit(extra_ms: int) -> None:
    rows = walked(50, [[20], [20 + extra_ms], [20], [20]]).rows(PLACES)
    assert slow(rows) == []
    assert slow_text(rows) == ""


def test_less_than_a_millisecond_is_no_slow_rank() -> None:
    assert slow(walked(50, [[1.0], [1.9], [1.0], [1.0]]).rows(PLACES)) == []


def test_nobody_is_slow_before_there_are_enough_steps() -> None:
    assert slow(walked(MIN_STEPS - 1, [[20], [20], [70], [20]]).rows(PLACES)) == []
    assert slow(walked(MIN_STEPS + 1, [[20], [20], [70], [20]]).rows(PLACES)) == [2]


def test_of_two_ranks_the_slower_is_compared_with_the_other() -> None:
    rows = walked(20, [[20], [30]]).rows({0: PLACES[0], 1: PLACES[1]})
    assert slow(rows) == [1]
    assert rows[1].ratio == pytest.approx(1.5, abs=0.02)


def test_ranks_that_do_not_wait_for_each_other_are_compared_by_their_steps() -> None:
    book = StepBook()
    for rank, every in enumerate((20, 20, 20, 50)):
        book.marked(rank, [(n, 1_000_000 + n * every * MS) for n in range(30)])
    book.settle()
    rows = book.rows(PLACES)
    assert slow(rows) == [3]
    assert {row.own_ms for row in rows} == {None}
    assert "50 ms by itself a step" in slow_text(rows)


def test_what_was_waited_is_not_known_while_a_rank_says_nothing_of_a_collective() -> None:
    book = StepBook()
    for rank in range(2):
        book.marked(rank, [(n, 1_000_000 + n * 20 * MS) for n in range(30)])
        shown = range(30) if rank == 0 else range(5)
        book.entered(rank, [("0", n, 1_000_000 + n * 20 * MS - 5, -1) for n in shown])
    book.settle()
    assert {row.own_ms for row in book.rows({0: PLACES[0], 1: PLACES[1]})} == {20.0, None}
    assert slow(book.rows(PLACES)) == []


def test_a_collective_that_a_gpu_timed_needs_no_other_rank() -> None:
    book = StepBook()
    for rank, took_ms in enumerate((60, 60, 5, 60)):
        book.marked(rank, [(n, 1_000_000 + n * 80 * MS) for n in range(30)])
        book.entered(rank, [("0", n, 1_000_000 + n * 80 * MS - 5, took_ms * MS) for n in range(30)])
    book.settle()
    rows = book.rows(PLACES)
    assert slow(rows) == [2]
    assert [row.own_ms for row in rows] == [20, 20, 75, 20]


def test_memory_is_bounded_and_figures_are_of_the_newest_steps() -> None:
    book = walked(1000, [[20], [20]])
    rows = book.rows({})
    assert {row.steps for row in rows} == {KEPT_STEPS}
    book.clear()
    assert book.rows({}) == ()


def test_rows_survive_their_way_as_json() -> None:
    rows = walked(20, [[20], [70]]).rows(PLACES)
    assert rows_from_json(rows_to_json(rows)) == rows
    with pytest.raises(TypeError):
        rows_from_json({"rank": 1})


def test_marks_in_quick_succession_travel_together_and_none_is_lost() -> None:
    sent, send = collector()
    clock = ManualClock(wall_ms=5_000_000)
    marks = Marks(send, list, clock_ns(clock))
    for step in range(3 * EVERY_MS):
        marks.mark(step, 100)
        clock.advance(1)
    marks.flush()
    portions = [[step for step, _ in meta["marks"]] for meta in sent]
    first, last = EVERY_MS + 1, 2 * EVERY_MS + 1
    assert portions == [[0], [*range(1, first)], [*range(first, last)], [*range(last, 3 * EVERY_MS)]]
    assert [at_us - 5_000_000_000 for meta in sent for _, at_us in meta["marks"]] == [*range(0, 30_000, 1000)]
    assert sent[-1]["step"] == 3 * EVERY_MS - 1


def test_a_clock_that_was_set_back_holds_no_mark_up() -> None:
    sent, send = collector()
    times_ns = iter([7_200_000_000_000, 3_600_000_000_000])
    marks = Marks(send, list, lambda: next(times_ns))
    marks.mark(0, 0)
    marks.mark(1, 0)
    assert [meta["step"] for meta in sent] == [0, 1]


def test_collectives_are_told_once_a_second_of_the_clock() -> None:
    sent, send = collector()
    clock = ManualClock(wall_ms=5_000_700)
    marks = Marks(send, lambda: [["0", 1, 2, -1]], clock_ns(clock))
    for step in range(25):
        marks.mark(step, 0)
        clock.advance(100)
    assert [meta["step"] for meta in sent if "entered" in meta] == [0, 3, 13, 23]


def test_of_torchs_records_those_are_taken_that_say_what_was_waited() -> None:
    base = {"is_p2p": False, "process_group": ["0", "default_pg"], "time_created_ns": 7_000_000}
    trace = {
        "entries": [
            {**base, "profiling_name": "gloo:all_reduce", "collective_seq_id": 1},
            {**base, "profiling_name": "nccl:all_reduce", "collective_seq_id": 2},
            {**base, "profiling_name": "nccl:all_reduce", "collective_seq_id": 3, "duration_ms": 1.5},
            {**base, "profiling_name": "gloo:send", "collective_seq_id": 4, "is_p2p": True},
        ]
    }
    assert entered(trace) == [["0", 1, 7000, -1], ["0", 3, 7000, 1500]]
