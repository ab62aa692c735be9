"""Reading NCCL's topology XML: the samples' answers, nodes of our own, and what no file may do to the reader."""

from __future__ import annotations

import re
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.nccl_tree import MAX_DEPTH, MAX_ELEMENTS
from phalanx.core.topology.importers.nccl_xml import MAX_GPUS, MAX_NICS, read_nccl_xml
from phalanx.core.topology.node import Link, LinkLayer, NicLink, NodeTopology, Path
from tests.support.nccl_files import (
    bridge,
    bridged_node,
    cpu,
    element,
    gpu,
    hint_file,
    net,
    nvlink,
    port,
    switched_node,
    system,
    to_switches,
)
from tests.support.topologies import SAMPLES, needs_samples, sample
from tests.support.topology_answers import answers_of, check, pairs, word_of

NAMES = sorted(path.name.removesuffix(".xml") for path in SAMPLES.glob("*.nccl.xml"))
OURS = {"switched": switched_node(), "bridged": bridged_node(), "hints": hint_file()}


@needs_samples
@pytest.mark.parametrize("name", NAMES)
def test_every_answer_of_a_sample_is_found(name: str) -> None:
    answers = answers_of(f"{name}.md")
    node = read_nccl_xml(sample(f"{name}.xml"))
    assert {"gpus", "nics", "gpu pair classes", "nvlink", "numa of each gpu"} <= answers.keys()
    for key, answer in answers.items():
        check_answer(node, key, answer)


@needs_samples
def test_all_samples_are_there() -> None:
    assert len(NAMES) == 7


def check_answer(node: NodeTopology, key: str, answer: str) -> None:
    if key.startswith("gpu numbering here"):
        assert [f"GPU{card.index}={card.pci}" for card in node.gpus] == re.findall(r"GPU\d+=\S+", answer)
    elif key.startswith("fewest pci bridges from GPU"):
        links = node.nic_links[int(key.removeprefix("fewest pci bridges from GPU"))]
        least = min(link.bridges for link in links if link.bridges is not None)
        found = [node.nics[at].name for at, link in enumerate(links) if link.bridges == least]
        assert f"{least} to {','.join(found)}" == answer
    elif key == "link count total per gpu from the file":
        assert answer == " ".join(f"GPU{card.index}={card.nvlinks_active}" for card in node.gpus)
    elif key.startswith("missing or zero link width/speed"):
        assert node.pcie_gen == (4 if len(node.gpus) == 4 else 5)
    elif key == "numa of each gpu" and not answer:
        assert node.gpus == ()
    elif key != "path classes in this file":
        check(node, key, answer)


@needs_samples
def test_the_generation_is_the_files_own_even_where_a_cloud_states_less_than_the_card_has() -> None:
    stated = {name: read_nccl_xml(sample(f"{name}.xml")).pcie_gen for name in NAMES}
    modelled = {name: re.search(r"PCIe gen(\d)", sample(f"{name}.md")) for name in NAMES}
    differing = {name for name, match in modelled.items() if match and stated[name] != int(match[1])}
    # One states 8 GT/s for cards of the fourth generation, the other has no card to tell it by.
    assert differing == {"aws_p4d_24xl.nccl", "aws_g5_48xl.nccl"}


@needs_samples
def test_devices_that_nothing_is_said_of_are_counted_and_are_no_gpus() -> None:
    node = read_nccl_xml(sample("aws_g5_48xl.nccl.xml"))
    assert (node.gpus, node.nics) == ((), ())
    assert re.match(r"9 devices have no PCI class \(4 on NUMA 0, 5 on NUMA 1\)", node.notes[0])


@needs_samples
def test_bridges_and_pairs_of_virtual_ethernet_are_virtual_and_cards_are_not() -> None:
    nics = read_nccl_xml(sample("x4_a6000_no_nvlink_veth.nccl.xml")).nics
    assert [nic.name for nic in nics if not nic.virtual] == ["eno1np0", "eno2np1"]
    assert {nic.rate_gbit_s for nic in nics if not nic.virtual} == {1.0}


@needs_samples
def test_layers_are_told_by_pci_class() -> None:
    layers = {name: {nic.layer for nic in read_nccl_xml(sample(f"{name}.xml")).nics} for name in NAMES}
    assert layers["aws_p4d_24xl.nccl"] == {LinkLayer.EFA}
    assert layers["azure_ndv4.nccl"] == layers["rccl_mi300x.nccl"] == {LinkLayer.INFINIBAND}
    assert layers["ibm_gx3d_h100.nccl"] == layers["azure_ncv4.nccl"] == {LinkLayer.ETHERNET}


