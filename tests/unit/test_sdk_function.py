"""The decorator: what it refuses, what it checks before anything is sent, and who is who among functions."""

from __future__ import annotations

import functools
import pickle
import sys
import types
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import phalanx
from phalanx import InvalidSpecError, SerializationError
from phalanx.core.serialization import unpack
from phalanx.definition import ById, Decorated, Own, Target
from phalanx.function import Function
from phalanx.loader import load_callable
from tests.support.fake_client import connected


def plain(x: int, y: int = 2) -> int:
    """Adds."""
    return x + y


def make(factor: int) -> Function[[int], int]:
    @phalanx.gpu_function
    def scale(x: int) -> int:
        return factor * x

    return scale


def code_of(function: Function[..., Any]) -> tuple[str, bytes]:
    assert isinstance(function.definition, Decorated)
    spec, blobs = function.definition.code()
    return spec.function_id, blobs[spec.code.callable_blob]


def shipped(function: Function[..., Any]) -> Callable[..., Any]:
    return load_callable(code_of(function)[1], bundle_dir=None)


def test_the_handle_is_like_the_function_and_calling_it_runs_here() -> None:
    handle = phalanx.gpu_function(gpus=2)(plain)
    assert (handle.__name__, handle.__doc__, handle.__module__) == ("plain", "Adds.", __name__)
    assert handle(1) == handle.local(1) == 3


def test_the_bare_decorator_asks_for_one_gpu() -> None:
    handle = phalanx.gpu_function(plain)
    assert handle.spec is not None
    assert handle.spec.resources.gpus == 1


async def test_local_has_an_async_twin() -> None:
    assert await phalanx.gpu_function(plain).local.aio(1) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": 1.5}, "gpus=1.5: use a whole number"),
        ({"gpus": "4"}, "gpus='4': give a number"),
        ({"gpus": True}, "gpus=True"),
        ({"gpus": -1}, "gpus=-1"),
        ({"gpus": float("nan")}, "gpus=nan"),
        ({"gpus": 4, "nodes": 3}, "nodes=3 does not divide gpus=4"),
        ({"backend": "mpi"}, "backend='mpi': use one of 'auto', 'nccl', 'gloo'"),
        ({"returns": "none"}, "returns='none'"),
        ({"launch": "x"}, "launch='x'"),
        ({"timeout": "soon"}, "timeout='soon': give seconds as a number, or text such as"),
        ({"timeout": 0}, "timeout=0: give more than 0 seconds"),
        ({"grace": -1}, "grace=-1"),
        ({"nodes": 0}, "nodes=0: give a whole number from 1 on"),
        ({"nodes": -1}, "nodes=-1"),
        ({"retries": 1.0}, "retries=1.0: give a whole number"),
        ({"retries": -1}, "retries=-1"),
        ({"env": {"pip": []}}, "make it with phalanx.env"),
        ({"name": "a/b"}, "no slashes"),
        ({"name": "x" * 300}, "300 characters"),
        ({"gpu": 100}, "gpu=100: give the model's name"),
    ],
)
def test_wrong_use_fails_at_decoration_with_the_fix(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        phalanx.gpu_function(**options)(plain)
    assert said in str(caught.value)


def test_an_unknown_option_is_a_type_error_at_decoration() -> None:
    with pytest.raises(TypeError, match="gpuz"):
        phalanx.gpu_function(gpuz=1)  # pyright: ignore[reportCallIssue]


def test_a_hang_timeout_is_a_limit_of_the_function_and_no_other_has_one() -> None:
    limited = phalanx.gpu_function(hang_timeout="2m")(plain)
    assert limited.spec is not None
    assert limited.spec.limits.hang_timeout_s == 120
    unlimited = phalanx.gpu_function(plain)
    assert unlimited.spec is not None
    assert unlimited.spec.limits.hang_timeout_s == 0
    with pytest.raises(InvalidSpecError, match="hang_timeout=0"):
        phalanx.gpu_function(hang_timeout=0)(plain)


def test_a_generator_function_is_a_stream_and_no_other_is() -> None:
    def generator() -> Any:
        yield 1

    async def asynchronous() -> Any:
        yield 1

    async def coroutine() -> None: ...

    functions: tuple[Any, ...] = (generator, asynchronous, coroutine, plain)
    made = [phalanx.gpu_function(f) for f in functions]
    assert [f.spec is not None and f.spec.streams for f in made] == [True, True, False, False]


def test_a_stream_that_could_be_run_again_is_refused() -> None:
    def generator() -> Any:
        yield 1

    with pytest.raises(InvalidSpecError, match=r"retries=2.*not run again"):
        phalanx.gpu_function(retries=2)(generator)


@pytest.mark.parametrize("thing", [int, 3, None, staticmethod(plain)])
def test_what_cannot_be_a_function_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidSpecError):
        phalanx.gpu_function(gpus=1)(thing)


