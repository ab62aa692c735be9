"""Where fractions go, and gangs of one node beside them: where least is lost to those who come next."""

from __future__ import annotations

from phalanx.core.messages import GpuInfo
from phalanx_control.scheduler.fit import Place, find_place
from phalanx_control.scheduler.kinds import ANY_GPU, GpuKind
from phalanx_control.scheduler.mix import Asked, Free, Mix, mix_of
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import Rooms, rooms_of
from tests.support.builders import World, call_id, node_info, spec

GPU = GpuInfo(uuid="u", model="NVIDIA H100")


def place(rooms: Rooms, gpus: float, **more: object) -> Place | None:
    return find_place(Need(spec=spec(gpus=gpus, **more), workspace="default"), rooms)  # pyright: ignore[reportArgumentType]


def gpu_of(world: World, gpus: float, **more: object) -> str:
    found = place(rooms_of(world.state), gpus, **more)
    assert found is not None
    return found.members[0].gpus[0] if found.members[0].gpus else found.members[0].node_id


def world_with(*asked: float, nodes: int = 1, gpus: int = 2) -> World:
    world = World(*(node_info(f"n{at}", gpus=gpus) for at in range(1, nodes + 1)))
    for n, each in enumerate(asked, start=1):
        world.submit(n, world.register(spec(f"f{n}", gpus=each)))
        world.schedule()
    assert all(any(g.for_call == call_id(n) for g in world.state.gangs.values()) for n in range(1, len(asked) + 1))
    return world


def test_what_is_free_is_lost_to_kinds_that_do_not_fit_where_it_is() -> None:
    mix = Mix(((Asked(0, 500, ANY_GPU), 1.0), (Asked(0, 1000, ANY_GPU), 1.0)))
    assert mix.lost(GPU, Free((1000, 400), 8)) == (400 + 400) / 2
    assert mix.lost(GPU, Free((600, 400), 8)) == (400 + 1000) / 2
    assert mix.lost(GPU, Free((0, 0), 8)) == 0


def test_what_lacks_cores_or_the_model_is_lost_altogether() -> None:
    mix = Mix(((Asked(4, 500, ANY_GPU), 1.0), (Asked(0, 500, GpuKind("A100")), 1.0)))
    assert mix.lost(GPU, Free((1000,), 8)) == 500
    assert mix.lost(GPU, Free((1000,), 2)) == 1000


def test_the_mix_is_of_the_gangs_that_are_here_and_stays_the_same_while_little_changes() -> None:
    world = world_with(0.5, 0.5, 0.25, 0.25, gpus=4)
    first = mix_of(rooms_of(world.state))
    again = mix_of(rooms_of(world.state))
    assert first is again
    assert mix_of(rooms_of(world_with(0.5, 0.5, 0.5, 0.5, gpus=4).state)) is not first


def test_a_fraction_goes_beside_another_before_it_opens_a_gpu() -> None:
    assert gpu_of(world_with(0.5), 0.25) == "n1-gpu0"
    assert gpu_of(world_with(0.5, 0.5), 0.25) == "n1-gpu1"


def test_a_fraction_leaves_the_gap_that_another_fills() -> None:
    world = world_with(0.7, 0.5)
    assert gpu_of(world, 0.3) == "n1-gpu0"
    assert gpu_of(world, 0.5) == "n1-gpu1"


def test_fractions_stay_off_the_node_that_is_whole() -> None:
    world = world_with(0.5, nodes=2, gpus=1)
    used = {m.member.node_id for g in world.state.gangs.values() for m in g.members}
    assert gpu_of(world, 0.5).partition("-")[0] in used


def test_cores_are_kept_for_gpus_and_gpus_for_whoever_needs_few_cores() -> None:
    world = World(node_info("n1", gpus=0), node_info("n2", gpus=8))
    assert gpu_of(world, 0, cpus=8) == "n1"
    world.submit(1, world.register(spec("lean", gpus=1, cpus=1)))
    world.submit(2, world.register(spec("wide", gpus=1, cpus=60)))
    world.schedule()
    world.hello(node_info("n3", gpus=8))
    assert gpu_of(world, 1, cpus=1).startswith("n2")
    assert gpu_of(world, 1, cpus=60).startswith("n3")


def test_nodes_that_are_barred_get_no_fraction() -> None:
    rooms = rooms_of(world_with(0.5, nodes=2, gpus=1).state)
    need = Need(spec=spec(gpus=0.25), workspace="default")
    assert find_place(need, rooms, barred=frozenset({"n1", "n2"})) is None
    one = find_place(need, rooms, barred=frozenset({"n1"}))
    assert one is not None
    assert one.members[0].node_id == "n2"


def test_the_offers_of_nodes_are_kept_in_step_with_what_is_taken_and_given_back() -> None:
    world = World(node_info("n1", gpus=1), node_info("n2", gpus=1))
    rooms = rooms_of(world.state)
    for n in range(1, 5):
        world.submit(n, world.register(spec(f"f{n}", gpus=0.5)))
    world.schedule()
    for gang in world.state.gangs.values():
        assert place(rooms, 0.5) is not None
        rooms.put(gang, world.state.functions[gang.function_id].spec)
    assert place(rooms, 0.5) is None
    for gang in world.state.gangs.values():
        rooms.take_out(gang.id)
        assert place(rooms, 0.5) is not None


def test_a_fraction_does_not_take_the_tightest_gap_where_that_leaves_one_of_no_use() -> None:
    world = World(*(node_info(f"n{at}", gpus=1) for at in (1, 2, 3)))
    for n, (gpus, node) in enumerate(((0.5, "n1"), (0.2, "n2"), (0.5, "n3"), (0.5, "n3")), start=1):
        world.submit(n, world.register(spec(f"f{n}", gpus=gpus, node=node)))
    world.schedule()
    assert len(world.state.gangs) == 4
    assert gpu_of(world, 0.3) == "n2-gpu0"
