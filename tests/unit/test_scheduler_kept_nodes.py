"""Nodes are kept for a call that has waited long only where it could run: else everybody would wait for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.topology.node import Health, Link, NodeTopology
from phalanx.core.topology.presets import preset
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.reserve import reservation_for
from phalanx_control.scheduler.room import rooms_of
from tests.support.builders import World, call_id, node_info, spec
from tests.support.cells import looks_like


def wrong_pair() -> NodeTopology:
    links = [list(row) for row in preset("dgx1_v100").links]
    links[0][3] = links[3][0] = Link(nvlinks=2, switched=False, copies=False)
    return replace(preset("dgx1_v100"), links=tuple(map(tuple, links)))


def lost_part() -> NodeTopology:
    uuids = [f"n1-gpu{at}" for at in range(8)]
    look = preset("hgx_h100")
    gpus = (*look.gpus[:7], replace(look.gpus[7], health=Health.LOST, reason="it does not answer"))
    return replace(look, gpus=gpus, partitions=(tuple(uuids[:4]), tuple(uuids)))


def lead_of(world: World, n: int) -> str:
    return next(gang.lead for gang in world.state.gangs.values() if gang.for_call == call_id(n))


@pytest.mark.parametrize("look", [wrong_pair(), lost_part()], ids=["wrong pair", "partitions"])
def test_a_gang_for_which_no_set_is_allowed_keeps_nobody_else_waiting(look: NodeTopology) -> None:
    world = World(looks_like(look, "n1"))
    world.submit(1, world.register(spec("big", gpus=8)))
    world.schedule()
    world.wait(30_001)
    world.submit(2, world.register(spec("small", gpus=4)))
    world.schedule()
    assert lead_of(world, 2) == "n1"
    world.wait(1)
    world.schedule()
    assert (
        "n1 has 4 free of 8 (4 held by small of ana), and empty it would not do either: "
        in world.call(call_id(1)).reason
    )


def test_the_node_that_has_the_memory_is_kept_rather_than_the_one_with_more_free_gpus() -> None:
    world = World(replace(node_info("small"), memory_bytes=64 * 10**9), replace(node_info("large"), cpus=128))
    world.ready_gang(world.register(spec("holder", node="large")), 1)
    world.submit(2, world.register(spec("big", gpus=8, memory_gb=50.0)))
    world.schedule()
    world.wait(30_001)
    world.submit(3, world.register(spec("one")))
    world.schedule()
    assert lead_of(world, 3) == "small"


def test_no_played_node_is_kept_for_a_function_without_gpus() -> None:
    world = World(node_info("n1"), node_info("p1", model="played H100"))
    need = Need(spec=spec(gpus=0), workspace="default")
    found = reservation_for(world.state, need, rooms_of(world.state), world.log_ms)
    assert found is not None
    assert found.nodes == {"n1"}
