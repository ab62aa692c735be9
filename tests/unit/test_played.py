"""Played GPUs: who asks for them, who never gets them, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from phalanx.core import messages as m
from phalanx.core.errors import UnschedulableError
from phalanx.core.played import PLAYED, asks_for_played, is_played, model_matches, played_model
from phalanx.core.spec import FunctionSpec
from phalanx.core.states import GangState
from phalanx_control.metering.book import load_book
from phalanx_control.scheduler.fit import find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import rooms_of
from phalanx_control.service.log_sources import Directory
from phalanx_control.state.model import Owner
from tests.support.builders import World, node_info, spec

H100 = "NVIDIA H100 80GB HBM3"
PLAYED_H100 = played_model(H100)


def played_node(node_id: str = "p1", *, gpus: int = 8) -> m.NodeInfo:
    info = node_info(node_id, gpus=gpus, model=PLAYED_H100, cpus=0)
    return replace(info, data_address="", memory_bytes=0, pool=PLAYED)


def nodes_of(world: World, asked: FunctionSpec) -> list[str]:
    found = find_place(Need(spec=asked, workspace="default"), rooms_of(world.state))
    return [member.node_id for member in found.members] if found is not None else []


@pytest.mark.parametrize("wanted", ["", "H100", "h100|a100", "NVIDIA", "H100|played", "replayed", "displayed|H100"])
def test_nobody_gets_a_played_gpu_without_asking_for_nothing_else(wanted: str) -> None:
    assert not model_matches(wanted, PLAYED_H100)
    assert not asks_for_played(wanted)


@pytest.mark.parametrize("wanted", ["played", "Played", "played H100", " played h100 | played A100 "])
def test_who_asks_for_played_gpus_gets_those_and_no_others(wanted: str) -> None:
    assert asks_for_played(wanted)
    assert model_matches(wanted, PLAYED_H100)
    assert not model_matches(wanted, H100)


def test_a_model_can_be_asked_for_among_the_played_ones() -> None:
    assert not model_matches("played A100", PLAYED_H100)
    assert is_played(played_model(""))
    assert not is_played("Simulated GPU")
    assert not is_played("playedish")


def test_no_real_function_is_placed_on_played_nodes_whatever_it_asks_for() -> None:
    world = World(played_node("p1"), played_node("p2"))
    for asked in (spec(gpus=1), spec(gpus=8, gpu="H100"), spec(gpus=0.5), spec(gpus=0), spec(gpus=16), spec(gpus=2)):
        assert nodes_of(world, asked) == [], asked.resources


def test_real_functions_go_to_the_real_node_beside_a_fleet() -> None:
    world = World(*(played_node(f"p{at}") for at in range(4)), node_info("real", gpus=4))
    for asked in (spec(gpus=4), spec(gpus=1, gpu="H100"), spec(gpus=0.5), spec(gpus=0)):
        assert nodes_of(world, asked) == ["real"], asked.resources
    assert nodes_of(world, spec(gpus=8)) == [], "not half on a real node and half on a played one"


def test_a_function_that_asks_for_played_gpus_gets_no_real_one() -> None:
    world = World(node_info("real"), played_node("p1"))
    assert nodes_of(world, spec(gpus=8, gpu="played")) == ["p1"]
    assert nodes_of(world, spec(gpus=16, gpu="played")) == []


def test_what_can_never_fit_is_told_without_counting_the_fleet() -> None:
    world = World(node_info("real"), played_node("p1"))
    with pytest.raises(UnschedulableError, match="this cell has 8 GPUs on 1 node, at most 8 on one \\(real\\)"):
        world.submit(1, world.register(spec(gpus=16)))


def test_a_cell_of_played_nodes_alone_says_who_may_use_them() -> None:
    world = World(played_node())
    with pytest.raises(UnschedulableError, match=r'only played ones, .* gpu="played"'):
        world.submit(1, world.register(spec(gpus=1)))


def test_a_cell_without_a_fleet_says_what_starts_one() -> None:
    world = World(node_info())
    with pytest.raises(UnschedulableError, match="`gpuctl topo simulate` starts played ones"):
        world.submit(1, world.register(spec(gpus=1, gpu="played")))


def test_why_a_call_waits_names_nodes_of_its_own_kind_only() -> None:
    world = World(node_info("real", gpus=2), *(played_node(f"z{at}") for at in range(3)))
    world.ready_gang(world.register(spec("holds", gpus=2)))
    call = world.submit(2, world.register(spec("waits", gpus=1)))
    world.schedule()
    assert "real has 0 free of 2" in world.call(call).reason


def test_a_call_that_the_fleet_left_behind_waits_for_the_next_one() -> None:
    world = World(node_info("real"), played_node())
    call = world.submit(1, world.register(spec(gpus=1, gpu="played")))
    world.say("p1", m.Leave())
    world.schedule()
    assert world.call(call).reason == "waits for a first played node: `gpuctl topo simulate` starts some"


def test_what_is_played_costs_nothing_in_any_book() -> None:
    book = load_book(
        {
            "price": [
                {"sku": "h", "gpu": "H100", "effective_from": "2024-01-01T00:00:00Z", "per_gpu_second": "0.001"},
                {"sku": "p", "gpu": "played", "effective_from": "2024-01-01T00:00:00Z", "per_gpu_second": "9"},
            ]
        }
    )
    price = book.price_of(PLAYED_H100, 1_800_000_000_000)
    assert price is not None
    assert price.per_gpu_second == Decimal(0)


def test_no_caller_is_sent_to_the_data_plane_that_a_played_node_does_not_have() -> None:
    world = World(played_node())
    gang = world.ready_gang(world.register(spec(gpus=1, gpu="played")))
    assert world.state.gangs[gang.id].state in (GangState.READY, GangState.BUSY)
    owner = Owner(workspace="default", user="ana")
    directory = Directory(tickets=None, blobs=None)  # pyright: ignore[reportArgumentType] - neither is asked
    found = directory.gang_address(world.state, gang.function_id, owner, lambda _gang: 0)
    assert found.ticket == ""
