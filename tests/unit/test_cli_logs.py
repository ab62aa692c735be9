"""What `gpuctl logs` takes for a pattern and for a time, and what it says of those that are neither."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from phalanx.cli.commands.logs import Asked
from phalanx.cli.exits import Exit, exit_of
from phalanx.cli.log_choice import Choice, last, pattern_of, time_ms
from phalanx.cli.problem import problem_of
from phalanx.core.errors import InvalidSpecError
from phalanx.log_lines import LogLine

NOON_MS = round(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp() * 1000)
NOW_MS = NOON_MS + 86_400_000


def since_ms(words: str) -> int:
    return time_ms(words, "--since", now_ms=NOW_MS)


def line(text: str, *, rank: int = 0, stream: str = "stdout", at_ms: int = 0, passing: bool = False) -> LogLine:
    return LogLine(rank=rank, node_id="n0", stream=stream, at_ms=at_ms, text=text, passing=passing)


def texts(choice: Choice, lines: list[LogLine]) -> list[str]:
    return [each.text for each in choice.of(lines)]


@pytest.mark.parametrize(
    ("grep", "wrong"), [("(", "missing )"), ("loss: [", "unterminated"), ("a{9999999999999}", "too large")]
)
def test_a_pattern_that_cannot_be_read_is_wrong_usage_and_says_why(grep: str, wrong: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        Asked(grep=grep).choice(NOW_MS)
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


@pytest.mark.parametrize(("minutes", "day"), [(-1, 0), (1, -1)])
def test_a_time_of_day_is_the_last_one_there_was(minutes: int, day: int) -> None:
    wanted = datetime.fromtimestamp(NOW_MS / 1000 + 60 * minutes, UTC).astimezone()
    assert since_ms(f"{wanted:%H:%M:%S}") == (wanted + timedelta(days=day)).timestamp() * 1000


def test_a_length_of_time_counts_back_from_now() -> None:
    assert since_ms("") == 0
    assert since_ms("2h") == NOW_MS - 7_200_000


@pytest.mark.parametrize("words", ["yesterday", "m", "-5m", "²m", "0001-13-01", "25:00"])
def test_what_is_no_time_is_answered_with_forms_that_are(words: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        since_ms(words)
    problem = problem_of(caught.value)
    assert problem.what == f"--since {words!r} is not a time"
    assert problem.why == "it is neither a number with s, m, h or d, nor a date"
    assert problem.hint == "write it like 90s, 10m, 2h, 1d, 14:05 or 2026-11-30T12:00"
    assert [since_ms(form) > 0 for form in ("10m", "2h", "14:05", "2026-11-30T12:00")] == [True] * 4


def test_lines_are_chosen_by_rank_stream_and_time() -> None:
    lines = [line("a", at_ms=1), line("b", at_ms=2, rank=1), line("c", at_ms=3, stream="stderr"), line("d", at_ms=4)]
    assert texts(Choice(ranks=frozenset({0})), lines) == ["a", "c", "d"]
    assert texts(Choice(stream="stderr"), lines) == ["c"]
    assert texts(Choice(since_ms=2, until_ms=3), lines) == ["b", "c"]


def test_lines_around_a_match_are_of_the_same_rank_and_each_is_shown_once() -> None:
    lines = [line(f"{n}", rank=n % 2) for n in range(12)]
    assert texts(Choice(pattern=pattern_of("^4$|^8$"), around=1), lines) == ["2", "4", "6", "8", "10"]


def test_a_passing_line_is_searched_and_is_no_lines_neighbour() -> None:
    lines = [line("10%", passing=True), line("20%"), line("done")]
    assert texts(Choice(pattern=pattern_of("done"), around=1), lines) == ["20%", "done"]
    assert texts(Choice(pattern=pattern_of("10")), lines) == ["10%"]


@pytest.mark.parametrize(("count", "left"), [(None, ["a", "b", "c"]), (2, ["b", "c"]), (0, []), (9, ["a", "b", "c"])])
def test_the_last_lines_are_taken_off_the_end(count: int | None, left: list[str]) -> None:
    assert [each.text for each in last([line("a"), line("b"), line("c")], count)] == left


def test_what_chooses_lines_does_not_go_with_raw_bytes() -> None:
    Asked(raw=True, ranks=(1,), stream="stderr").refuse_lines(as_json=False)
    with pytest.raises(InvalidSpecError, match=r"--raw does not go with --tail"):
        Asked(raw=True, tail=3).refuse_lines(as_json=False)
