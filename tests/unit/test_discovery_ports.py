"""Network ports and where they hang, from folders that look like `/sys` on machines that people have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.core.topology.codec import from_json, to_json
from phalanx.core.topology.devices import training_nics
from phalanx.core.topology.importers.sysfs_infiniband import read_sysfs_infiniband
from phalanx.core.topology.node import LinkLayer, Nic, NicLink, NodeTopology
from phalanx.core.topology.node import Path as Crossing
from phalanx_agent.discovery.no_gpus import NoGpus
from phalanx_agent.discovery.pci import between, place_of
from phalanx_agent.discovery.ports import read_ports
from tests.support.sysfs import FakeSysfs, dgx_gpu, write
from tests.support.topologies import SAMPLES

SAMPLE = SAMPLES / "h100_sysfs_infiniband.txt"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def named(sysfs: FakeSysfs) -> dict[str, Nic]:
    return {nic.name: nic for nic in read_ports(sysfs.root).nics}


def test_a_dgx_has_eight_rails_a_management_port_and_a_bridge(sysfs: FakeSysfs) -> None:
    sysfs.dgx()
    found = named(sysfs)
    assert list(found) == [*(f"mlx5_{at}" for at in range(8)), "docker0", "eno1"]
    assert found["mlx5_5"] == Nic(
        name="mlx5_5",
        interface="ib5",
        pci="0000:63:00.0",
        numa=(1,),
        layer=LinkLayer.INFINIBAND,
        rate_gbit_s=400.0,
        up=True,
        virtual=False,
        guid="0000000000000006",
    )
    assert (found["eno1"].layer, found["eno1"].rate_gbit_s, found["eno1"].virtual) == (LinkLayer.ETHERNET, 1.0, False)
    assert (found["docker0"].virtual, found["docker0"].up) == (True, None)
    nics = read_ports(sysfs.root).nics
    assert [nics[at].name for at in training_nics(NodeTopology(nics=nics))] == [f"mlx5_{at}" for at in range(8)]


def test_each_gpu_of_a_dgx_is_one_switch_from_its_own_port(sysfs: FakeSysfs) -> None:
    sysfs.dgx()
    ports = read_ports(sysfs.root)
    for at in range(8):
        gpu = place_of(sysfs.root, dgx_gpu(at))
        row = [between(gpu, place) for place in ports.places[:8]]
        assert row[at] == NicLink(Crossing.PIX, 1)
        for other in set(range(8)) - {at}:
            assert row[other].path is (Crossing.PHB if at // 4 == other // 4 else Crossing.SYS)
    management = between(place_of(sysfs.root, dgx_gpu(0)), ports.places[-1])
    assert management == NicLink(Crossing.PHB, 1)


def test_paths_are_told_by_what_lies_between(sysfs: FakeSysfs) -> None:
    ways = {
        "0000:05:00.0": ("0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:05:00.0"),
        "0000:06:00.0": ("0000:00:01.0", "0000:01:00.0", "0000:02:01.0", "0000:06:00.0"),
        "0000:09:00.0": (
            "0000:00:01.0",
            "0000:01:00.0",
            "0000:02:02.0",
            "0000:07:00.0",
            "0000:08:00.0",
            "0000:09:00.0",
        ),
        "0000:0b:00.0": ("0000:00:02.0", "0000:0b:00.0"),
    }
    for way in ways.values():
        sysfs.pci(*way, numa=-1)
    sysfs.pci("0000:40:01.0", "0000:41:00.0", numa=0, root="pci0000:40")
    sysfs.pci("0000:60:01.0", "0000:61:00.0", numa=0, root="pci0000:60")
    sysfs.pci("0000:80:01.0", "0000:81:00.0", numa=1, root="pci0000:80")
    sysfs.pci("0000:a0:01.0", "0000:a1:00.0", numa=-1, root="pci0000:a0")

    def path(one: str, other: str, *, single_numa: bool = False) -> tuple[Crossing | None, int | None]:
        told = between(place_of(sysfs.root, one), place_of(sysfs.root, other), single_numa=single_numa)
        return told.path, told.bridges

    assert path("0000:05:00.0", "0000:06:00.0") == (Crossing.PIX, 1)
    assert path("0000:05:00.0", "0000:09:00.0") == (Crossing.PXB, 2)
    assert path("0000:05:00.0", "0000:0b:00.0") == (Crossing.PHB, 1)
    assert path("0000:41:00.0", "0000:61:00.0") == (Crossing.NODE, 0)
    assert path("0000:41:00.0", "0000:81:00.0") == (Crossing.SYS, 0)
    assert path("0000:41:00.0", "0000:a1:00.0")[0] is None
    assert path("0000:41:00.0", "0000:a1:00.0", single_numa=True)[0] is Crossing.NODE
    assert path("0000:41:00.0", "0000:ff:00.0") == (None, None)


def test_a_bond_of_two_roce_ports_counts_once(sysfs: FakeSysfs) -> None:
    first = sysfs.pci("0000:00:01.0", "0000:21:00.0")
    second = sysfs.pci("0000:00:01.0", "0000:21:00.1")
    for name, device in (("ens1f0np0", first), ("ens1f1np1", second)):
        sysfs.interface(name, device, speed="100000")
    sysfs.bond("bond0", "ens1f0np0", "ens1f1np1")
    sysfs.rdma("mlx5_bond_0", first, link_layer="Ethernet", rate="200 Gb/sec (2X NDR)")
    found = named(sysfs)
    bond = found["mlx5_bond_0"]
    assert (bond.interface, bond.bond, bond.virtual) == ("bond0", ("ens1f0np0", "ens1f1np1"), False)
    assert (bond.layer, bond.rate_gbit_s, bond.up) == (LinkLayer.ETHERNET, 200.0, True)
    assert "bond0" not in found
    assert [name for name, nic in found.items() if not nic.virtual] == ["mlx5_bond_0"]


def test_a_bond_without_rdma_stands_for_its_ports(sysfs: FakeSysfs) -> None:
    for at in range(2):
        sysfs.interface(f"eth{at}", sysfs.pci("0000:00:01.0", f"0000:21:00.{at}", numa=1), speed="25000")
    sysfs.bond("bond0", "eth0", "eth1", speed="50000")
    found = named(sysfs)
    assert [name for name, nic in found.items() if not nic.virtual] == ["bond0"]
    assert (found["bond0"].rate_gbit_s, found["bond0"].numa, found["bond0"].pci) == (50.0, (1,), "0000:21:00.0")


def test_a_bond_over_ports_that_rdma_uses_by_themselves_is_not_one_more(sysfs: FakeSysfs) -> None:
    for at in range(2):
        device = sysfs.pci("0000:00:01.0", f"0000:21:00.{at}")
        sysfs.interface(f"eth{at}", device, speed="100000")
        sysfs.rdma(f"mlx5_{at}", device, link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")
    sysfs.bond("bond0", "eth0", "eth1")
    assert [name for name, nic in named(sysfs).items() if not nic.virtual] == ["mlx5_0", "mlx5_1"]


def test_the_two_ports_of_one_card_are_two(sysfs: FakeSysfs) -> None:
    card = sysfs.pci("0000:00:01.0", "0000:21:00.0")
    sysfs.interface("eth0", card, dev_port="0")
    sysfs.interface("eth1", card, dev_port="1")
    sysfs.rdma("mlx4_0", card, port=1, link_layer="Ethernet", rate="40 Gb/sec (4X QDR)")
    sysfs.rdma("mlx4_0", card, port=2, link_layer="Ethernet", state="1: DOWN", phys_state="3: Disabled")
    found = named(sysfs)
    assert (found["mlx4_0"].interface, found["mlx4_0"].up) == ("eth0", True)
    assert (found["mlx4_0:2"].interface, found["mlx4_0:2"].up, found["mlx4_0:2"].rate_gbit_s) == ("eth1", False, None)


def test_efa_is_known_by_its_driver(sysfs: FakeSysfs) -> None:
    card = sysfs.pci("0000:00:01.0", "0000:21:00.0")
    driver = sysfs.root / "bus" / "pci" / "drivers" / "efa"
    driver.mkdir(parents=True)
    (card / "driver").symlink_to(driver)
    sysfs.rdma("rdmap33s0", card, link_layer="Unspecified", rate="100 Gb/sec (4X EDR)")
    sysfs.interface("ens5", sysfs.pci("0000:00:05.0"), speed="-1")
    found = named(sysfs)
    assert (found["rdmap33s0"].layer, found["rdmap33s0"].rate_gbit_s) == (LinkLayer.EFA, 100.0)
    assert (found["ens5"].layer, found["ens5"].rate_gbit_s, found["ens5"].virtual) == (LinkLayer.ETHERNET, None, False)


def test_virtual_functions_are_not_counted_beside_their_card_but_are_real_in_a_guest(sysfs: FakeSysfs) -> None:
    card = sysfs.pci("0000:00:01.0", "0000:21:00.0")
    function = sysfs.pci("0000:00:01.0", "0000:21:00.2")
    (function / "physfn").symlink_to(card)
    sysfs.interface("eth0", card)
    sysfs.interface("eth0v0", function)
    sysfs.rdma("mlx5_0", card, link_layer="Ethernet")
    sysfs.rdma("mlx5_2", function, link_layer="Ethernet")
    assert {name: nic.virtual for name, nic in named(sysfs).items()} == {"mlx5_0": False, "mlx5_2": True}


def test_a_virtio_port_of_a_guest_hangs_where_its_pci_device_does(sysfs: FakeSysfs) -> None:
    device = sysfs.pci("0000:00:03.0", numa=-1)
    (device / "virtio0").mkdir()
    sysfs.interface("eth0", device / "virtio0", speed="-1")
    assert (named(sysfs)["eth0"].pci, named(sysfs)["eth0"].numa) == ("0000:00:03.0", None)


def test_a_port_that_is_down_has_no_rate(sysfs: FakeSysfs) -> None:
    sysfs.dgx()
    port = sysfs.root / "class" / "infiniband" / "mlx5_2" / "ports" / "1"
    write(port, {"state": "1: DOWN", "phys_state": "2: Polling"})
    assert (named(sysfs)["mlx5_2"].up, named(sysfs)["mlx5_2"].rate_gbit_s) == (False, None)


def test_broken_entries_cost_their_own_facts_only(sysfs: FakeSysfs) -> None:
    card = sysfs.pci("0000:00:01.0", "0000:21:00.0")
    good = sysfs.pci("0000:00:01.0", "0000:22:00.0")
    ports = sysfs.rdma("mlx5_0", card, rate="fast", state="")
    (ports / "state").unlink()
    (ports / "phys_state").unlink()
    write(sysfs.root / "class" / "infiniband" / "mlx5_0", {"node_guid": "nonsense"})
    sysfs.rdma("mlx5_1", good)
    (sysfs.root / "class" / "infiniband" / "mlx5_9").symlink_to(sysfs.root / "nowhere")
    (sysfs.root / "class" / "net").mkdir()
    (sysfs.root / "class" / "net" / "bonding_masters").write_text("bond0\n")
    (sysfs.root / "class" / "net" / "gone0").symlink_to(sysfs.root / "nowhere")
    found = read_ports(sysfs.root)
    assert [(nic.name, nic.up, nic.rate_gbit_s, nic.guid) for nic in found.nics] == [
        ("mlx5_0", None, None, ""),
        ("mlx5_1", True, 400.0, ""),
    ]
    assert any("mlx5_9" in note for note in found.notes)
    assert any("mlx5_0 has no state" in note and "line" not in note for note in found.notes)


def test_a_machine_without_any_of_it_has_no_ports(tmp_path: Path) -> None:
    assert read_ports(tmp_path).nics == ()
    assert NoGpus(sysfs=tmp_path).topology() is None


def test_a_node_without_gpus_tells_its_ports_all_the_same(sysfs: FakeSysfs) -> None:
    sysfs.dgx()
    topology = NoGpus(sysfs=sysfs.root).topology()
    assert topology is not None
    assert (len(topology.nics), topology.nic_links) == (10, ())
    assert from_json(to_json(topology)) == topology


def test_this_machine_can_be_read() -> None:
    found = read_ports()
    assert len(found.nics) == len(found.places)
    assert len({nic.name for nic in found.nics}) == len(found.nics)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the folder of samples is not there")
def test_what_a_real_machine_shows_of_its_adapters_is_read_from_the_files_as_from_the_text(sysfs: FakeSysfs) -> None:
    text = SAMPLE.read_text()
    for line in text.splitlines():
        path, _, content = line.partition("\t")
        file = sysfs.root / path.removeprefix("/sys/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    assert read_ports(sysfs.root).nics == read_sysfs_infiniband(text).nics
    assert len(read_ports(sysfs.root).nics) == 9


LINES = st.text("abc019:. ,-_/\n", max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, min_size=8, max_size=8))
def test_whatever_the_files_hold_ports_are_read(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    sysfs = FakeSysfs(tmp_path_factory.mktemp("sys"))
    card = sysfs.pci("0000:00:01.0", "0000:21:00.0")
    sysfs.rdma("mlx5_0", card, state=texts[0], phys_state=texts[1], rate=texts[2], link_layer=texts[3], guid=texts[4])
    sysfs.interface("eth0", card, speed=texts[5], operstate=texts[6], type=texts[7], dev_port=texts[0])
    write(card, {"numa_node": texts[1]})
    found = NoGpus(sysfs=sysfs.root).topology()
    assert found is not None
    assert from_json(to_json(found)) == found
