"""Whatever user code raises reaches the caller: as its own type where that can be, as text always."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from phalanx.core import errors
from phalanx.core.exceptions import MAX_BYTES, pack_exception, unpack_exception
from phalanx.core.messages import ErrorInfo, RankFailure
from phalanx.core.remote_errors import describe, to_exception
from phalanx.core.states import Cause


class TwoArguments(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class KeywordOnly(Exception):
    def __init__(self, *, response: str) -> None:
        super().__init__("bad answer")
        self.response = response


class WithLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()
        self.kept = [1]


class BadText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def _explode() -> None:
    raise RuntimeError("cannot be loaded")


class BadReduce(Exception):
    def __reduce__(self) -> Any:
        return _explode, ()


class Slotted(Exception):
    __slots__ = ("extra",)
    extra: int


class Shutdown(BaseException):
    pass


class Stopped(KeyboardInterrupt):
    pass


class Unloadable(Exception):
    """Holds an argument that cannot travel, and a reduction that cannot be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__(text, threading.Lock())

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> Any:
        return _explode, ()


def described(act: Callable[[], object]) -> ErrorInfo:
    try:
        act()
    except BaseException as e:
        return describe(e, rank=2, node_id="n1")
    raise AssertionError("nothing was raised")


def throw(exc: BaseException) -> None:
    raise exc


def travel(exc: BaseException) -> BaseException:
    return to_exception(described(lambda: throw(exc)), call_id="c-1", attempt=3)


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (TwoArguments(1, "x"), "x"),
        (KeywordOnly(response="r"), "bad answer"),
        (WithLock("held"), "held"),
        (BadReduce("r"), "r"),
        (ValueError("plain"), "plain"),
        (KeyError("k"), "'k'"),
        (OSError(2, "gone", "file"), "[Errno 2] gone: 'file'"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "'utf-8' codec can't decode byte 0xff in position 0: bad"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Exception) else "",
)
def test_the_users_own_type_is_raised_with_its_text(exc: Exception, text: str) -> None:
    got = travel(exc)
    assert type(got) is type(exc)
    assert str(got) == text


def test_attributes_survive_where_they_can_travel() -> None:
    two = travel(TwoArguments(7, "x"))
    held = travel(WithLock("x"))
    assert isinstance(two, TwoArguments)
    assert two.code == 7
    assert held.kept == [1]  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(held, "lock")


def test_platform_data_is_in_attributes_and_in_a_note() -> None:
    got: Any = travel(ValueError("x"))
    assert (got.call_id, got.attempt, got.rank) == ("c-1", 3, 2)
    assert "call c-1, attempt 3, rank 2 on node n1" in got.__notes__[0]
    assert "raise exc\nValueError: x" in got.__notes__[0]


def test_attributes_of_the_user_are_not_overwritten() -> None:
    exc: Any = ValueError("x")
    exc.rank = "mine"
    got: Any = travel(exc)
    assert got.rank == "mine"


def test_an_exception_with_slots_arrives_with_what_is_in_them() -> None:
    sent = Slotted("x")
    sent.extra = 5
    got = travel(sent)
    assert isinstance(got, Slotted)
    assert got.extra == 5


def test_str_that_raises_gives_a_placeholder() -> None:
    info = described(lambda: throw(BadText()))
    assert "failed: ValueError" in info.message
    assert "BadText" in info.traceback


def test_one_that_cannot_be_loaded_arrives_as_remote_error_with_its_name() -> None:
    got = travel(Unloadable("made"))
    assert isinstance(got, errors.RemoteError)
    assert got.type_name.endswith("Unloadable")
    assert str(got).endswith("Unloadable: made")
    assert "Traceback" in got.remote_traceback


def test_the_cause_chain_is_kept() -> None:
    def fail() -> None:
        try:
            raise KeyError("deep")
        except KeyError as e:
            try:
                raise TwoArguments(2, "middle") from e
            except TwoArguments as m:
                raise ValueError("top") from m

    info = described(fail)
    got = to_exception(info, call_id="c", attempt=1)
    assert isinstance(got.__cause__, TwoArguments)
    assert isinstance(got.__cause__.__cause__, KeyError)
    assert info.traceback.count("direct cause") == 2


