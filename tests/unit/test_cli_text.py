"""Numbers, times and errors as people read them."""

from __future__ import annotations

import pytest

from phalanx.cli import text
from phalanx.cli.exits import Exit, exit_of, exit_of_state
from phalanx.cli.problem import problem_of
from phalanx.core import errors
from phalanx.core.topology.importers.hostlist import expand


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0.0 s"),
        (400, "0.4 s"),
        (12_345, "12 s"),
        (184_000, "3m 04s"),
        (7_500_000, "2h 05m"),
        (349_200_000, "4d 01h"),
    ],
)
def test_durations_have_two_units_at_most(ms: int, shown: str) -> None:
    assert text.duration(ms) == shown


@pytest.mark.parametrize(
    ("amount", "shown"),
    [("0", "0.00 USD"), ("12.345", "12.34 USD"), ("0.0371", "0.0371 USD"), ("0.000184", "0.000184 USD")],
)
def test_small_amounts_of_money_keep_their_digits(amount: str, shown: str) -> None:
    assert text.money(amount, "USD") == shown


@pytest.mark.parametrize(
    ("number", "shown"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_places_in_a_queue_are_ordinals(number: int, shown: str) -> None:
    assert text.ordinal(number) == shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("the user's own"), Exit.FAILED),
        (errors.RankDiedError("rank 2 died"), Exit.FAILED),
        (errors.InvalidSpecError("gpus=-1"), Exit.USAGE),
        (errors.NotFoundError("no such call"), Exit.NOT_FOUND),
        (errors.AuthError("no token"), Exit.AUTH),
        (errors.UnschedulableError("too large"), Exit.UNSCHEDULABLE),
        (errors.CallCancelledError("cancelled"), Exit.CANCELLED),
        (errors.ConnectionFailedError("not reachable"), Exit.UNREACHABLE),
        (errors.CallTimeoutError("over its limit"), Exit.TIMEOUT),
        (errors.GetTimeoutError("still running"), Exit.TIMEOUT),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: BaseException, code: Exit) -> None:
    assert exit_of(error) is code


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("timed_out", 124), ("cancelled", 6)])
def test_every_end_of_a_call_has_its_exit_code(state: str, code: int) -> None:
    assert exit_of_state(state) == code


def test_an_error_is_told_in_three_lines() -> None:
    error = errors.UnschedulableError("no node could run this gang: it needs 16 GPUs, the largest node has 8")
    assert problem_of(error).lines() == (
        "error[GANG-UNSCHEDULABLE]: no node could run this gang",
        "why: it needs 16 GPUs, the largest node has 8",
        "try: gpuctl nodes",
    )


def test_an_error_without_a_reason_gets_that_of_its_kind() -> None:
    first, why, _ = problem_of(errors.AuthError("no token")).lines()
    assert first == "error[AUTH]: no token"
    assert "token is missing" in why


def test_a_call_that_failed_points_to_its_logs() -> None:
    assert problem_of(errors.RankDiedError("rank 1 died", call_id="c-1")).hint == "gpuctl logs c-1"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["n1", "n2"], "n1, n2"),
        (["node-098", "node-099", "node-100", "node-102"], "node-[098-100], node-102"),
        (["n8", "n9", "n10", "m11"], "n[8-10], m11"),
        (["n08", "n9", "n10"], "n08, n9, n10"),
        (["leaf-2", "leaf-1", "x", ""], "leaf-2, leaf-1, x, "),
        ([], ""),
    ],
)
def test_names_in_a_row_are_written_as_one(names: list[str], shown: str) -> None:
    assert text.folded(names) == shown
    if "[" in shown:
        assert expand(shown.replace(" ", ""), line=1) == names