def test_decorating_twice_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="decorated twice"):
        phalanx.gpu_function(gpus=1)(phalanx.gpu_function(plain))


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(90, 90), (0.5, 0.5), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("500 ms", 0.5), (timedelta(minutes=2), 120)],
)
def test_durations_are_seconds_or_text(given: Any, seconds: float) -> None:
    handle = phalanx.gpu_function(timeout=given)(plain)
    assert handle.spec is not None
    assert handle.spec.limits.timeout_s == seconds


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), ((1,), {"x": 1})])
def test_wrong_arguments_are_a_type_error_before_anything_is_sent(args: Any, kwargs: Any) -> None:
    handle = phalanx.gpu_function(plain)
    for verb in (handle.remote, handle.spawn):
        with pytest.raises(TypeError, match=r"plain\(x: int, y: int = 2\)"):
            verb(*args, **kwargs)


async def test_wrong_arguments_are_a_type_error_in_async_twins_too() -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        await phalanx.gpu_function(plain).remote.aio()  # pyright: ignore[reportCallIssue]


def test_functions_of_one_name_made_by_a_factory_are_two() -> None:
    two, three = make(2), make(3)
    assert code_of(two)[0] != code_of(three)[0]
    assert (shipped(two)(10), shipped(three)(10)) == (20, 30)


def test_a_wrapper_without_functools_wraps_does_not_stand_for_the_other_one() -> None:
    def loud(inner: Callable[[int], int]) -> Callable[[int], int]:
        def wrapper(x: int) -> int:
            return inner(x) + 100

        return wrapper

    first = phalanx.gpu_function(loud(lambda x: x))
    second = phalanx.gpu_function(loud(lambda x: 2 * x))
    assert first.name == second.name
    assert code_of(first)[0] != code_of(second)[0]
    assert (shipped(first)(1), shipped(second)(1)) == (101, 102)


def test_defining_anew_gives_new_code() -> None:
    scope: dict[str, Any] = {"phalanx": phalanx, "__name__": "__main__"}
    source = "@phalanx.gpu_function\ndef f():\n    return {}"
    exec(source.format(1), scope)
    old = scope["f"]
    exec(source.format(2), scope)
    assert shipped(old)() == 1
    assert shipped(scope["f"])() == 2


def test_the_same_code_twice_is_the_same_function() -> None:
    assert code_of(make(2)) == code_of(make(2))


class Adder:
    def __init__(self, n: int) -> None:
        self.n = n

    def add(self, x: int) -> int:
        return self.n + x

    def __call__(self, x: int) -> int:
        return self.n + x

    @phalanx.gpu_function
    def decorated(self, x: int) -> int:
        return self.n + x


@functools.cache
def cached(x: int) -> int:
    return x + 1


@functools.singledispatch
def dispatched(x: object) -> int:
    return int(str(x)) + 1


@pytest.mark.parametrize(
    "func",
    [eval("lambda x: x + 1"), functools.partial(plain, y=1), Adder(1).add, Adder(1), cached, dispatched, (1).__add__],
    ids=["lambda", "partial", "bound method", "callable object", "cache", "singledispatch", "builtin"],
)
def test_every_kind_of_callable_travels(func: Any) -> None:
    handle = phalanx.gpu_function(gpus=0)(func)
    assert handle.name
    assert shipped(handle)(41) == 42


def test_a_method_taken_from_an_instance_gets_the_instance() -> None:
    adder = Adder(5)
    assert adder.decorated.local(1) == 6
    assert unpack(adder.decorated.pack((1,), {}).tobytes())[0][1] == 1


def test_a_global_that_cannot_travel_is_named() -> None:
    import threading

    scope: dict[str, Any] = {"lock": threading.Lock(), "__name__": "__main__"}
    exec("def f():\n    return lock", scope)
    with pytest.raises(SerializationError, match=r"function 'f' \(it uses the global 'lock'\) cannot travel"):
        code_of(phalanx.gpu_function(scope["f"]))


def test_a_closure_that_cannot_travel_is_named() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(SerializationError, match="closure holds 'lock'"):
        code_of(phalanx.gpu_function(lambda: lock))


def test_a_function_of_a_module_travels_by_name() -> None:
    handle = phalanx.gpu_function(plain)
    assert b"test_sdk_function" in code_of(handle)[1]
    assert shipped(handle) is plain


def test_a_handle_inside_its_own_function_stands_for_that_function() -> None:
    scope: dict[str, Any] = {"phalanx": phalanx, "__name__": "__main__"}
    exec("@phalanx.gpu_function\ndef f():\n    return f", scope)
    inner = shipped(scope["f"])()
    assert isinstance(inner.definition, Own)
    assert inner.name == "f"


