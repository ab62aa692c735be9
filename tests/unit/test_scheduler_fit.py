"""Where gangs go."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core import messages as m
from phalanx.core.spec import FunctionSpec
from phalanx.core.states import GpuState
from phalanx_control.scheduler.fit import Place, find_place
from phalanx_control.scheduler.kinds import GpuKind, model_matches
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import rooms_of
from phalanx_control.scheduler.words import count_gpus
from phalanx_control.state import commands as c
from phalanx_control.state.model import Owner
from tests.support.builders import World, call_id, node_info, spec
from tests.support.invariants import check_state


def place(world: World, asked: FunctionSpec, workspace: str = "default") -> Place | None:
    return find_place(Need(spec=asked, workspace=workspace), rooms_of(world.state))


def where(found: Place | None) -> list[tuple[str, tuple[str, ...]]]:
    assert found is not None
    return [(k.node_id, tuple(g.partition("-gpu")[2] for g in k.gpus)) for k in found.members]


def test_the_lowest_indices_of_the_tightest_node() -> None:
    world = World(node_info("n1", gpus=8), node_info("n2", gpus=4))
    found = place(world, spec(gpus=3))
    assert where(found) == [("n2", ("0", "1", "2"))]
    assert found is not None
    assert found.sentence == "3 GPUs: 3 on n2 (0-2), the fewest nodes that fit: one node"


def test_the_fewest_nodes_with_equal_parts() -> None:
    world = World(*(node_info(f"n{i}", gpus=4) for i in range(1, 5)))
    found = place(world, spec(gpus=8))
    assert where(found) == [("n1", ("0", "1", "2", "3")), ("n2", ("0", "1", "2", "3"))]
    assert found is not None
    assert [(k.first_rank, k.ranks) for k in found.members] == [(0, 4), (4, 4)]


def test_a_number_of_nodes_is_honoured_even_when_one_would_do() -> None:
    world = World(node_info("n1"), node_info("n2"))
    found = place(world, spec(gpus=4, nodes=2))
    assert where(found) == [("n1", ("0", "1")), ("n2", ("0", "1"))]
    assert found is not None
    assert found.sentence == "4 GPUs: 2 on n1 (0-1) and 2 on n2 (0-1), 2 nodes as asked"


def test_all_or_nothing() -> None:
    world = World(node_info("n1", gpus=4), node_info("n2", gpus=3))
    assert place(world, spec(gpus=8)) is None
    assert place(world, spec(gpus=7)) is None
    assert where(place(world, spec(gpus=6))) == [("n1", ("0", "1", "2")), ("n2", ("0", "1", "2"))]


def test_only_models_that_match() -> None:
    world = World(node_info("n1", model="NVIDIA A100"), node_info("n2", model="NVIDIA H200"))
    assert where(place(world, spec(gpus=1, gpu="h100|h200")))[0][0] == "n2"
    assert place(world, spec(gpus=1, gpu="B200")) is None
    assert model_matches(" ", "anything")


def test_cpus_and_memory_are_counted_per_rank() -> None:
    world = World(node_info(cpus=8))
    assert place(world, spec(gpus=4, cpus=2)) is not None
    assert place(world, spec(gpus=5, cpus=2)) is None
    assert place(world, spec(gpus=8, memory_gb=65)) is None
    assert place(World(node_info(cpus=0)), spec(gpus=4, cpus=2)) is not None


def test_one_rank_per_node_or_one_in_all() -> None:
    world = World(node_info("n1"), node_info("n2"))
    per_node = place(world, spec(gpus=16, nodes=2, launch="per_node"))
    assert per_node is not None
    assert [(k.first_rank, k.ranks, len(k.gpus)) for k in per_node.members] == [(0, 1, 8), (1, 1, 8)]
    single = place(world, spec(gpus=8, launch="single"))
    assert single is not None
    assert [(k.ranks, len(k.gpus)) for k in single.members] == [(1, 8)]
    assert place(world, spec(gpus=16, launch="single")) is None


def test_fractions_fill_one_gpu_before_they_open_another() -> None:
    world = World(node_info(gpus=2))
    for n, share in enumerate((0.5, 0.25, 0.5, 0.25), start=1):
        world.submit(n, world.register(spec(f"f{n}", gpus=share)))
    world.schedule()
    by_call = {g.for_call: g for g in world.state.gangs.values()}
    used = [by_call[call_id(n)].members[0].member.gpus[0] for n in (1, 2, 3, 4)]
    assert used == ["n1-gpu0", "n1-gpu0", "n1-gpu1", "n1-gpu0"]
    assert by_call[call_id(2)].placement == "0.25 of GPU 0 on n1, beside 1 more"


def test_tenants_do_not_share_a_gpu() -> None:
    world = World(node_info(gpus=1))
    world.submit(1, world.register(spec(gpus=0.5)))
    world.schedule()
    assert place(world, spec(gpus=0.5), "other") is None
    assert place(world, spec(gpus=0.5), "default") is not None
    assert place(world, spec(gpus=1)) is None


def test_cpu_functions_go_to_the_least_loaded_node_and_are_limited() -> None:
    world = World(node_info("n1", gpus=0, cpus=1), node_info("n2", gpus=0, cpus=1))
    f = world.register(spec(gpus=0))
    for n in range(1, 20):
        world.submit(n, f)
    world.schedule()
    leads = [g.lead for g in world.state.gangs.values()]
    assert (leads.count("n1"), leads.count("n2")) == (8, 8)


def test_eleven_gpus_are_written_as_people_do() -> None:
    assert [count_gpus(1), count_gpus(2, GpuKind("H100|H200")), count_gpus(0.5)] == [
        "1 GPU",
        "2 H100 or H200 GPUs",
        "0.5 GPUs",
    ]


def test_gaps_between_indices_are_shown() -> None:
    world = World(node_info(gpus=4))
    world.say("n1", m.Report(gpus=(m.GpuInfo(uuid="n1-gpu1", state=GpuState.QUARANTINED),)))
    found = place(world, spec(gpus=3))
    assert found is not None
    assert "(0, 2-3)" in found.sentence


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0.25, 0.5, 1, 2, 3, 4, 8]), st.sampled_from(["default", "w2"])), max_size=14)
)
def test_whatever_is_asked_no_gpu_is_given_twice(asked: list[tuple[float, str]]) -> None:
    world = World(node_info("n1", gpus=4), node_info("n2", gpus=4), node_info("n3", gpus=2))
    for n, (gpus, workspace) in enumerate(asked, start=1):
        owner = Owner(workspace=workspace, user="u")
        one = spec(f"f{n}", gpus=gpus)
        world.do(c.RegisterFunction(owner=owner, spec=one))
        world.submit(n, one.function_id, owner)
        world.schedule()
        check_state(world.state)


def test_a_gang_over_every_node_of_a_large_cell_is_placed() -> None:
    world = World(*(node_info(f"n{i:03}") for i in range(50)))
    found = place(world, spec(gpus=400))
    assert found is not None
    assert len(found.members) == 50
