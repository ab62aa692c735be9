"""Which exceptions `retry_on` names: by class and base, through groups, and without loading what was raised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.error_meta import error_from_meta, error_to_meta
from phalanx.core.kinds import MAX_KINDS, is_one_of, kind_of, kinds_of
from phalanx.core.messages import ErrorInfo
from phalanx.core.remote_errors import describe
from phalanx.core.states import Cause

HERE = __name__


class Flaky(ValueError):
    pass


class VeryFlaky(Flaky):
    pass


class Stop(BaseException):
    pass


def told(exc: BaseException) -> ErrorInfo:
    """What arrives at the control plane of an exception."""
    return error_from_meta(error_to_meta(describe(exc, rank=0, node_id="n1")), otherwise=Cause.USER_EXCEPTION)


@pytest.mark.parametrize(
    ("exc", "names", "fits"),
    [
        pytest.param(ValueError("x"), ["builtins.ValueError"], True, id="the-class"),
        pytest.param(VeryFlaky("x"), ["builtins.ValueError"], True, id="a-subclass"),
        pytest.param(VeryFlaky("x"), [f"{HERE}.Flaky"], True, id="the-class-between"),
        pytest.param(Flaky("x"), [f"{HERE}.VeryFlaky"], False, id="a-base-is-not-its-subclass"),
        pytest.param(ValueError("x"), ["builtins.KeyError", "builtins.OSError"], False, id="another-class"),
        pytest.param(ValueError("x"), ["builtins.Value"], False, id="a-part-of-the-name"),
        pytest.param(ConnectionResetError("x"), ["builtins.OSError"], True, id="two-bases-up"),
        pytest.param(Stop("x"), ["builtins.Exception"], False, id="not-an-exception"),
        pytest.param(Stop("x"), [f"{HERE}.Stop"], True, id="base-exception-by-name"),
        pytest.param(SystemExit(3), ["builtins.SystemExit"], True, id="system-exit"),
        pytest.param(KeyboardInterrupt(), ["builtins.BaseException"], True, id="anything"),
    ],
)
def test_retry_on_names_a_class_and_what_is_derived_from_it(exc: BaseException, names: list[str], fits: bool) -> None:
    assert is_one_of(told(exc), names) is fits


@pytest.mark.parametrize(
    ("inside", "names", "fits"),
    [
        pytest.param([ValueError(), OSError()], ["builtins.ValueError", "builtins.OSError"], True, id="all-named"),
        pytest.param([ValueError(), OSError()], ["builtins.ValueError"], False, id="one-is-not-named"),
        pytest.param([Flaky(), VeryFlaky()], ["builtins.ValueError"], True, id="by-their-base"),
        pytest.param([ValueError(), KeyError()], ["builtins.ExceptionGroup"], True, id="the-group-itself"),
        pytest.param([ExceptionGroup("in", [OSError()])], ["builtins.OSError"], True, id="a-group-in-a-group"),
        pytest.param([ExceptionGroup("in", [OSError(), KeyError()])], ["builtins.OSError"], False, id="deep-inside"),
    ],
)
def test_a_group_is_named_where_all_in_it_are(inside: list[Exception], names: list[str], fits: bool) -> None:
    assert is_one_of(told(ExceptionGroup("several", inside)), names) is fits


def test_a_group_of_too_many_kinds_is_not_taken_for_what_is_told_of_it() -> None:
    inside = [type(f"E{i}", (ValueError,), {})() for i in range(MAX_KINDS)] + [KeyError()]
    kinds = kinds_of(ExceptionGroup("many", inside))
    assert len(kinds) == MAX_KINDS
    assert not is_one_of(ErrorInfo(kinds=kinds), ["builtins.ValueError"])
    assert is_one_of(ErrorInfo(kinds=kinds), ["builtins.BaseException"])


@pytest.mark.parametrize(
    ("info", "name"),
    [
        pytest.param(ErrorInfo(cause=Cause.TIMEOUT), "phalanx.core.errors.CallTimeoutError", id="timeout"),
        pytest.param(ErrorInfo(cause=Cause.TIMEOUT), "builtins.TimeoutError", id="timeout-by-its-base"),
        pytest.param(ErrorInfo(cause=Cause.OUT_OF_MEMORY, signal=9), "builtins.MemoryError", id="memory"),
        pytest.param(ErrorInfo(signal=11), "phalanx.core.errors.RankDiedError", id="died"),
        pytest.param(
            ErrorInfo(cause=Cause.INFRASTRUCTURE, type_name="GangStartError"),
            "phalanx.core.errors.GangStartError",
            id="never started",
        ),
        pytest.param(ErrorInfo(exit_code=7), "phalanx.core.errors.RankDiedError", id="exited"),
    ],
)
def test_what_the_platform_raises_at_the_caller_can_be_named(info: ErrorInfo, name: str) -> None:
    assert is_one_of(info, [name])
    assert not is_one_of(info, ["builtins.ValueError"])


def test_memory_that_ran_out_is_what_was_raised_and_what_the_platform_calls_it() -> None:
    info = replace(told(MemoryError("x")), cause=Cause.OUT_OF_MEMORY)
    assert is_one_of(info, ["builtins.MemoryError"])
    assert is_one_of(replace(info, kinds=(kind_of(RuntimeError),)), ["phalanx.core.errors.OutOfMemoryError"])