def test_a_function_calls_itself_and_others_of_its_script_plainly() -> None:
    scope: dict[str, Any] = {"phalanx": phalanx, "__name__": "__main__"}
    exec("@phalanx.gpu_function\ndef g(x, y=2):\n    seen.append(x)\n    return x * y", scope)
    exec("@phalanx.gpu_function\ndef f(n, by=1):\n    return f(n - by) if n else (g(21), g.local(1), seen)", scope)
    scope["seen"] = []
    with connected():
        found = shipped(scope["f"])
    assert found(2) == (42, 2, [21, 1]), "and both see the same variables of their script"
    own = found.__globals__["f"]
    assert isinstance(own.definition, Own)
    own.pack((1,), {})
    own.pack((), {"n": 1})
    with pytest.raises(TypeError, match="missing a required argument"):
        own.pack((), {})


def test_a_function_of_a_module_is_called_plainly_by_name_in_another() -> None:
    module = types.ModuleType("of_a_module")
    module.__file__ = "of_a_module.py"
    exec("import phalanx\n@phalanx.gpu_function\ndef g(x):\n    return x + 1", vars(module))
    sys.modules["of_a_module"] = module
    scope: dict[str, Any] = {"phalanx": phalanx, "__name__": "__main__", "g": module.g}
    exec("@phalanx.gpu_function\ndef f(x):\n    return g(x)", scope)
    try:
        with connected():
            data = code_of(scope["f"])[1]
        assert load_callable(data, bundle_dir=None)(41) == 42
    finally:
        del sys.modules["of_a_module"]
    with pytest.raises(InvalidSpecError, match="known by its name only"):
        load_callable(data, bundle_dir=None)(41)


def test_an_argument_that_the_function_does_not_have_is_named_before_one_that_is_missing_for_it() -> None:
    handle = phalanx.gpu_function(gpus=0)(plain)
    with pytest.raises(TypeError, match=r"plain\(.*it has no argument 'xx', did you mean 'x'\?"):
        handle.pack((), {"xx": 1})
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        handle.pack((), {"y": 1})


@pytest.mark.parametrize("verb", ["remote", "spawn", "map", "stream", "local"])
def test_help_shows_the_verbs(verb: str) -> None:
    import pydoc

    assert f"f.{verb}(" in pydoc.plain(pydoc.render_doc(Function))
    assert "waits and returns the value" in pydoc.plain(pydoc.render_doc(phalanx.Call))


def test_a_wait_is_not_negative() -> None:
    with pytest.raises(InvalidSpecError, match="timeout=-1: give 0 seconds or more"):
        phalanx.Call.from_id("c-00000000000000000000000001").get(timeout=-1)


def test_functions_that_refer_to_each_other_are_refused_with_the_fix() -> None:
    scope: dict[str, Any] = {"phalanx": phalanx, "__name__": "__main__"}
    for a, b in ("fg", "gf"):
        exec(f"@phalanx.gpu_function\ndef {a}():\n    return {b}", scope)
    with connected(), pytest.raises(SerializationError, match="refer to each other: f, g"):
        code_of(scope["f"])


def test_a_handle_in_a_closure_travels_by_id() -> None:
    inner = make(2)
    outer = phalanx.gpu_function(lambda: inner)
    with connected() as client:
        found = shipped(outer)()
    assert isinstance(found.definition, ById)
    assert client.registered == [code_of(inner)[0]]
    again = pickle.loads(pickle.dumps(found))
    assert again.definition.target() == Target(client.registered[0], "scale", "rank0"), "without any connection"


def test_a_name_is_looked_up_only_when_called() -> None:
    handle = Function.from_name("app", "f")
    assert handle.name == "app/f"
    with pytest.raises(InvalidSpecError, match="known by its name only"):
        handle.local(1)
    with pytest.raises(InvalidSpecError, match="no slashes"):
        Function.from_name("a/b", "f")


def test_an_app_collects_functions_and_refuses_two_of_one_name() -> None:
    app = phalanx.App("search")
    app.function(gpus=2)(plain)
    app.function(make)
    assert [f.name for f in app.functions] == ["plain", "make"]
    assert {f.spec.app for f in app.functions if f.spec} == {"search"}
    with pytest.raises(InvalidSpecError, match="two functions called 'plain'"):
        app.function(name="plain")(make)
    app.function(plain)
    assert len(app.functions) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pip": "numpy"}, "give a list"),
        ({"pip": [""]}, "non-empty"),
        ({"preload": ["os; rm"]}, "give module names"),
        ({"vars": {"RANK": "1"}}, "sets RANK"),
        ({"vars": {"A B": "1"}}, "A B"),
        ({"vars": {"A": 1}}, "give a string"),
        ({"vars": {"A": "\udcff"}}, "not Unicode"),
    ],
)
def test_a_wrong_environment_is_refused_with_the_fix(options: Any, said: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        phalanx.env(**options)
    assert said in str(caught.value)


def test_equal_environments_are_one() -> None:
    assert phalanx.env(vars={"B": "2", "A": "1"}) == phalanx.env(vars={"A": "1", "B": "2"})


def test_outside_a_gang_current_is_a_gang_of_one() -> None:
    here = phalanx.current()
    assert (here.rank, here.world_size, here.should_stop()) == (0, 1, False)
    here.progress(1)
