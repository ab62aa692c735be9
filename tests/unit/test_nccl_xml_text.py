"""NCCL's topology file, written from a node: what the reader of such files gets back is the node again."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from phalanx.core.topology.figures import known_link
from phalanx.core.topology.importers.nccl_xml import read_nccl_xml
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.nccl_xml_text import nccl_xml_text
from phalanx.core.topology.node import Gpu, Link, LinkLayer, Nic, NicLink, NodeTopology, Path
from phalanx.core.topology.presets import preset
from tests.support.equipment_golden import preset_nodes, sample_nodes
from tests.support.topologies import PRINTED, needs_samples

SAMPLES = sample_nodes()


def folded(path: Path | None) -> Path | None:
    """NCCL does not tell NODE from PHB, and what is not known counts as far."""
    return Path.PHB if path is Path.NODE else path


def assert_is_the_same(node: NodeTopology) -> None:
    back = read_nccl_xml(nccl_xml_text(node))
    assert [gpu.index for gpu in back.gpus] == [gpu.index for gpu in node.gpus]
    for at, gpu in enumerate(node.gpus):
        assert back.gpus[at].cpus == gpu.cpus
        assert not gpu.numa or back.gpus[at].numa == (min(gpu.numa),)
        assert back.gpus[at].compute == gpu.compute
        assert not gpu.pci or back.gpus[at].pci == gpu.pci
    for i in range(len(node.gpus)):
        for j in range(i):
            ours, theirs = known_link(node, i, j), known_link(back, i, j)
            assert ours.path is None or folded(ours.path) is theirs.path, (i, j)
            assert (ours.nvlinks or 0, bool(ours.switched)) == (theirs.nvlinks or 0, bool(theirs.switched)), (i, j)
    assert_ports_are_the_same(node, back)


def assert_ports_are_the_same(node: NodeTopology, back: NodeTopology) -> None:
    places = {nic.name: at for at, nic in enumerate(back.nics)}
    assert len(back.nics) == len(node.nics)
    for k, nic in enumerate(node.nics):
        found = back.nics[places[nic.name]]
        assert (found.rate_gbit_s, found.rail, found.guid) == (nic.rate_gbit_s, nic.rail, nic.guid)
        for i, row in enumerate(node.nic_links):
            assert row[k].path is None or folded(row[k].path) is back.nic_links[i][places[nic.name]].path, (i, k)


@pytest.mark.parametrize("name", sorted(preset_nodes()))
def test_a_preset_comes_back(name: str) -> None:
    assert_is_the_same(preset(name))


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_what_a_tool_printed_comes_back(name: str) -> None:
    assert_is_the_same(read_topo_text(PRINTED[name]().text()))


@needs_samples
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_sample_comes_back(name: str) -> None:
    assert_is_the_same(SAMPLES[name])


def test_a_deep_tree_comes_back() -> None:
    """Two switches below one host bridge on each of two sockets: one GPU and one port below each switch."""

    def path(i: int, k: int) -> Path:
        return Path.PIX if i == k else Path.PXB if i // 2 == k // 2 else Path.SYS

    node = NodeTopology(
        gpus=tuple(Gpu(uuid=f"GPU-{at}", index=at, pci=f"0000:{at + 1}1:00.0", numa=(at // 2,)) for at in range(4)),
        links=tuple(tuple(Link(0, path(i, j)) for j in range(4)) for i in range(4)),
        nics=tuple(Nic(name=f"mlx5_{at}", layer=LinkLayer.INFINIBAND, guid=f"{at + 1:016x}") for at in range(4)),
        nic_links=tuple(tuple(NicLink(path(i, k)) for k in range(4)) for i in range(4)),
    )
    assert_is_the_same(node)
    assert read_nccl_xml(nccl_xml_text(node)).nic_links[0][1].bridges == 3


def test_whether_gpudirect_works_comes_back() -> None:
    node = preset("hgx_h100")
    for works in (True, False):
        rows = tuple(tuple(replace(link, gpudirect=works) for link in row) for row in node.nic_links)
        back = read_nccl_xml(nccl_xml_text(replace(node, nic_links=rows)))
        assert {link.gpudirect for row in back.nic_links for link in row} == {works}


def test_names_are_written_so_that_xml_stays_xml() -> None:
    node = preset("hgx_h100")
    odd = replace(node, nics=(replace(node.nics[0], name='a"<&>b'), *node.nics[1:]))
    assert read_nccl_xml(nccl_xml_text(odd)).nics[0].name == 'a"<&>b'


def test_a_node_without_anything_is_a_file_without_anything() -> None:
    assert read_nccl_xml(nccl_xml_text(NodeTopology())).gpus == ()


def test_made_up_addresses_are_addresses_however_many_ports_there_are() -> None:
    node = NodeTopology(nics=tuple(Nic(name=f"eth{at}") for at in range(600)))
    told = re.findall(r'busid="([^"]*)"', nccl_xml_text(node))
    assert len(set(told)) == 600
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", each) for each in told)