def test_the_implicit_context_is_kept() -> None:
    def fail() -> None:
        try:
            _explode()
        except RuntimeError:
            raise ValueError("while handling")  # noqa: B904  the point of the test

    got = to_exception(described(fail), call_id="c", attempt=1)
    assert isinstance(got.__context__, RuntimeError)
    assert got.__cause__ is None


def test_a_cause_that_does_not_load_leaves_the_exception_itself_whole() -> None:
    exc = ValueError("top")
    exc.__cause__ = Unloadable("made")
    assert type(travel(exc)) is ValueError


def test_a_cycle_of_causes_ends() -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    assert str(unpack_exception(pack_exception(a))) == "a"


@pytest.mark.parametrize(("code", "number"), [(3, 3), (0, 0), (None, 0), ("bye", 1)])
def test_sys_exit_does_not_end_the_caller(code: object, number: int) -> None:
    info = described(lambda: throw(SystemExit(code)))
    got = to_exception(info, call_id="c", attempt=1)
    assert info.exit_code == number
    assert isinstance(got, errors.CallError)
    assert f"code {number}, before returning a result" in str(got)
    assert "rank 2 on node n1" in str(got)


def test_an_exception_with_a_long_text_keeps_its_type_and_says_what_was_left_out() -> None:
    info = described(lambda: throw(TwoArguments(7, "x" * 5_000_000)))
    got = to_exception(info, call_id="c-1", attempt=3)
    assert isinstance(got, TwoArguments)
    assert got.code == 7
    for text in (str(got), info.message):
        assert "of 5,000,000 characters left out" in text
        assert len(text) < 10_000
    assert len(info.traceback) < 40_000
    assert len(info.pickled) <= MAX_BYTES


def test_an_exception_too_large_for_the_log_travels_as_text() -> None:
    got = travel(ValueError("weights", bytes(2 * MAX_BYTES)))
    assert isinstance(got, errors.RemoteError)
    assert got.type_name == "ValueError"
    assert len(str(got)) < 20_000


def test_text_that_is_no_unicode_travels_as_its_escapes() -> None:
    info = described(lambda: throw(ValueError("bad \ud800 text")))
    assert info.message == "bad \\ud800 text"
    info.traceback.encode()
    assert str(to_exception(info, call_id="c-1", attempt=1)) == "bad \ud800 text"


def test_a_users_own_base_exception_arrives_as_its_type() -> None:
    got = travel(Shutdown("now"))
    assert type(got) is Shutdown
    assert str(got) == "now"


@pytest.mark.parametrize("exc", [KeyboardInterrupt("x"), GeneratorExit("x"), asyncio.CancelledError("x"), Stopped("x")])
def test_an_exception_that_would_steer_the_callers_process_arrives_as_text(exc: BaseException) -> None:
    got = travel(exc)
    assert isinstance(got, errors.RemoteError)
    assert type(exc).__name__ in got.type_name


def test_tracebacks_leave_out_the_platforms_frames() -> None:
    from phalanx.core.spec import check_name

    info = described(lambda: check_name("name", ""))
    assert "spec.py" not in info.traceback
    assert "test_serialization_exceptions.py" in info.traceback


class OwnGroup(ExceptionGroup[Exception]):
    pass


def test_exception_groups_arrive_with_the_types_of_all_members() -> None:
    inner = OwnGroup("inner", [KeywordOnly(response="r"), BadReduce("x")])
    got = travel(ExceptionGroup("both", [ValueError("a"), TwoArguments(1, "b"), inner]))
    assert isinstance(got, ExceptionGroup)
    first, second, third = got.exceptions
    assert [type(each) for each in (first, second, third)] == [ValueError, TwoArguments, OwnGroup]
    assert [type(each) for each in third.exceptions] == [KeywordOnly, BadReduce]  # pyright: ignore[reportAttributeAccessIssue]
    caught, rest = got.split(TwoArguments)
    assert caught is not None
    assert rest is not None


def test_a_member_that_does_not_load_is_there_as_text_and_the_others_as_they_are() -> None:
    got = travel(ExceptionGroup("g", [Unloadable("held"), ValueError("a")]))
    assert isinstance(got, ExceptionGroup)
    assert str(got.exceptions[0]) == "Unloadable: held"
    assert type(got.exceptions[1]) is ValueError


