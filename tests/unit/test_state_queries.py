"""Questions that others ask of a state."""

from __future__ import annotations

from phalanx.core import messages as m
from phalanx.core.spec import FunctionSpec
from phalanx.core.states import GangState, GpuState
from phalanx_control.state import commands as c
from phalanx_control.state import queries
from tests.support.builders import ANA, World, call_id, node_info, spec


def test_a_gpu_is_free_reserved_held_cleaning_or_marked() -> None:
    world = World(node_info(gpus=2))
    f = world.register(spec())

    def state_now() -> tuple[GpuState, str]:
        holder = next(iter(world.state.gangs.values()), None)
        return queries.gpu_state(world.state.nodes["n1"], "n1-gpu0", holder)

    assert state_now() == (GpuState.FREE, "")
    world.submit(1, f)
    world.schedule()
    assert state_now() == (GpuState.RESERVED, "")
    gang = world.bring_up(world.only_gang())
    assert state_now() == (GpuState.HELD, "")
    world.finish(call_id(1))
    world.wait(60_000)
    world.idle_ms = {gang.id: 60_000}
    world.tick()
    assert world.only_gang().state is GangState.DRAINING
    assert state_now() == (GpuState.CLEANING, "idle for scaledown_window=60 s")
    world.say("n1", m.Report(gpus=(m.GpuInfo(uuid="n1-gpu0", state=GpuState.DOWN, reason="xid 79"),)))
    assert state_now() == (GpuState.DOWN, "xid 79")


def test_free_shares_are_what_leases_leave() -> None:
    world = World(node_info(gpus=2))
    world.submit(1, world.register(spec(gpus=0.25)))
    world.schedule()
    assert queries.free_shares(world.state) == {"n1": {"n1-gpu0": 0.75, "n1-gpu1": 1}}
    (lease,) = queries.leases(world.state)
    assert (lease.node_id, lease.gpu, lease.share, lease.workspace) == ("n1", "n1-gpu0", 0.25, "default")


def test_gangs_are_found_by_function_and_tenant() -> None:
    world = World(node_info())
    f = world.register(spec())
    gang = world.ready_gang(f)
    assert queries.gangs_of(world.state, f) == queries.gangs_of(world.state, f, "default") == (gang,)
    assert queries.gangs_of(world.state, f, "other") == ()
    assert queries.gangs_of(world.state, "f-x") == ()


def test_functions_are_called_as_their_users_know_them() -> None:
    world = World()
    plain = world.register(spec("plain"))
    deployed = c.DeployApp(owner=ANA, app="shop", specs=(_in_app("a", 1),))
    world.do(deployed)
    first = world.state.apps["default/shop"].functions["a"]
    assert queries.function_label(world.state, plain) == "m.plain"
    assert queries.function_label(world.state, first) == "shop/a@1"
    world.do(c.DeployApp(owner=ANA, app="shop", specs=(_in_app("a", 2),)))
    assert queries.function_label(world.state, first) == "m.a"
    assert queries.function_label(world.state, "f-unknown") == "f-unknown"


def _in_app(name: str, gpus: int) -> FunctionSpec:
    return FunctionSpec(name=name, module="m", app="shop", resources=spec(gpus=gpus).resources)
