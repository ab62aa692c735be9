"""A map sends no more than a gang takes, and starts no more gangs than its calls are worth."""

from __future__ import annotations

from phalanx.core.frames import SENT_AHEAD
from phalanx.pacing import GROW_AFTER_MS, Pace, Ramp


def sent(pace: Pace, most: int = 1000) -> int:
    return next((n for n in range(most) if not pace.may_send()), most)


def started(ramp: Ramp, now_ms: int, most: int = 1000) -> int:
    return next((n for n in range(most) if not ramp.may_start(now_ms)), most)


def test_up_to_the_window_may_be_at_the_gang() -> None:
    pace = Pace(8)
    assert sent(pace) == 8
    pace.answered(ok=True)
    assert sent(pace) == 1


def test_busy_lowers_the_limit_to_what_the_gang_took() -> None:
    pace = Pace(8)
    sent(pace)
    assert [pace.answered(ok=False) for _ in range(5)] == [7, 6, 5, 4, 3]
    assert sent(pace) == 0
    pace.answered(ok=True)
    assert sent(pace) == 1


def test_answers_raise_the_limit_slowly() -> None:
    pace = Pace(8)
    sent(pace)
    for _ in range(6):
        pace.answered(ok=False)
    for _ in range(40):
        pace.answered(ok=True)
        sent(pace)
    assert 2 + sent(pace) <= 8


def test_one_call_may_always_be_sent() -> None:
    pace = Pace(1)
    assert sent(pace) == 1
    pace.answered(ok=False)
    assert sent(pace) == 1


def test_the_first_durable_call_goes_alone() -> None:
    ramp = Ramp(0)
    assert started(ramp, 0) == 1
    assert started(ramp, GROW_AFTER_MS - 1) == 0


def test_each_end_doubles_what_may_be_open() -> None:
    ramp = Ramp(0)
    open_calls = started(ramp, 0)
    counts: list[int] = []
    for _ in range(4):
        ramp.ended(10)
        open_calls += started(ramp, 10) - 1
        counts.append(open_calls)
    assert counts == [2, 4, 8, 16]


def test_long_calls_reach_the_window_by_time() -> None:
    ramp = Ramp(0)
    total = sum(started(ramp, second * GROW_AFTER_MS) for second in range(7))
    assert total == 64


def test_short_calls_are_no_more_than_a_keeper_takes_at_once_and_others_fill_the_window() -> None:
    pace = Pace(64)
    assert pace.short
    assert sent(pace) == SENT_AHEAD
    pace.answered(ok=True, busy_ms=30)
    assert not pace.short
    assert sent(pace) == 64 - SENT_AHEAD + 1


def test_a_call_that_found_no_room_says_nothing_of_how_long_calls_take() -> None:
    pace = Pace(64)
    sent(pace)
    pace.answered(ok=False, busy_ms=1000)
    assert pace.short
