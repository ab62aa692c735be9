"""What connects GPUs, through the real nvidia-ml-py: meshes, switches, and GPUs that say little or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.topology.codec import from_json, to_json
from phalanx.core.topology.node import Health, Link
from phalanx.core.topology.node import Path as Crossing
from phalanx_agent.discovery.links import read_topology
from phalanx_agent.discovery.nvml import NvmlGpus
from tests.gpu.conftest import FakeMachine

pytestmark = pytest.mark.gpu

SWITCH, PEER = 2, 0


def gpus(count: int, *, lost: int = -1) -> list[str]:
    return [f"GPU-{i} H100 81559 4 - {'lost' if i == lost else 'ok'}" for i in range(count)]


def bus(index: int) -> str:
    return f"00000000:{16 + index:02X}:00.0"


def place(index: int, *, compute: str = "9 0", gen: int = 5) -> str:
    return f"gpu {index} {bus(index)} {gen} {compute} {index + 1}"


def test_a_mesh_counts_links_by_peer(fake_machine: FakeMachine) -> None:
    fake_machine.describe(*gpus(3))
    fake_machine.connect(
        *(place(i, compute="7 0", gen=3) for i in range(3)),
        "path 0 1 10",
        "path 0 2 50",
        "path 1 2 50",
        f"link 0 0 1 {PEER} {bus(1)}",
        f"link 0 1 1 {PEER} {bus(1)}",
        f"link 0 2 1 {PEER} {bus(2)}",
        f"link 1 0 1 {PEER} {bus(0)}",
        f"link 1 1 1 {PEER} {bus(0)}",
        f"link 2 0 1 {PEER} {bus(0)}",
        f"link 2 1 0 {PEER} {bus(1)}",
    )
    topology = NvmlGpus().topology()
    assert topology is not None
    assert topology.links[0][1] == topology.links[1][0] == Link(nvlinks=2, path=Crossing.PIX, switched=False)
    assert topology.links[0][2] == Link(nvlinks=1, path=Crossing.SYS, switched=False)
    assert topology.links[1][2] == Link(nvlinks=0, path=Crossing.SYS)
    assert topology.links[0][0] == Link()
    assert [(g.nvlinks_active, g.nvlinks_total) for g in topology.gpus] == [(3, 3), (2, 2), (1, 2)]
    assert [(g.pci, g.compute, g.module_id) for g in topology.gpus[:1]] == [("0000:10:00.0", 70, 1)]
    assert topology.pcie_gen == 3
    assert from_json(to_json(topology)) == topology


def test_links_that_end_at_a_switch_join_all_that_have_some(fake_machine: FakeMachine) -> None:
    fake_machine.describe(*gpus(3))
    links = [f"link {i} {n} 1 {SWITCH} 00000000:C0:00.0" for i in range(2) for n in range(18 - i)]
    fake_machine.connect(*(place(i) for i in range(3)), "path 0 1 40", "path 0 2 40", "path 1 2 40", *links)
    topology = NvmlGpus().topology()
    assert topology is not None
    assert topology.links[0][1] == Link(nvlinks=17, path=Crossing.NODE, switched=True)
    assert topology.links[0][2] == Link(nvlinks=0, path=Crossing.NODE, switched=None)
    assert topology.gpus[2].nvlinks_active == 0


def test_a_lost_gpu_fails_no_other(fake_machine: FakeMachine) -> None:
    fake_machine.describe(*gpus(2))
    source = NvmlGpus()
    source.gpus()
    fake_machine.describe(*gpus(2, lost=0))
    fake_machine.connect(place(0), place(1), "path 0 1 10")
    topology = source.topology()
    assert topology is not None
    lost, well = topology.gpus
    assert (lost.uuid, lost.health, well.uuid, well.health) == ("GPU-0", Health.LOST, "GPU-1", Health.OK)
    assert lost.reason
    assert topology.links[0][1] == Link()


def test_what_a_driver_does_not_tell_is_unknown(fake_machine: FakeMachine) -> None:
    fake_machine.describe(*gpus(2))
    topology = NvmlGpus().topology()
    assert topology is not None
    gpu = topology.gpus[0]
    assert (gpu.pci, gpu.compute, gpu.numa, gpu.cpus) == ("", None, None, None)
    assert (gpu.module_id, gpu.mig_enabled) == (None, None)
    assert topology.links[0][1] == Link(nvlinks=0)
    assert topology.pcie_gen is None


def test_numa_and_cpus_come_from_sysfs(fake_machine: FakeMachine, tmp_path: Path) -> None:
    fake_machine.describe(*gpus(3))
    fake_machine.connect(*(place(i) for i in range(3)))
    for index, (node, cpus) in enumerate([("1", "32-63"), ("-1", "")]):
        device = tmp_path / "bus" / "pci" / "devices" / f"0000:{16 + index:02x}:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        (device / "local_cpulist").write_text(f"{cpus}\n")
    topology = read_topology(NvmlGpus().gpus(), sysfs=tmp_path)
    assert [(g.numa, g.cpus) for g in topology.gpus] == [((1,), "32-63"), (None, None), (None, None)]