def test_a_switched_node_has_as_many_links_between_any_two_as_each_has() -> None:
    node = read_nccl_xml(switched_node())
    assert {(node.links[i][j].nvlinks, node.links[i][j].switched) for i, j in pairs(node)} == {(10, True)}
    assert [card.nvlinks_active for card in node.gpus] == [10] * 4
    assert node.links[0][1].path is Path.PHB
    assert node.links[0][2].path is Path.SYS


def test_nics_are_found_by_place_not_by_number() -> None:
    node = read_nccl_xml(switched_node())
    nearest = [
        min(zip(node.nics, row, strict=True), key=lambda pair: pair[1].bridges or 0)[0].name for row in node.nic_links
    ]
    assert nearest == ["mlx5_3", "mlx5_2", "mlx5_1", "mlx5_0"]
    assert node.nic_links[0][0] == NicLink(Path.PIX, 1, True)


def test_facts_of_a_gpu_come_from_its_socket_and_its_element() -> None:
    first, *_, last = read_nccl_xml(switched_node()).gpus
    assert (first.uuid, first.pci, first.index) == ("pci-0000:12:00.0", "0000:12:00.0", 0)
    assert (first.numa, first.cpus, first.compute) == ((0,), "0-15", 90)
    assert (last.numa, last.cpus) == ((1,), "16-31")


def test_bridged_pairs_that_are_not_neighbours_are_found() -> None:
    node = read_nccl_xml(bridged_node())
    assert [(i, j) for i, j in pairs(node) if node.links[i][j].nvlinks] == [(0, 2), (1, 3)]
    assert node.links[0][2] == Link(4, Path.SYS, False)
    assert node.links[0][1] == Link(0, Path.PXB, None)


def test_paths_to_nics_count_the_bridges_crossed() -> None:
    node = read_nccl_xml(bridged_node())
    assert [nic.name for nic in node.nics] == ["mlx5_0", "eno1", "veth12ab"]
    assert [row[0] for row in node.nic_links[:3]] == [
        NicLink(Path.PXB, 3, True),
        NicLink(Path.PIX, 1, True),
        NicLink(Path.SYS, 2, True),
    ]
    assert node.nic_links[0][1] == NicLink(Path.PHB, None, False)
    assert [nic.virtual for nic in node.nics] == [False, False, True]


def test_a_file_without_gpu_elements_is_read_by_pci_class_in_order_of_address() -> None:
    node = read_nccl_xml(hint_file())
    assert [(card.index, card.pci, card.numa) for card in node.gpus] == [
        (0, "0001:00:00.0", (3,)),
        (1, "0002:00:00.0", (3,)),
    ]
    assert node.links[0][1] == Link(None, Path.PIX, None)
    assert [(nic.name, nic.layer) for nic in node.nics] == [
        ("0102:00:00.0", LinkLayer.INFINIBAND),
        ("0101:00:00.0", LinkLayer.ETHERNET),
    ]
    assert node.notes == ("1 devices have no PCI class (1 on NUMA 1): nothing says which of them are GPUs",)


def test_links_that_end_at_the_gpu_itself_are_no_links_to_a_peer() -> None:
    node = read_nccl_xml(
        system(cpu(0, *(gpu(f"000{at}:00:00.0", at, nvlink(f"000{at}:00:00.0", 12)) for at in (0, 1))))
    )
    assert node.links[0][1] == Link(None, Path.PHB, None)
    assert [card.nvlinks_active for card in node.gpus] == [12, 12]
    assert node.notes == ("NVLinks of GPU 0, 1 lead to no other GPU and no switch in the file: not counted",)


def test_xgmi_links_count_as_nvlinks_and_a_count_of_compute_units_is_no_capability() -> None:
    def card(at: int) -> str:
        link = element("xgmi", target=f"0000:0{1 - at}:00.0", count=1, tclass="0x120000")
        chip = element("gpu", link, dev=at, sm=304, gcn="gfx942")
        return element("pci", chip, busid=f"0000:0{at}:00.0", class_="0x120000")

    node = read_nccl_xml(system(cpu(0, card(0), card(1))))
    assert node.links[0][1] == Link(1, Path.PHB, False)
    assert [(each.compute, each.model) for each in node.gpus] == [(None, "gfx942")] * 2


