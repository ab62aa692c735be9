"""What ranks get, as text between programs; and a topology as one gang sees it."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.topology.codec import from_json, to_json
from phalanx.core.topology.equipment import (
    MAX_SHOWN_CHARS,
    Equipment,
    RankEquipment,
    Variable,
    from_text,
    shown_text,
    to_text,
)
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.node import MigDevice
from phalanx.core.topology.presets import preset
from phalanx.core.topology.restricted import positions_of, restricted

FULL = Equipment(
    ranks=(
        RankEquipment(
            gpus=("0", "3"),
            numa=(0,),
            cpus="0-3",
            cpus_why="near GPU 0",
            sharers=2,
            memory_numa=0,
            memory_why="near",
            ports=("mlx5_0",),
            ports_why="nearest",
        ),
        RankEquipment(),
    ),
    variables=(Variable("NCCL_IB_HCA", "=mlx5_0", "nearest"), Variable("NCCL_CROSS_NIC", "", "left to NCCL")),
    topology="/run/t.json",
)


def test_it_comes_back_from_text_as_it_was() -> None:
    assert from_text(to_text(FULL)) == FULL
    assert from_text(to_text(Equipment())) == Equipment()


def test_what_has_no_value_is_not_set() -> None:
    assert FULL.environment == {"NCCL_IB_HCA": "=mlx5_0"}


def test_people_are_shown_all_but_paths_and_the_ends_of_long_values() -> None:
    long = replace(FULL, variables=(Variable("NCCL_X", "v" * 10_000, "mine"),))
    shown = from_text(shown_text(to_text(long)))
    assert shown.ranks == FULL.ranks
    assert shown.topology == ""
    assert len(shown.variables[0].value) == 500


def test_what_is_too_long_or_broken_is_not_shown_at_all() -> None:
    many = replace(FULL, variables=tuple(Variable(f"NCCL_{at}", "v" * 500, "w") for at in range(200)))
    assert len(to_text(many)) > MAX_SHOWN_CHARS
    assert shown_text(to_text(many)) == ""
    assert shown_text("no JSON") == ""
    assert shown_text("") == ""


@given(
    st.one_of(
        st.text(),
        st.sampled_from(
            ["[]", "{}", '{"ranks":[1]}', '{"ranks":[{"gpus":[1]}]}', '{"variables":[["A"]]}', '{"x":1}', '{"ranks":7}']
        ),
    )
)
def test_another_text_raises_our_error_and_nothing_else(text: str) -> None:
    with contextlib.suppress(UnreadableTopologyError):
        assert isinstance(from_text(text), Equipment)


def test_a_gang_sees_its_own_gpus_in_its_own_order() -> None:
    node = preset("dgx1_v100")
    seen = restricted(node, ("index-3", "index-0", "index-6"))
    assert [gpu.index for gpu in seen.gpus] == [3, 0, 6]
    assert seen.links[0][1] == node.links[3][0]
    assert seen.links[2][0] == node.links[6][3]
    assert seen.nic_links[1] == node.nic_links[0]
    assert seen.nics == node.nics
    assert from_json(to_json(seen)) == seen


def test_parts_of_a_split_gpu_are_seen_as_that_gpu_and_strangers_not_at_all() -> None:
    node = preset("hgx_a100")
    parts = tuple(MigDevice(uuid=f"MIG-{at}", profile="3g.40gb") for at in range(2))
    split = replace(node, gpus=(replace(node.gpus[0], mig=parts), *node.gpus[1:]))
    assert positions_of(split, ("MIG-1", "MIG-0", "index-2", "index-99")) == (0, 2)


@pytest.mark.parametrize(("uuids", "left"), [(("index-0", "index-1"), 1), (("index-0",), 0)])
def test_partitions_that_are_not_whole_are_not_seen(uuids: tuple[str, ...], left: int) -> None:
    node = replace(preset("hgx_h100"), partitions=(("index-0", "index-1"), ("index-2", "index-3")))
    assert len(restricted(node, uuids).partitions) == left