def test_causes_of_members_arrive() -> None:
    member = ValueError("a")
    member.__cause__ = KeyError("why")
    got = travel(ExceptionGroup("g", [member]))
    assert isinstance(got, ExceptionGroup)
    assert type(got.exceptions[0].__cause__) is KeyError


def test_of_a_group_too_large_for_the_log_the_first_members_arrive_and_the_rest_is_counted() -> None:
    got = travel(ExceptionGroup("many", [ValueError("x" * 100) for _ in range(5000)]))
    assert isinstance(got, ExceptionGroup)
    assert "more exceptions of this group" in str(got.exceptions[-1])
    assert type(got.exceptions[0]) is ValueError


def test_an_exception_keeps_its_cause_and_its_context() -> None:
    top = ValueError("top")
    top.__context__ = KeyError("met")
    top.__cause__ = OSError("because")
    got = travel(top)
    assert (type(got.__cause__), type(got.__context__)) == (OSError, KeyError)
    assert got.__suppress_context__


def test_notes_of_the_user_arrive_before_the_platforms() -> None:
    exc = TwoArguments(1, "x")
    exc.add_note("while loading shard 3")
    got = travel(exc)
    assert got.__notes__[0] == "while loading shard 3"
    assert "while loading shard 3" in str(got.remote_traceback)  # pyright: ignore[reportAttributeAccessIssue]


def test_an_exception_that_holds_a_value_too_deep_to_travel_keeps_its_type() -> None:
    exc = ValueError("deep")
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    exc.nested = nested  # pyright: ignore[reportAttributeAccessIssue]
    got = travel(exc)
    assert (type(got), str(got)) == (ValueError, "deep")


def test_endless_recursion_is_told_in_few_lines() -> None:
    def again(n: int) -> int:
        return again(n + 1)

    info = described(lambda: again(0))
    assert info.type_name == "RecursionError"
    assert "more times" in info.traceback
    assert info.traceback.count("again(n + 1)") < 10


def test_the_error_says_how_to_run_the_call_again() -> None:
    assert "gpuctl replay c-1 --local" in travel(ValueError("x")).__notes__[-1]


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (ErrorInfo(cause=Cause.TIMEOUT), errors.CallTimeoutError),
        (ErrorInfo(cause=Cause.CANCELLED), errors.CallCancelledError),
        (ErrorInfo(cause=Cause.POISON), errors.PoisonError),
        (ErrorInfo(cause=Cause.OUT_OF_MEMORY), errors.OutOfMemoryError),
        (ErrorInfo(cause=Cause.INFRASTRUCTURE), errors.RankDiedError),
        (ErrorInfo(cause=Cause.INFRASTRUCTURE, type_name="OutcomeUnknownError"), errors.OutcomeUnknownError),
        (ErrorInfo(signal=9), errors.RankDiedError),
        (ErrorInfo(exit_code=7), errors.RankDiedError),
        (ErrorInfo(type_name="m.E", message="x"), errors.RemoteError),
    ],
)
def test_causes_without_a_pickled_exception_map_to_our_tree(info: ErrorInfo, expected: type[Exception]) -> None:
    assert type(to_exception(info, call_id="c", attempt=1)) is expected


def test_other_ranks_errors_stand_beside_the_culprits() -> None:
    ranks = (RankFailure(rank=1, culprit=True), RankFailure(rank=0, type_name="RuntimeError", message="closed by peer"))
    got: Any = to_exception(ErrorInfo(type_name="E", message="x", rank=1, ranks=ranks), call_id="c", attempt=1)
    assert "rank 0: RuntimeError: closed by peer" in got.__notes__[0]


def test_what_user_code_raised_on_a_timeout_becomes_the_cause() -> None:
    info = ErrorInfo(cause=Cause.TIMEOUT, message="over", pickled=pack_exception(ValueError("in user code")))
    got = to_exception(info, call_id="c", attempt=1)
    assert isinstance(got, errors.CallTimeoutError)
    assert isinstance(got.__cause__, ValueError)


def test_junk_loads_as_nothing() -> None:
    assert unpack_exception(b"junk") is None
    assert unpack_exception(b"") is None
