"""The picture that is kept from one pass to the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core import messages as m
from phalanx_control.lifecycle.decide import decide
from phalanx_control.scheduler.fleet import picture_of
from phalanx_control.state import commands as c
from tests.support.builders import EVE, World, node_info, spec
from tests.support.pictures import check_picture


def test_it_is_the_same_one_for_as_long_as_the_cell_is() -> None:
    world = World(node_info("n1"), node_info("n2"))
    first = picture_of(world.state)
    world.ready_gang(world.register(spec(gpus=4)))
    assert picture_of(world.state) is first
    check_picture(world.state)
    world.hello(node_info("n3"))
    assert picture_of(world.state) is not first
    check_picture(world.state)


def test_a_gpu_that_is_marked_and_one_that_changes_are_seen_with_what_is_held_beside_them() -> None:
    world = World(node_info("n1"), node_info("n2"))
    gang = world.ready_gang(world.register(spec(gpus=3)))
    picture_of(world.state)
    mark = m.GpuInfo(uuid="n1-gpu7", index=7, model="NVIDIA H100")
    world.say("n1", m.MemberEnded(gang_id=gang.id, fence=gang.fence, clean=True, quarantined=(mark,)))
    check_picture(world.state)
    info = node_info("n2")
    world.hello(replace(info, gpus=tuple(replace(gpu, model="NVIDIA A100") for gpu in info.gpus)))
    check_picture(world.state)


def test_a_decision_that_was_not_kept_leaves_no_trace() -> None:
    world = World(node_info("n1"))
    f = world.register(spec(gpus=4))
    before = world.state
    world.submit(1, f)
    world.schedule()
    check_picture(world.state)
    check_picture(before)
    check_picture(world.state)


def test_a_decision_that_never_came_about_leaves_no_trace() -> None:
    """Its entry was refused by the store: the state is the one before, and what comes next knows nothing of it."""
    world = World(node_info("n1"))
    spot = world.ready_gang(world.register(replace(spec("spot", gpus=8), preemptible=True)))
    world.start(spot.for_call)
    world.wait(600_000)
    check_picture(world.state)
    world.submit(2, world.register(spec("firm", gpus=8)))
    lost = decide(world.state, c.Schedule(raw_ids=world.raw_ids(), gang_idle_ms={}), world.now)
    assert "GangDraining" in world.kinds(lost)
    check_picture(world.state)
    world.submit(3, world.register(spec("small", gpus=1)))
    check_picture(world.state)


def test_gangs_beyond_what_is_remembered_of_changes_are_seen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx_control.state.touched.KEPT", 4)
    world = World(node_info("n1"), node_info("n2"))
    f = world.register(spec(gpus=1))
    picture_of(world.state)
    for number in range(1, 9):
        world.ready_gang(f, number)
    check_picture(world.state)


def test_another_cell_of_the_same_process_has_its_own() -> None:
    one, other = World(node_info("n1")), World(node_info("n1"))
    one.ready_gang(one.register(spec(gpus=4)))
    other.do(c.RegisterFunction(owner=EVE, spec=spec("f", gpus=0.5)))
    for world in (one, other, one):
        check_picture(world.state)
