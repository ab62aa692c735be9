"""Exceptions and results across the wire: the caller gets what the function did, never a decode error, never a hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import phalanx
from phalanx.function import Function
from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster

QUICK_S = 10.0
"""How long a failure may take to arrive from a warm gang on a busy machine."""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with judged_cluster(tmp_path_factory.mktemp("cluster"), agents=1) as running:
        yield running


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class KeywordOnly(Exception):
    def __init__(self, text: str, *, response: str) -> None:
        super().__init__(text)
        self.response = response


class CannotLoad(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return explode, ()


class CannotSpeak(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class MyError(Exception):
    pass


def explode() -> None:
    raise RuntimeError("this exception does not load")


def raise_it(which: str) -> None:
    if which == "chain":
        try:
            raise KeyError("inner")
        except KeyError as e:
            raise MyError("outer") from e
    if which == "context":
        try:
            raise KeyError("inner")
        except KeyError:
            raise MyError("outer")  # noqa: B904  the implicit context is what is tested
    raise {
        "two": lambda: TwoArguments(1, "x"),
        "keyword": lambda: KeywordOnly("x", response="503"),
        "load": lambda: CannotLoad("x"),
        "speak": CannotSpeak,
        "mine": lambda: MyError("x"),
    }[which]()


def leave(how: str) -> None:
    import os
    import sys

    if how == "thread":
        threading.Thread(target=sys.exit, args=(3,)).start()
        return
    match how:
        case "3":
            sys.exit(3)
        case "0":
            sys.exit(0)
        case "text":
            sys.exit("message")
        case _:
            os._exit(int(how.removeprefix("_")))


def give(value: Any) -> Any:
    return value


def unpicklable(which: str) -> Any:
    if which == "deep":
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        return nested
    values: dict[str, Callable[[], Any]] = {
        "generator": lambda: (i for i in range(3)),
        "lock": lambda: {"a": [1, 2, threading.Lock()]},
        "thread": threading.current_thread,
    }
    return values[which]()


raises: Function[[str], None] = phalanx.gpu_function(gpus=0, scaledown_window=3)(raise_it)
gives: Function[[Any], Any] = phalanx.gpu_function(gpus=0, scaledown_window=3)(give)
returns_badly: Function[[str], Any] = phalanx.gpu_function(gpus=0, scaledown_window=3, retries=2)(unpicklable)
leaves: Function[[str], None] = phalanx.gpu_function(gpus=0, scaledown_window=3)(leave)


def by_remote(function: Function[..., Any], *args: Any) -> Any:
    return function.remote(*args)


def by_spawn(function: Function[..., Any], *args: Any) -> Any:
    return function.spawn(*args).get(60)


@pytest.fixture(params=[by_remote, by_spawn], ids=["remote", "spawn"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Both ways of calling a function."""
    return request.param


@pytest.mark.parametrize(("which", "kind"), [("two", TwoArguments), ("keyword", KeywordOnly), ("mine", MyError)])
def test_the_users_own_type_arrives_with_its_remote_traceback(
    run: Callable[..., Any], which: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        run(raises, which)
    assert str(caught.value) == "x"
    note = "\n".join(caught.value.__notes__)
    assert "in raise_it" in note
    assert "phalanx_agent" not in note


def test_attributes_of_an_exception_survive(run: Callable[..., Any]) -> None:
    with pytest.raises(TwoArguments) as two:
        run(raises, "two")
    with pytest.raises(KeywordOnly) as keyword:
        run(raises, "keyword")
    assert (two.value.code, keyword.value.response) == (1, "503")


def test_an_exception_that_does_not_load_is_named_at_once(run: Callable[..., Any]) -> None:
    run(gives, 1)
    began = time.monotonic()
    with pytest.raises((phalanx.RemoteError, CannotLoad), match="x") as caught:
        run(raises, "load")
    assert time.monotonic() - began < QUICK_S
    assert "CannotLoad" in str(caught.value) + str(type(caught.value))


@pytest.mark.parametrize(("which", "link"), [("chain", "__cause__"), ("context", "__context__")])
def test_the_chain_of_causes_arrives(run: Callable[..., Any], which: str, link: str) -> None:
    with pytest.raises(MyError, match="outer") as caught:
        run(raises, which)
    assert isinstance(getattr(caught.value, link), KeyError)
    assert "KeyError: 'inner'" in "\n".join(caught.value.__notes__)


def test_an_exception_that_cannot_speak_still_fails_the_call(run: Callable[..., Any]) -> None:
    with pytest.raises((phalanx.RemoteError, CannotSpeak)) as caught:
        run(raises, "speak")
    assert "CannotSpeak" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("value", [None, {}, {"error": 1}, {"error": "x", "status": "failed"}, [], "", 0])
def test_values_come_back_as_they_are(run: Callable[..., Any], value: Any) -> None:
    assert run(gives, value) == value


@pytest.mark.parametrize(("how", "words"), [("3", "code 3"), ("0", "code 0"), ("text", "message")])
def test_sys_exit_is_a_failure_with_its_code(run: Callable[..., Any], how: str, words: str) -> None:
    with pytest.raises(phalanx.CallError, match=words):
        run(leaves, how)


@pytest.mark.parametrize("code", [0, 7])
def test_an_exit_past_every_handler_is_a_failure_with_its_code(run: Callable[..., Any], code: int) -> None:
    with pytest.raises(phalanx.RankDiedError, match=f"exited {code} before returning a result"):
        run(leaves, f"_{code}")
    assert run(gives, code) == code


def test_sys_exit_in_a_thread_is_that_threads_end_alone(run: Callable[..., Any]) -> None:
    assert run(leaves, "thread") is None


@pytest.mark.parametrize(
    ("which", "words"),
    [("generator", "generator"), ("lock", r'result\["a"\]\[2\]'), ("thread", "hread"), ("deep", "nested")],
)
def test_a_result_that_cannot_travel_is_named_and_not_computed_again(
    run: Callable[..., Any], which: str, words: str
) -> None:
    with pytest.raises(phalanx.SerializationError, match=words):
        run(returns_badly, which)
    assert run(gives, "next") == "next"
