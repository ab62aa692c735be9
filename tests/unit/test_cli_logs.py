"""What `gpuctl logs` takes for a pattern and for a time, and what it says of those that are neither."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from phalanx.cli.commands.logs import logs, pattern_of, since_ms
from phalanx.cli.exits import Exit, exit_of
from phalanx.cli.options import Session
from phalanx.cli.problem import problem_of
from phalanx.core.clock import SystemClock
from phalanx.core.errors import InvalidSpecError

NOON_MS = round(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("grep", "wrong"), [("(", "missing )"), ("loss: [", "unterminated"), ("a{9999999999999}", "too large")]
)
def test_a_pattern_that_cannot_be_read_is_wrong_usage_and_says_why(grep: str, wrong: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        logs(Session(), "c-1", follow=False, ranks=(), since="", grep=grep)
    problem = problem_of(caught.value)
    assert problem.what == f"--grep {grep!r} is not a regular expression"
    assert wrong in problem.why
    assert exit_of(caught.value) is Exit.USAGE


def test_a_pattern_matches_anywhere_and_none_is_needed() -> None:
    assert pattern_of("") is None
    pattern = pattern_of("loss|error")
    assert pattern is not None
    assert pattern.search("an error")


@pytest.mark.parametrize("words", ["2026-11-30T12:00+00:00", "2026-11-30 14:00+02:00", "2026-11-30T12:00Z"])
def test_a_date_is_a_time(words: str) -> None:
    assert since_ms(words) == NOON_MS


def test_a_date_without_a_zone_is_the_time_of_this_machine() -> None:
    assert since_ms("2026-11-30T12:00") == datetime(2026, 11, 30, 12).timestamp() * 1000  # noqa: DTZ001 (it is what is tested)


def test_a_length_of_time_counts_back_from_now() -> None:
    assert since_ms("") == 0
    assert abs(SystemClock().wall_ms() - since_ms("2h") - 7_200_000) < 60_000


@pytest.mark.parametrize("words", ["yesterday", "m", "-5m", "²m", "0001-13-01"])
def test_what_is_no_time_is_answered_with_forms_that_are(words: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        since_ms(words)
    problem = problem_of(caught.value)
    assert problem.what == f"--since {words!r} is not a time"
    assert problem.why == "it is neither a number with s, m, h or d, nor a date"
    assert problem.hint == "write it like 90s, 10m, 2h, 1d or 2026-11-30T12:00"
    assert [since_ms(form) > 0 for form in ("10m", "2h", "2026-11-30T12:00")] == [True] * 3