def test_switches_that_two_gpus_do_not_share_do_not_join_them() -> None:
    near, far = to_switches([("0000:05:00.0", 6)]), to_switches([("0000:06:00.0", 6)])
    cards = [gpu("0000:10:00.0", 0, *near), gpu("0000:11:00.0", 1, *near), gpu("0000:12:00.0", 2, *far)]
    node = read_nccl_xml(system(cpu(0, *cards)))
    assert [node.links[0][at].nvlinks for at in (1, 2)] == [6, 0]


def test_an_unknown_numa_node_is_not_zero() -> None:
    assert [card.numa for card in read_nccl_xml(system(cpu(-1, gpu("0000:10:00.0", 0)))).gpus] == [None]
    assert [card.numa for card in read_nccl_xml(system(cpu("", gpu("0000:10:00.0", 0)))).gpus] == [None]


@pytest.mark.parametrize(
    ("speed", "sm", "generation"),
    [
        ("", 70, 3),
        ("", 80, 4),
        ("", 90, 5),
        ("16 GT/s", 90, 4),
        ("8.0 GT/s PCIe", 86, 3),
        ("fast", 86, 4),
        ("64 GT/s", 100, 6),
    ],
)
def test_where_no_speed_is_stated_the_chip_tells_the_generation(speed: str, sm: int, generation: int) -> None:
    assert read_nccl_xml(system(cpu(0, gpu("0000:10:00.0", 0, speed=speed, sm=sm)))).pcie_gen == generation


def test_the_index_is_what_the_file_says_unless_two_are_the_same() -> None:
    apart = read_nccl_xml(system(cpu(0, gpu("0000:11:00.0", 5), gpu("0000:10:00.0", 7))))
    assert [(card.index, card.pci) for card in apart.gpus] == [(5, "0000:11:00.0"), (7, "0000:10:00.0")]
    same = read_nccl_xml(system(cpu(0, gpu("0000:11:00.0", 5), gpu("0000:10:00.0", 5))))
    assert [(card.index, card.pci) for card in same.gpus] == [(0, "0000:10:00.0"), (1, "0000:11:00.0")]


def test_gpus_without_an_address_of_their_own_are_told_apart_and_noted() -> None:
    node = read_nccl_xml(system(cpu(0, gpu("0000:11:00.0", 0), gpu("0000:11:00.0", 1), gpu("?", 2), gpu("?", 3))))
    assert [card.uuid for card in node.gpus] == ["pci-0000:11:00.0", "pci-0000:11:00.0#2", "pci-#1", "pci-#2"]
    assert len(node.notes) == 3


def test_two_ports_of_one_device_have_names_of_their_own() -> None:
    ports = [port("0000:23:00.0", "mlx5_0"), port("0000:23:00.1", "mlx5_0", port=2), port("0000:24:00.0", "mlx5_0")]
    nics = read_nccl_xml(system(cpu(0, *ports, element("nic", net(""))))).nics
    assert [nic.name for nic in nics] == ["mlx5_0", "mlx5_0:2", "mlx5_0:1", "nic"]


def test_facts_of_a_port_that_cannot_be_read_are_unknown() -> None:
    odd = port("0000:23:00.0", "mlx5_0", "0x028000", speed="fast", guid="?", gdr="maybe", rail=2)
    node = read_nccl_xml(system(cpu(0, odd, gpu("0000:10:00.0", 0), element("nic", net("mlx5_9", speed=-1)))))
    odd_nic, lost = node.nics
    assert (odd_nic.layer, odd_nic.rate_gbit_s, odd_nic.guid, odd_nic.rail) == (None, None, "", 2)
    assert (lost.layer, lost.rate_gbit_s, lost.guid) == (None, None, "0000000000000001")
    assert node.nic_links[0][0].gpudirect is None


def test_of_files_that_several_hosts_were_merged_into_the_first_is_read() -> None:
    cpus = [cpu(0, gpu(f"0000:1{at}:00.0", at), host_hash=hex(at)) for at in (1, 2)]
    node = read_nccl_xml(system(*cpus))
    assert [card.pci for card in node.gpus] == ["0000:11:00.0"]
    assert node.notes == ("the file merges 2 hosts: only the first is read",)


