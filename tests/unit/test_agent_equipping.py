"""What the agent adds to a topology's facts: this machine's own, whose word counts, and the files that it writes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.messages import Member
from phalanx.core.spec import EnvSpec, FunctionSpec, Resources
from phalanx.core.topology.codec import from_json
from phalanx.core.topology.equipment import Equipment, from_text
from phalanx.core.topology.importers.nccl_xml import read_nccl_xml
from phalanx.core.topology.importers.reading import number_list
from phalanx.core.topology.node import MigDevice, NodeTopology
from phalanx.core.topology.presets import preset
from phalanx_agent.equipping import Equipper
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.worker.node_view import NodeView
from tests.support.gang_configs import gang_config

HERE = number_list(sorted(os.sched_getaffinity(0)))


def machine() -> NodeTopology:
    node = preset("hgx_h100")
    return replace(node, gpus=tuple(replace(gpu, cpus=HERE) for gpu in node.gpus))


def config(*gpus: int, nodes: int = 1, simulated: bool = False, **own: str) -> GangConfig:
    members = tuple(
        Member(
            node_id=f"n{node}",
            first_rank=node * len(gpus),
            ranks=len(gpus),
            gpus=tuple(f"index-{each}" for each in gpus),
        )
        for node in range(nodes)
    )
    env = EnvSpec(variables=tuple(own.items()))
    function = FunctionSpec(name="f", resources=Resources(gpus=len(gpus) * nodes, nodes=nodes), env=env)
    return gang_config(function, *members, rendezvous="127.0.0.1:4000", simulated=simulated)


def equipped(folder: Path, gang: GangConfig, topology: NodeTopology | None) -> Equipment:
    return from_text(Equipper(folder).equip(gang, topology).equipment)


@contextlib.contextmanager
def agent_environment(**variables: str) -> Generator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_each_rank_gets_its_own_gpu_in_the_order_of_the_lease(tmp_path: Path) -> None:
    found = equipped(tmp_path, config(3, 0, nodes=2), machine())
    assert [rank.gpus for rank in found.ranks] == [("3",), ("0",)]
    assert [rank.ports for rank in found.ranks] == [("mlx5_3",), ("mlx5_0",)]
    assert [rank.cpus for rank in found.ranks] == [HERE, HERE]
    assert found.environment["NCCL_IB_HCA"] == "=mlx5_0,mlx5_3"
    assert found.environment["NCCL_SOCKET_IFNAME"] == "=lo"


def test_one_rank_with_several_gpus_gets_what_is_near_to_any_of_them(tmp_path: Path) -> None:
    gang = config(0, 1, nodes=2)
    members = tuple(replace(member, ranks=1, first_rank=at) for at, member in enumerate(gang.members))
    found = equipped(tmp_path, replace(gang, members=members, world_size=2), machine())
    assert [rank.gpus for rank in found.ranks] == [("0", "1")]
    assert found.ranks[0].ports == ("mlx5_0", "mlx5_1")


def test_the_function_wins_over_the_agents_environment_and_that_over_the_node(tmp_path: Path) -> None:
    gang = config(0, 1, nodes=2, NCCL_CROSS_NIC="2", OMP_NUM_THREADS="3")
    with agent_environment(NCCL_CROSS_NIC="1", NCCL_IB_HCA="=mlx5_7", NCCL_DEBUG="WARN"):
        found = equipped(tmp_path, gang, machine())
    set_here = found.environment
    assert (set_here["NCCL_CROSS_NIC"], set_here["NCCL_IB_HCA"], set_here["NCCL_DEBUG"]) == ("2", "=mlx5_7", "WARN")
    assert "OMP_NUM_THREADS" not in set_here
    whys = {each.name: each.why for each in found.variables}
    assert whys["NCCL_IB_HCA"].startswith("the agent's environment sets it; the node would have set =mlx5_0,mlx5_1")
    assert whys["NCCL_CROSS_NIC"].startswith("the function's env(vars=) sets it")


def test_a_numa_node_that_this_machine_does_not_have_is_not_preferred_and_says_so(tmp_path: Path) -> None:
    node = machine()
    far = replace(node, gpus=(replace(node.gpus[0], numa=(700,)), *node.gpus[1:]))
    (rank,) = equipped(tmp_path, config(0), far).ranks
    assert rank.memory_numa is None
    assert rank.memory_why.startswith("NUMA node 700 is not preferred: ")
    assert rank.cpus == HERE


def test_the_topology_is_written_once_for_every_user_to_read(tmp_path: Path) -> None:
    equipper, node = Equipper(tmp_path), machine()
    paths = {from_text(equipper.equip(config(0, 1), node).equipment).topology for _ in range(3)}
    (path,) = map(Path, paths)
    assert from_json(path.read_text()) == node
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    changed = replace(node, nics=(replace(node.nics[0], up=False), *node.nics[1:]))
    assert from_text(equipper.equip(config(0, 1), changed).equipment).topology not in paths
    assert sorted(file.suffix for file in path.parent.iterdir()) == [".json", ".json"]


@pytest.mark.parametrize(
    ("simulated", "sources", "pci", "written"),
    [
        (True, (), False, True),
        (False, (("links", "nvml"),), True, False),
        (False, (("links", "nccl_xml"),), True, True),
        (False, (("links", "nccl_xml"),), False, False),
    ],
)
def test_nccl_gets_a_file_where_it_cannot_see_the_topology_itself(
    tmp_path: Path, simulated: bool, sources: tuple[tuple[str, str], ...], pci: bool, written: bool
) -> None:
    node = replace(machine(), sources=sources)
    if pci:
        gpus = tuple(replace(gpu, pci=f"0000:{at:02x}:00.0") for at, gpu in enumerate(node.gpus))
        nics = tuple(replace(nic, pci=f"0001:{at:02x}:00.0") for at, nic in enumerate(node.nics))
        node = replace(node, gpus=gpus, nics=nics)
    file = equipped(tmp_path, config(0, 1, simulated=simulated), node).environment.get("NCCL_TOPO_FILE", "")
    assert bool(file) == written
    assert not file or len(read_nccl_xml(Path(file).read_text()).gpus) == 8


def test_a_node_of_which_nothing_is_known_still_gets_its_socket(tmp_path: Path) -> None:
    found = equipped(tmp_path, config(0, 1, nodes=2), None)
    assert found.environment == {"NCCL_SOCKET_IFNAME": "=lo", "GLOO_SOCKET_IFNAME": "lo"}
    assert found.topology == ""
    assert NodeView(found.topology, ("index-0",)).read() is None


def test_a_rank_on_a_part_of_a_gpu_sees_that_gpu(tmp_path: Path) -> None:
    node = machine()
    split = replace(node.gpus[2], mig_enabled=True, mig=(MigDevice(uuid="MIG-1", profile="1g.10gb"),))
    node = replace(node, gpus=(*node.gpus[:2], split, *node.gpus[3:]))
    gang = config(0)
    gang = replace(gang, members=(replace(gang.member, gpus=("MIG-1",)),))
    found = equipped(tmp_path, gang, node)
    assert found.ranks[0].gpus == ("2",)
    view = NodeView(found.topology, ("MIG-1",)).read()
    assert view is not None
    assert [gpu.index for gpu in view.gpus] == [2]


def test_a_topology_whose_file_has_gone_is_not_known(tmp_path: Path) -> None:
    assert NodeView(str(tmp_path / "gone.json"), ("index-0",)).read() is None


def test_gpus_of_which_nothing_is_known_are_named_by_their_uuids(tmp_path: Path) -> None:
    made = equipped(tmp_path, config(2, 5), None)
    assert [rank.gpus for rank in made.ranks] == [("index-2",), ("index-5",)]
