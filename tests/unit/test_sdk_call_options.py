"""`Function.options` and the retry options: what is refused before anything is sent, and what a call then carries."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import cloudpickle
import pytest

import phalanx
from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import CallTerms
from phalanx.core.spec import FunctionSpec, Limits, Resources, Retrying
from phalanx.definition import Target
from phalanx.retries import class_names
from tests.support import fake_client


class Flaky(Exception):
    pass


@phalanx.gpu_function(gpus=0, retries=2, retry_on=(Flaky, "OSError"))
def flaky(x: int) -> int:
    return x


@phalanx.gpu_function(gpus=0)
def plain(x: int) -> int:
    return x


OPTIONS: Any = plain.options
DECORATE: Any = phalanx.gpu_function


def target_of(function: phalanx.Function[..., Any]) -> Target:
    with fake_client.connected() as client:
        definition: Any = function.definition
        return definition.target(client)


def test_a_policy_and_the_exceptions_become_part_of_the_function() -> None:
    @phalanx.gpu_function(
        retries=phalanx.Retries(max_retries=5, backoff=3, initial_delay="500ms", max_delay="1m"), retry_on="OSError"
    )
    def f() -> None: ...

    assert f.spec is not None
    assert f.spec.limits.retries == 5
    assert f.spec.limits.retrying == Retrying(
        backoff=3, initial_delay_s=0.5, max_delay_s=60, retry_on=("builtins.OSError",)
    )


def test_functions_that_are_tried_again_as_usual_keep_the_ids_that_they_had() -> None:
    spec = FunctionSpec(name="train", module="m", limits=Limits(retries=2))
    assert spec.function_id == "f-34691832d7fa913ace839c5d23"
    other = replace(spec, limits=Limits(retries=2, retrying=Retrying(backoff=3)))
    assert other.function_id != spec.function_id


@pytest.mark.parametrize(
    ("given", "names"),
    [
        pytest.param(ValueError, ("builtins.ValueError",), id="a-class"),
        pytest.param((ValueError, ValueError, "OSError"), ("builtins.ValueError", "builtins.OSError"), id="each-once"),
        pytest.param("somewhere.else.Gone", ("somewhere.else.Gone",), id="a-module-that-is-not-here"),
        pytest.param("phalanx.CallTimeoutError", ("phalanx.core.errors.CallTimeoutError",), id="where-it-is-defined"),
        pytest.param(phalanx.OutOfMemoryError, ("phalanx.core.errors.OutOfMemoryError",), id="the-platforms-own"),
        pytest.param("json.JSONDecodeError", ("json.decoder.JSONDecodeError",), id="dotted"),
        pytest.param([json.JSONDecodeError], ("json.decoder.JSONDecodeError",), id="in-a-list"),
    ],
)
def test_exceptions_are_named_as_ranks_tell_them(given: Any, names: tuple[str, ...]) -> None:
    assert phalanx.CallTimeoutError
    assert class_names(given) == names


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"retries": -1}, r"retries=-1: give a whole number between 0 and 100", id="below-zero"),
        pytest.param({"retries": True}, r"retries=True: give a whole number", id="not-a-number"),
        pytest.param({"retries": 3, "retry_on": ()}, r"names no exception: use retries=0", id="empty"),
        pytest.param({"retries": 3, "retry_on": (int,)}, r"int is not an exception class", id="not-an-exception"),
        pytest.param({"retries": 3, "retry_on": "ValueEror"}, r"is no exception of Python's own", id="misspelled"),
        pytest.param({"retries": 3, "retry_on": 7}, r"7 is neither an exception class nor", id="a-number"),
        pytest.param({"retry_on": ValueError}, r"without retries has no effect: give retries=3", id="no-effect"),
    ],
)
def test_wrong_retries_are_refused_at_decoration_and_by_options(options: dict[str, Any], words: str) -> None:
    for make in (lambda: DECORATE(**options)(lambda: None), lambda: OPTIONS(**options)):
        with pytest.raises((InvalidSpecError, TypeError), match=words):
            make()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"backoff": 0.5}, r"backoff=0.5: give a number from 1", id="shrinking"),
        pytest.param({"initial_delay": 90}, r"initial_delay=90, max_delay=60", id="first-above-the-most"),
        pytest.param({"max_delay": "2d"}, r"at most 86400", id="too-long"),
        pytest.param({"max_retries": 101}, r"between 0 and 100", id="too-many"),
        pytest.param({"initial_delay": "soon"}, r"initial_delay='soon': give seconds", id="no-duration"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_where_it_is_made(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        phalanx.Retries(**values)


def test_a_misspelled_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match=r"plain\.options\(…\) has no option 'timout': did you mean timeout\?"):
        OPTIONS(timout=3)
    with pytest.raises(TypeError, match=r"gpu_function has no option 'retires': did you mean retries\?"):
        DECORATE(retires=3)
    with pytest.raises(TypeError, match=r"there are timeout, retries, retry_on"):
        OPTIONS(zzz=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"timeout": 0}, r"timeout=0: give more than 0 seconds", id="no-time"),
        pytest.param({"deadline": "-1s"}, r"deadline='-1s': give seconds", id="deadline-before-the-call"),
        pytest.param({"deadline": datetime(2020, 1, 1, tzinfo=UTC)}, r"is over: it is 2", id="deadline-over"),
        pytest.param({"deadline": datetime(2099, 1, 1)}, r"needs its time zone", id="naive"),  # noqa: DTZ001
        pytest.param({"idempotency_key": ""}, r"give text of 1 to 200", id="empty-key"),
        pytest.param({"idempotency_key": "a\nb"}, r"printable", id="unprintable-key"),
        pytest.param({"idempotency_key": 17}, r"give text", id="a-number-as-key"),
        pytest.param({"gpus": 1.5}, r"gpus=1.5: use a whole number", id="one-and-a-half"),
        pytest.param({"grace": "x"}, r"grace='x'", id="grace"),
        pytest.param({"min_memory_gb": "80"}, r"min_memory_gb='80': give a number", id="memory-as-text"),
        pytest.param({"isolation": "gpu"}, r"isolation='gpu': use 'node', or leave it out", id="isolation"),
        pytest.param({"spread": 2}, r"spread=2: give True or False", id="spread"),
        pytest.param({"gpus": 2, "fabric": "bus"}, r"fabric='bus': use one of 'nvlink', 'rail', 'any'", id="fabric"),
        pytest.param({"gpus": 2, "prefer_fabric": ["rail"]}, r"prefer_fabric=\['rail'\]: use one of", id="wish"),
        pytest.param({"startup_timeout": 0}, r"startup_timeout=0", id="startup"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_sent(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        OPTIONS(**options)


def test_terms_of_the_call_keep_the_function_and_go_through_the_control_plane() -> None:
    usual, other = target_of(plain), target_of(plain.options(timeout="90s", retries=3, idempotency_key="order-17"))
    assert other.function_id == usual.function_id
    assert (usual.direct, other.direct) == (True, False)
    assert other.timeout_ms == 90_000
    assert other.terms == CallTerms(own_retries=True, retries=3, idempotency_key="order-17")


def test_a_timeout_alone_keeps_the_way_that_the_functions_calls_take() -> None:
    alone = target_of(plain.options(timeout="90s"))
    assert (alone.direct, alone.timeout_ms, alone.terms) == (True, 90_000, CallTerms())
    assert not target_of(flaky.options(timeout="90s")).direct, "its retries are counted"
    assert not target_of(plain.options(timeout="90s", deadline=100)).direct
    assert not target_of(plain.options(timeout="90s", retries=0)).direct


def test_what_is_not_asked_for_stays_the_functions() -> None:
    terms = target_of(flaky.options(retries=5)).terms
    assert terms.retrying.retry_on == (f"{__name__}.Flaky", "builtins.OSError")
    assert target_of(flaky.options(retry_on=KeyError)).terms.retries == 2
    assert not target_of(flaky.options(deadline=10)).terms.own_retries
    assert target_of(flaky.options(retries=0)).terms.own_retries


def test_later_options_win_and_the_others_stay() -> None:
    target = target_of(plain.options(timeout=1, deadline=5).options(gpus=2).options(timeout=2))
    assert (target.timeout_ms, target.terms.deadline_in_ms) == (2000, 5000)


def test_a_time_is_the_same_for_every_call_and_a_duration_begins_with_each() -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    assert target_of(plain.options(deadline=at)).terms.deadline_wall_ms == round(at.timestamp() * 1000)
    terms = target_of(plain.options(deadline=at).options(deadline="10m")).terms
    assert (terms.deadline_in_ms, terms.deadline_wall_ms) == (600_000, 0)


def test_other_resources_make_a_variant_that_is_registered_once() -> None:
    with fake_client.connected() as client:
        known: Any = client
        ids = [plain.options(gpus=2, grace=9).definition.target(known).function_id for _ in range(3)]
        assert plain.definition.target(known).function_id != ids[0]
        assert len(client.registered) == 2
    two = plain.options(gpus=2).options(startup_timeout=9)
    assert two.spec is not None
    assert (two.spec.resources.gpus, two.spec.limits.startup_timeout_s) == (2, 9)
    assert two.options(gpus=0).options(startup_timeout=300).definition is plain.definition


def test_where_a_gang_may_be_is_said_by_the_decorator_and_by_options() -> None:
    @phalanx.gpu_function(gpus=8, min_memory_gb=80, isolation="node", spread=True, fabric="rail")
    def f() -> None: ...

    assert f.spec is not None
    assert f.spec.resources == Resources(gpus=8, min_memory_gb=80, isolation="node", spread=True, fabric="rail")
    other = f.options(min_memory_gb=None, isolation=None, spread=False, fabric="any", prefer_fabric="nvlink").spec
    assert other is not None
    assert other.resources == Resources(gpus=8, prefer_fabric="nvlink")


def test_the_handle_still_runs_here_and_binds() -> None:
    assert plain.options(timeout=1)(3) == 3
    assert plain.options(gpus=4).local(4) == 4


def test_a_handle_with_terms_travels_with_them() -> None:
    with fake_client.connected() as client:
        again = cloudpickle.loads(cloudpickle.dumps(plain.options(timeout=3, idempotency_key="k")))
        target = again.definition.target(client)
        assert (target.timeout_ms, target.terms.idempotency_key) == (3000, "k")
        with pytest.raises(InvalidSpecError, match=r"gpus: plain is known by its id only"):
            again.options(gpus=2)


def test_a_key_is_refused_where_many_calls_are_made() -> None:
    with pytest.raises(InvalidSpecError, match=r"'k' stands for one call, and a map makes one for each input"):
        plain.options(idempotency_key="k").map([1, 2])