def test_a_card_of_another_kind_is_no_gpu() -> None:
    kinds = {"0x030000": "0x1a03", "0x120000": "0x8086", "0x010802": "0x144d"}
    inside = [
        element("pci", busid=f"0000:0{at}:00.0", class_=kind, vendor=of) for at, (kind, of) in enumerate(kinds.items())
    ]
    assert read_nccl_xml(system(cpu(0, *inside, gpu("0000:10:00.0", 0)))).gpus[0].pci == "0000:10:00.0"
    assert len(read_nccl_xml(system(cpu(0, *inside))).gpus) == 0


BOMB = '<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]><system>&b;</system>'


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (BOMB, 1, "a document type (system) is declared: expected none"),
        ('\n<!DOCTYPE system SYSTEM "file:///etc/passwd">\n<system/>', 2, "document type"),
        ("<system>&b;</system>", 1, "not well-formed XML"),
        ("", 1, "not well-formed XML (no element found)"),
        (switched_node()[:-1], 1, "not well-formed XML"),
        ("<system>\n<cpu>\n</system>", 3, "mismatched tag"),
        ("<graphs><cpu/></graphs>", 1, "the file holds <graphs>: expected <system>"),
        ("<system/>", 1, "<system> holds no <cpu>"),
        ("GPU0 X NV12", 1, "not well-formed"),
        ("<system>\x00</system>", 1, "not well-formed"),
        ("<system>\ud800</system>", 0, "not Unicode"),
        ("<system>" + "<cpu>" * (MAX_DEPTH + 1), 1, "deep"),
        (system(*["<cpu/>"] * MAX_ELEMENTS), 1, "elements"),
        (system(cpu(0, *(gpu(f"{at:04x}:00:00.0", at) for at in range(MAX_GPUS + 1)))), 1, "129 GPUs"),
        (system(cpu(0, element("nic", *[net("eth")] * (MAX_NICS + 1)))), 1, "257 NICs"),
        ("<system>" + " " * (4 << 20), 0, "characters"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_line(text: str, line: int, words: str) -> None:
    with pytest.raises(UnreadableTopologyError) as refused:
        read_nccl_xml(text)
    assert refused.value.line == line
    assert words in str(refused.value)


def test_what_the_declaration_says_of_an_encoding_does_not_count() -> None:
    declared = f'<?xml version="1.0" encoding="UTF-16"?>{switched_node()}'
    assert read_nccl_xml(declared) == read_nccl_xml(switched_node())


def test_a_large_file_is_read_in_bounded_time() -> None:
    cards = [bridge(f"{at:04x}:01:00.0", gpu(f"{at:04x}:02:00.0", at, *to_switches())) for at in range(MAX_GPUS)]
    text = system(cpu(0, *cards, element("nic", *[net(f"eth{at}") for at in range(MAX_NICS)])))
    began = process_time()
    assert len(read_nccl_xml(text).gpus) == MAX_GPUS
    assert process_time() - began < 10


@settings(deadline=None)
@given(st.text(alphabet=st.characters(), max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refused(text)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(OURS)), st.data())
def test_a_spoilt_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    text = OURS[name]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.text(alphabet='<>/="&x09af:. \x00é', max_size=6)) + text[at + length :]
    read_or_refused(text)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(OURS)), st.data())
def test_values_that_are_spoilt_leave_the_rest_readable(name: str, data: st.DataObject) -> None:
    values = list(re.finditer(r'"([^"]*)"', OURS[name]))
    spoilt = data.draw(st.sampled_from(values))
    value = data.draw(st.text(alphabet=st.characters(exclude_characters='"<&', exclude_categories=("C",)), max_size=12))
    node = read_nccl_xml(OURS[name][: spoilt.start()] + f'"{value}"' + OURS[name][spoilt.end() :])
    assert all(len(row) == len(node.gpus) for row in node.links)
    assert all(len(row) == len(node.nics) for row in node.nic_links)
    assert all(word_of(node, i, j) == word_of(node, j, i) for i, j in pairs(node))


def read_or_refused(text: str) -> None:
    try:
        node = read_nccl_xml(text)
    except UnreadableTopologyError:
        return
    assert len({card.uuid for card in node.gpus}) == len(node.gpus)
    assert len({nic.name for nic in node.nics}) == len(node.nics)
