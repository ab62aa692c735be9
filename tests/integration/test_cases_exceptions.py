"""Exceptions and results across the wire: the caller gets what the function did, never a decode error, never a hang."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import phalanx
from phalanx.function import Function
from phalanx.runner import current
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


class WithSlots(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class LoadsAs(Exception):
    """Loads as whatever its ``__reduce__`` says."""

    def __init__(self, text: str, made: Any = None) -> None:
        super().__init__(text)
        self.made = made

    def __reduce__(self) -> Any:
        return self.made


class CannotSpeak(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class MyError(Exception):
    pass


class Lies(Exception):
    """Whatever a reporter looks at raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def explode() -> None:
    raise RuntimeError("this exception does not load")


def raise_of_a_module_of_its_own() -> None:
    """The module exists where this runs, and nowhere else."""
    import importlib
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "only_there.py").write_text("class Elsewhere(Exception):\n    pass\n")
        sys.path.insert(0, folder)
        raise importlib.import_module("only_there").Elsewhere("x")


GARBAGE: dict[str, Any] = {
    "number": (int, (5,)),
    "another exception": (KeyError, ("y",)),
    "no tuple": 5,
    "short tuple": (int,),
    "exits": (sys.exit, (3,)),
    "interrupts": (signal.raise_signal, (signal.SIGINT,)),
    "recursion": (eval, ("(f := lambda: f())()",)),
    "lambda": (lambda: 5, ()),
}


def raise_it(which: str) -> None:
    if which == "elsewhere":
        raise_of_a_module_of_its_own()
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
        "slots": lambda: WithSlots(1, "x"),
        "lies": lambda: Lies("x"),
        **{kind: lambda made=made: LoadsAs("x", made) for kind, made in GARBAGE.items()},
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


DEEP: dict[str, Callable[[Any], Any]] = {
    "deep tuple": lambda under: (under,),
    "deep dict": lambda under: {"next": under},
    "deep object": lambda under: SimpleNamespace(next=under),
}


def unpicklable(which: str) -> Any:
    if which == "deep":
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        return nested
    if which == "fine":
        return which
    if which in DEEP:
        deep: Any = None
        for _ in range(100_000):
            deep = DEEP[which](deep)
        return deep
    values: dict[str, Callable[[], Any]] = {
        "generator": lambda: (i for i in range(3)),
        "lock": lambda: {"a": [1, 2, threading.Lock()]},
        "thread": threading.current_thread,
        "coroutine": lambda: [SimpleNamespace(job=asyncio.sleep(0))],
        "file": lambda: {"open": sys.stdout},
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


def test_attributes_in_slots_survive() -> None:
    with pytest.raises(WithSlots, match="x") as caught:
        by_spawn(raises, "slots")
    assert caught.value.code == 1


@pytest.mark.parametrize("which", GARBAGE)
def test_one_that_would_load_as_something_else_is_raised_as_what_it_is(which: str) -> None:
    with pytest.raises((LoadsAs, phalanx.RemoteError), match="x") as caught:
        by_spawn(raises, which)
    assert "LoadsAs: x" in "\n".join(caught.value.__notes__)


def test_one_of_a_module_that_is_not_here_is_named() -> None:
    with pytest.raises(Exception, match="x") as caught:
        by_spawn(raises, "elsewhere")
    assert "Elsewhere" in type(caught.value).__name__ + str(caught.value)
    assert "only_there.Elsewhere: x" in "\n".join(caught.value.__notes__)


def test_one_that_raises_whatever_it_is_asked_still_fails_the_call() -> None:
    call = raises.spawn("lies")
    with pytest.raises((Lies, phalanx.CallError)):
        call.get(60)
    assert call.status().state == "failed"
    assert by_spawn(gives, 1) == 1


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
    [
        ("generator", "generator"),
        ("lock", r'result\["a"\]\[2\]'),
        ("thread", "hread"),
        ("coroutine", r"result\[0\]\.job"),
        ("file", r'result\["open"\]'),
        ("deep", "nested"),
        *((which, "nested") for which in DEEP),
    ],
)
def test_a_result_that_cannot_travel_is_named_and_not_computed_again(
    run: Callable[..., Any], which: str, words: str
) -> None:
    with pytest.raises(phalanx.SerializationError, match=words):
        run(returns_badly, which)
    assert run(returns_badly, "fine") == "fine"
    assert {call.attempt for call in current().client.list_calls(ended_too=True, limit=2)} == {1}


def test_an_argument_that_is_nested_too_deeply_is_refused_here(run: Callable[..., Any]) -> None:
    for which in ("deep", *DEEP):
        with pytest.raises(phalanx.SerializationError, match="nested"):
            run(gives, unpicklable(which))
