"""Specs: wrong use is refused when it is written down, with the value and the fix; equal specs have equal ids."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InvalidSpecError
from phalanx.core.spec import EnvSpec, FunctionSpec, Limits, Resources, check_name


@pytest.mark.parametrize("gpus", [-1, 1.5, 2.25, -0.5])
def test_impossible_gpu_counts_are_refused_with_the_value(gpus: float) -> None:
    with pytest.raises(InvalidSpecError, match=f"gpus={gpus}.*whole number"):
        Resources(gpus=gpus)


@pytest.mark.parametrize(("gpus", "ranks"), [(0, 1), (0.5, 1), (1, 1), (4, 4), (16, 16)])
def test_there_is_one_rank_per_whole_gpu(gpus: float, ranks: int) -> None:
    assert Resources(gpus=gpus).world_size == ranks


def test_nodes_must_divide_the_gang() -> None:
    assert Resources(gpus=8, nodes=2).nodes == 2
    with pytest.raises(InvalidSpecError, match=r"nodes=3 does not divide gpus=8.*divisor of 8"):
        Resources(gpus=8, nodes=3)
    with pytest.raises(InvalidSpecError, match="nodes=-1"):
        Resources(nodes=-1)


@pytest.mark.parametrize("field", ["cpus", "memory_gb"])
def test_negative_resources_are_refused(field: str) -> None:
    with pytest.raises(InvalidSpecError, match=f"{field}=-1"):
        Resources(**{field: -1})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "field", ["timeout_s", "startup_timeout_s", "grace_s", "disconnect_grace_s", "scaledown_window_s"]
)
@pytest.mark.parametrize("value", [-0.1, 2_592_001, float("nan"), float("inf")])
def test_time_limits_lie_between_0_and_30_days(field: str, value: float) -> None:
    with pytest.raises(InvalidSpecError, match=field.removesuffix("_s") + "="):
        Limits(**{field: value})  # pyright: ignore[reportArgumentType]


def test_retries_are_bounded() -> None:
    assert Limits(retries=100).retries == 100
    with pytest.raises(InvalidSpecError, match="retries=101"):
        Limits(retries=101)


@pytest.mark.parametrize(
    ("field", "legal"), [("backend", "'auto', 'nccl', 'gloo'"), ("launch", "'per_gpu'"), ("returns", "'rank0', 'all'")]
)
def test_a_wrong_choice_names_the_legal_ones(field: str, legal: str) -> None:
    with pytest.raises(InvalidSpecError, match=f"{field}='mpi': use one of .*{legal}"):
        FunctionSpec(name="f", **{field: "mpi"})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("launch", "gpus", "nodes", "processes"),
    [("per_gpu", 4, 2, 4), ("per_node", 4, 2, 2), ("per_node", 4, 0, 1), ("single", 4, 2, 1)],
)
def test_launch_says_how_many_processes_start(launch: str, gpus: float, nodes: int, processes: int) -> None:
    assert FunctionSpec(name="f", resources=Resources(gpus=gpus, nodes=nodes), launch=launch).world_size == processes


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "..", ".", "-x", "a\nb", "a\0b", "x" * 201, "a\u202eb"])
def test_names_that_could_be_paths_options_or_tricks_are_refused(name: str) -> None:
    with pytest.raises(InvalidSpecError):
        check_name("function name", name)


@given(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=200))
def test_names_of_letters_and_digits_in_any_script_are_fine(name: str) -> None:
    check_name("function name", name)
    assert FunctionSpec(name=name, app=name).name == name


def test_equal_specs_have_equal_ids_and_any_change_makes_another() -> None:
    spec = FunctionSpec(name="f", module="m", resources=Resources(gpus=2))
    assert spec.function_id == FunctionSpec(name="f", module="m", resources=Resources(gpus=2)).function_id
    others = [
        replace(spec, name="g"),
        replace(spec, resources=Resources(gpus=4)),
        replace(spec, limits=Limits(retries=1)),
        replace(spec, env=EnvSpec(variables=(("A", "1"),))),
    ]
    assert len({spec.function_id, *(other.function_id for other in others)}) == 5


def test_environments_share_a_zygote_when_packages_and_preloads_are_equal() -> None:
    assert EnvSpec().digest == EnvSpec(variables=(("A", "1"),)).digest == ""
    assert EnvSpec(pip=("numpy",)).digest == EnvSpec(pip=("numpy",), variables=(("A", "1"),)).digest
    assert EnvSpec(pip=("numpy",)).digest != EnvSpec(preload=("numpy",)).digest


def test_whole_numbers_and_their_decimal_forms_are_one_function() -> None:
    whole = FunctionSpec(
        name="f", resources=Resources(gpus=1, cpus=2, memory_gb=4), limits=Limits(timeout_s=60, grace_s=3, retries=1)
    )
    decimal = FunctionSpec(
        name="f",
        resources=Resources(gpus=1.0, cpus=2.0, memory_gb=4.0),
        limits=Limits(timeout_s=60.0, grace_s=3.0, retries=1.0),  # pyright: ignore[reportArgumentType]
    )
    assert whole == decimal
    assert whole.function_id == decimal.function_id


def test_what_is_no_number_is_refused_with_the_value() -> None:
    with pytest.raises(InvalidSpecError, match="gpus='8': give a number"):
        Resources(gpus="8")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidSpecError, match=r"retries=1\.5: give a whole number"):
        Limits(retries=1.5)  # pyright: ignore[reportArgumentType]
