"""NCCL's variables from facts: golden files, what holds on every machine, and what one lost port changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.topology.equipment import Variable, with_own
from phalanx.core.topology.importers.nccl_xml import read_nccl_xml
from phalanx.core.topology.nccl_env import GangOnNode, Network, given, network_of
from phalanx.core.topology.nccl_xml_text import nccl_xml_text
from phalanx.core.topology.nearest_ports import has_device_name, usable_ports
from phalanx.core.topology.node import LinkLayer, Nic, NicLink, NodeTopology, Path
from phalanx.core.topology.presets import preset
from tests.support.equipment_golden import GOLDEN, INTERFACE, gang_on, golden_text, preset_nodes, sample_nodes, sizes_of
from tests.support.topologies import needs_samples

SAMPLES = sample_nodes()
EVERYWHERE = {**preset_nodes(), **SAMPLES}
FAST, SLOW = 400.0, 25.0


def value(found: Network, name: str) -> str:
    return next((each.value for each in found.variables if each.name == name), "")


def why(found: Network, name: str) -> str:
    return next(each.why for each in found.variables if each.name == name)


def ports(gang: GangOnNode) -> list[list[str]]:
    assert gang.node is not None
    return [[gang.node.nics[at].name for at in near.ports] for near in network_of(gang).near]


def with_nic(node: NodeTopology, nic: Nic, path: Path | None = Path.PIX) -> NodeTopology:
    """One more port, as near to every GPU."""
    rows = tuple((*row, NicLink(path)) for row in node.nic_links)
    return replace(node, nics=(*node.nics, nic), nic_links=rows)


def changed(node: NodeTopology, at: int, **facts: object) -> NodeTopology:
    nics = tuple(replace(nic, **facts) if each == at else nic for each, nic in enumerate(node.nics))  # pyright: ignore[reportArgumentType]
    return replace(node, nics=nics)


@pytest.mark.parametrize("name", sorted(preset_nodes()))
def test_ranks_on_a_preset_get_what_its_golden_file_says(name: str) -> None:
    assert golden_text(preset(name)) == (GOLDEN / f"{name}.txt").read_text()


@needs_samples
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_ranks_on_a_sample_get_what_its_golden_file_says(name: str) -> None:
    assert golden_text(SAMPLES[name]) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_each_ranks_ports_are_real_up_and_the_nearest_of_those_that_can_be_used(name: str) -> None:
    node = EVERYWHERE[name]
    usable = set(usable_ports(node).usable)
    for size in sizes_of(node):
        gang = gang_on(node, size)
        for (gpu,), near in zip(gang.gpus, network_of(gang).near, strict=True):
            assert bool(near.ports) == bool(usable)
            assert set(near.ports) <= usable
            paths = {at: path for at in usable if (path := node.nic_links[gpu][at].path)}
            nearest = min((path.distance for path in paths.values()), default=None)
            assert nearest is None or {at for at, path in paths.items() if path.distance == nearest} == set(near.ports)
            for nic in (node.nics[at] for at in near.ports):
                assert nic.up is not False
                assert not nic.virtual


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_what_nccl_is_told_names_exactly_the_ports_of_the_ranks(name: str) -> None:
    node = EVERYWHERE[name]
    for size in sizes_of(node):
        found = network_of(gang_on(node, size))
        used = {node.nics[at].name for near in found.near for at in near.ports}
        told = value(found, "NCCL_IB_HCA")
        if told:
            assert told[0] == "="
            assert set(told[1:].split(",")) == used
        else:
            efa = any(nic.layer is LinkLayer.EFA for nic in node.nics)
            labels = any(not has_device_name(nic) for nic in node.nics)
            assert efa or labels or value(found, "NCCL_IB_DISABLE") == "1"


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_every_variable_has_a_reason_and_the_socket_is_the_rendezvous_interface(name: str) -> None:
    node = EVERYWHERE[name]
    for size in sizes_of(node):
        found = network_of(gang_on(node, size))
        assert value(found, "NCCL_SOCKET_IFNAME") == f"={INTERFACE}"
        assert value(found, "GLOO_SOCKET_IFNAME") == INTERFACE
        assert all(each.why for each in found.variables)
        assert len({each.name for each in found.variables}) == len(found.variables)


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_taking_one_port_down_changes_the_ranks_that_used_it_and_no_others(name: str) -> None:
    node = EVERYWHERE[name]
    gang = gang_on(node, len(node.gpus))
    before = network_of(gang)
    for at, nic in enumerate(node.nics):
        after = network_of(replace(gang, node=changed(node, at, up=False)))
        for old, new in zip(before.near, after.near, strict=True):
            if at not in old.ports:
                assert new.ports == old.ports
            else:
                assert at not in new.ports
                assert f"not {nic.name}: down" in new.why or new.why == "no usable port"
        if not any(at in near.ports for near in before.near):
            assert value(after, "NCCL_IB_HCA") == value(before, "NCCL_IB_HCA")


def test_a_rank_whose_port_is_down_takes_the_next_near_ones_and_says_why() -> None:
    node = changed(preset("hgx_h100"), 3, up=False)
    found = network_of(gang_on(node, 8))
    assert ports(gang_on(node, 8))[3] == ["mlx5_0", "mlx5_1", "mlx5_2"]
    assert found.near[3].why == "on the same NUMA node, all as near; not mlx5_3: down"
    assert value(found, "NCCL_IB_HCA") == "=mlx5_0,mlx5_1,mlx5_2,mlx5_4,mlx5_5,mlx5_6,mlx5_7"


@pytest.mark.parametrize(
    ("nic", "reason"),
    [
        (Nic(name="eno1", layer=LinkLayer.ETHERNET, rate_gbit_s=FAST, up=True), "Ethernet without RDMA"),
        (Nic(name="mlx5_8", layer=LinkLayer.ETHERNET, rate_gbit_s=FAST, up=True), "Ethernet on a node with InfiniBand"),
        (Nic(name="mlx5_8", layer=LinkLayer.INFINIBAND, rate_gbit_s=SLOW, up=True), "25 Gb/s where others have 400"),
        (Nic(name="veth1", virtual=True), "virtual"),
    ],
)
def test_the_management_port_is_not_used_however_near_it_is(nic: Nic, reason: str) -> None:
    gang = gang_on(with_nic(preset("hgx_h100"), nic), 8)
    found = network_of(gang)
    assert ports(gang) == [[f"mlx5_{at}"] for at in range(8)]
    assert all(near.why.endswith(f"; not {nic.name}: {reason}") for near in found.near)
    assert nic.name not in value(found, "NCCL_IB_HCA").removeprefix("=").split(",")


def test_a_bond_counts_once() -> None:
    members = tuple(Nic(name=f"mlx5_{at}", layer=LinkLayer.ETHERNET, rate_gbit_s=100, up=True) for at in (0, 1))
    bond = Nic(name="mlx5_bond_0", layer=LinkLayer.ETHERNET, rate_gbit_s=200, up=True, bond=("mlx5_0", "mlx5_1"))
    node = replace(preset("hgx_h100"), nics=(), nic_links=tuple(() for _ in range(8)))
    for nic in (*members, bond):
        node = with_nic(node, nic)
    found = network_of(gang_on(node, 8))
    assert value(found, "NCCL_IB_HCA") == "=mlx5_bond_0"
    assert "not mlx5_0: a part of mlx5_bond_0" in found.near[0].why


def test_one_port_of_a_card_with_two_is_named_with_its_number() -> None:
    second = Nic(name="mlx5_0:2", layer=LinkLayer.INFINIBAND, rate_gbit_s=FAST, up=True)
    found = network_of(gang_on(with_nic(preset("hgx_h100"), second, Path.SYS), 2))
    assert value(found, "NCCL_IB_HCA") == "=mlx5_0:1,mlx5_1"


def test_a_gang_of_one_node_gets_the_socket_and_nothing_of_ports() -> None:
    found = network_of(gang_on(preset("hgx_h100"), 8, nodes=1, interface="lo"))
    assert {each.name for each in found.variables if each.value} == {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}
    assert found.near == ()


def test_a_gang_of_one_rank_gets_nothing() -> None:
    assert network_of(gang_on(preset("hgx_h100"), 1, nodes=1)) == Network(())


def test_rails_that_are_not_known_or_not_distinct_are_left_to_nccl() -> None:
    node = preset("hgx_h100")
    assert value(network_of(gang_on(node, 8)), "NCCL_CROSS_NIC") == "0"
    for rail, reason in ((None, "not known"), (1, "on one rail")):
        found = network_of(gang_on(changed(node, 0, rail=rail), 8))
        assert value(found, "NCCL_CROSS_NIC") == ""
        assert reason in why(found, "NCCL_CROSS_NIC")


def test_a_node_whose_ports_nobody_knows_is_left_to_nccl() -> None:
    node = replace(preset("hgx_h100"), nics=(), nic_links=())
    assert value(network_of(gang_on(node, 8)), "NCCL_IB_DISABLE") == ""


@pytest.mark.parametrize(
    ("path", "nvlinks", "expected"),
    [
        (Path.SYS, 0, ("NCCL_P2P_LEVEL", "PXB")),
        (Path.PXB, 0, ("NCCL_P2P_LEVEL", "PIX")),
        (Path.PIX, 0, ("NCCL_P2P_LEVEL", "NVL")),
        (Path.PIX, 4, ("NCCL_P2P_DISABLE", "1")),
        (None, 0, ("NCCL_P2P_DISABLE", "1")),
    ],
)
def test_a_pair_that_copies_wrongly_is_left_out_of_peer_traffic(
    path: Path | None, nvlinks: int, expected: tuple[str, str]
) -> None:
    node = preset("pcie_l4")
    rows = [list(row) for row in node.links]
    rows[5][2] = replace(rows[5][2], copies=False, path=path, nvlinks=nvlinks)
    rows[2][5] = replace(rows[2][5], path=path, nvlinks=nvlinks)
    node = replace(node, links=tuple(map(tuple, rows)))
    gang = GangOnNode(node=node, gpus=((2,), (5,)), ranks=2, interface="lo", address="127.0.0.1:1")
    found = network_of(gang)
    assert value(found, expected[0]) == expected[1]
    assert "between GPU 2 and 5 came out wrong" in why(found, expected[0])
    assert not any("P2P" in each.name for each in network_of(replace(gang, gpus=((2,), (3,)))).variables)


def test_gpudirect_that_works_nowhere_is_not_tried() -> None:
    node = preset("hgx_h100")
    none = tuple(tuple(replace(link, gpudirect=False) for link in row) for row in node.nic_links)
    assert value(network_of(gang_on(replace(node, nic_links=none), 8)), "NCCL_NET_GDR_LEVEL") == "LOC"
    some = (node.nic_links[0], *none[1:])
    assert value(network_of(gang_on(replace(node, nic_links=some), 8)), "NCCL_NET_GDR_LEVEL") == ""


def test_ports_whose_way_to_the_gpus_nobody_knows_are_used_all_the_same() -> None:
    found = network_of(gang_on(replace(preset("hgx_h100"), nic_links=()), 8))
    assert value(found, "NCCL_IB_HCA").startswith("=mlx5_0,")
    assert {near.why for near in found.near} == {"all usable ports: nothing says which is nearest"}


def test_the_port_that_has_a_label_for_a_name_is_the_one_that_is_named() -> None:
    found = network_of(gang_on(changed(preset("hgx_h100"), 5, name="NIC5"), 8))
    assert why(found, "NCCL_IB_HCA") == "left to NCCL: NIC5 is a label, not the name of a device"


@pytest.mark.parametrize("name", ["mlx5_0,mlx5_9", "^mlx5_0", "mlx5_0\0", "mlx5_0\n", "", "x" * 64])
def test_a_name_that_would_be_another_in_a_list_or_no_variable_at_all_is_left_out(name: str) -> None:
    node = with_nic(
        replace(preset("dgx_h100"), nics=(), nic_links=((),) * 8), Nic(name=name, rate_gbit_s=FAST, up=True)
    )
    found = network_of(gang_on(node, 8))
    assert value(found, "NCCL_IB_HCA") == ""
    assert repr(name)[1:-1] in why(found, "NCCL_IB_HCA")
    assert len(read_nccl_xml(nccl_xml_text(node)).nics) == 1


def test_a_topology_that_nccl_cannot_see_is_given_as_a_file() -> None:
    gang = replace(gang_on(preset("hgx_h100"), 8), nccl_file="/run/t.xml")
    assert value(network_of(gang), "NCCL_TOPO_FILE") == "/run/t.xml"
    assert not given(NodeTopology(sources=(("links", "nvml"),)))
    assert given(NodeTopology(sources=(("gpus", "nvml"), ("links", "nccl_xml"))))


def test_what_the_function_sets_itself_wins_and_says_so() -> None:
    found = network_of(gang_on(preset("hgx_h100"), 8)).variables
    own = {"NCCL_IB_HCA": "mlx5_7", "NCCL_DEBUG": "INFO"}
    merged = {each.name: each for each in with_own(found, own, "the function's env")}
    assert merged["NCCL_IB_HCA"].value == "mlx5_7"
    assert merged["NCCL_IB_HCA"].why.startswith("the function's env sets it; the node would have set =mlx5_0,")
    assert merged["NCCL_DEBUG"] == Variable("NCCL_DEBUG", "INFO", "the function's env sets it")
    assert merged["NCCL_CROSS_NIC"].value == "0"
