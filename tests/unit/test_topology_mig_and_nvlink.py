"""Reading `nvidia-smi nvlink -s` and `nvidia-smi -L`, and adding what they say to a node; islands."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.merge import with_facts
from phalanx.core.topology.importers.mig_list import MigFacts, read_mig_list
from phalanx.core.topology.importers.nvlink_status import GpuNvlinks, NvlinkFacts, read_nvlink_status
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.node import Gpu, Link, MigDevice, NodeTopology, Path
from phalanx.core.topology.nvlink_islands import islands
from tests.support.topologies import MIG_LIST, NVLINK_STATUS, Printed, needs_samples, pcie_node, sample, switched_node


def answers(name: str) -> str:
    return next(line for line in sample(name).splitlines() if line.startswith("answers: "))


@needs_samples
def test_the_a100_samples_links_are_counted() -> None:
    facts = read_nvlink_status(sample("a100_nvlink_status.txt"))
    wanted = re.fullmatch(
        r"answers: (\d+) GPUs, (\d+) active links, (\d+) per GPU at (\d+) GB/s each direction"
        r" = (\d+) GB/s out of each GPU",
        answers("a100_nvlink_status.md"),
    )
    assert wanted
    count, active, each, speed, together = map(int, wanted.groups())
    assert len(facts.gpus) == count
    assert sum(gpu.active or 0 for gpu in facts.gpus) == active
    assert {(gpu.active, gpu.total) for gpu in facts.gpus} == {(each, each)}
    assert {(gpu.gbyte_s_per_link, gpu.gbyte_s) for gpu in facts.gpus} == {(speed, together)}
    assert [gpu.index for gpu in facts.gpus] == list(range(count))
    assert not facts.notes


@needs_samples
def test_the_bridged_samples_links_are_counted() -> None:
    facts = read_nvlink_status(sample("rtx3090x2_nvlink_status.txt"))
    wanted = re.fullmatch(
        r"answers: (\d+) GPUs, (\d+) links each, (\S+) GB/s a link", answers("rtx3090x2_nvlink_status.md")
    )
    assert wanted
    assert len(facts.gpus) == int(wanted[1])
    assert {(gpu.active, gpu.total) for gpu in facts.gpus} == {(int(wanted[2]), int(wanted[2]))}
    assert {gpu.gbyte_s_per_link for gpu in facts.gpus} == {float(wanted[3])}


@needs_samples
def test_the_mig_samples_devices_are_found() -> None:
    facts = read_mig_list(sample("mig_a100x2_list.txt"))
    wanted = re.match(
        r"answers: (\d+) physical GPUs, (\d+) MIG devices \((\d+) each, (\S+)\)", answers("mig_a100x2_list.md")
    )
    assert wanted
    assert len(facts.gpus) == int(wanted[1])
    assert [len(gpu.mig) for gpu in facts.gpus] == [int(wanted[3])] * int(wanted[1])
    uuids = {device.uuid for gpu in facts.gpus for device in gpu.mig}
    assert len(uuids) == int(wanted[2])
    assert {device.profile for gpu in facts.gpus for device in gpu.mig} == {wanted[4]}
    assert {gpu.mig_enabled for gpu in facts.gpus} == {True}


def test_each_gpus_links_are_counted_and_only_those_with_a_speed_are_active() -> None:
    facts = read_nvlink_status(NVLINK_STATUS)
    counted = [(gpu.index, gpu.active, gpu.total, gpu.gbyte_s_per_link, gpu.gbyte_s) for gpu in facts.gpus]
    assert counted == [
        (0, 2, 3, 25.0, 50.0),
        (1, 2, 3, 14.062, 39.062),
        (2, 0, None, None, 0.0),
        (3, 0, 0, None, 0.0),
        (4, None, None, None, None),
    ]
    assert [gpu.uuid for gpu in facts.gpus[:2]] == ["GPU-aaaa", "GPU-bbbb"]
    assert facts.gpus[3].model == "NVIDIA L4"
    assert facts.notes == (
        "line 8: GPU 1 link 2 is 'half asleep': expected a speed in GB/s or <inactive>; counted as not active",
        "line 13: GPU 4 has no `Link 0: … GB/s` below it: its NVLinks are unknown",
    )


def test_gpus_and_links_that_come_twice_count_once() -> None:
    facts = read_nvlink_status("GPU 0: A100\nLink 0: 25 GB/s\nLink 0: 0 GB/s\nGPU 0: A100\nLink 1: 25 GB/s\n")
    assert [(gpu.index, gpu.uuid, gpu.active, gpu.total) for gpu in facts.gpus] == [(0, "", 1, 1)]
    assert len(facts.notes) == 2


def test_mig_devices_belong_to_the_gpu_above_and_old_uuids_name_the_gpu_instance() -> None:
    facts = read_mig_list(MIG_LIST)
    assert [gpu.mig_enabled for gpu in facts.gpus] == [True, True, None]
    assert facts.gpus[0].mig == (
        MigDevice(uuid="MIG-0001", profile="1g.10gb"),
        MigDevice(uuid="MIG-0002", profile="3g.40gb"),
    )
    assert facts.gpus[1].mig == (MigDevice(uuid="MIG-GPU-bbbb/7/1", profile="2c.3g.40gb", gpu_instance=7),)
    assert not facts.notes


def test_a_mig_line_that_was_cut_off_is_told() -> None:
    facts = read_mig_list("GPU 0: H100 (UUID: GPU-a)\n  MIG 1g.10gb     Device  0: (UUID: MI")
    assert facts.gpus[0].mig_enabled is None
    assert facts.notes[0].startswith("line 2: expected `MIG 1g.10gb  Device 0: (UUID: MIG-…)`")


@pytest.mark.parametrize("read", [read_nvlink_status, read_mig_list])
@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "\tGPU0\nGPU0\t X \n", "GPU 0" * 20_000, "\n" * 100_000]
)
def test_a_text_without_gpus_is_refused(read: type, text: str) -> None:
    with pytest.raises(UnreadableTopologyError):
        read(text)


def test_more_gpus_than_any_node_has_are_refused() -> None:
    with pytest.raises(UnreadableTopologyError, match="200 GPUs"):
        read_mig_list("".join(f"GPU {at}: H100\n" for at in range(200)))


@given(st.data())
def test_damaged_texts_raise_only_our_error(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([NVLINK_STATUS, MIG_LIST]) | st.text())
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 80))
    text = (
        text[:at]
        + data.draw(st.text(max_size=8) | st.sampled_from(["\nGPU 1:", "Link 0: 25 GB/s", "9" * 5000]))
        + text[at + length :]
    )
    for read in (read_nvlink_status, read_mig_list):
        try:
            read(text)
        except UnreadableTopologyError:
            continue


def test_facts_go_to_their_gpus_by_index_and_bring_the_real_uuids() -> None:
    node = with_facts(read_topo_text(switched_node().text()), read_mig_list(MIG_LIST))
    assert [gpu.uuid for gpu in node.gpus[:4]] == ["GPU-aaaa", "GPU-bbbb", "GPU-cccc", "index-3"]
    assert [gpu.mig_enabled for gpu in node.gpus[:4]] == [True, True, None, None]
    assert [len(gpu.mig) for gpu in node.gpus[:4]] == [2, 1, 0, 0]
    assert node.gpus[0].model == "NVIDIA H100 80GB HBM3"
    assert dict(node.sources)["mig"] == "mig_list"
    assert node.gpus[0].numa == (0,)
    assert node.position("GPU-cccc") == 2


def test_facts_go_to_their_gpus_by_uuid_where_it_is_known() -> None:
    node = NodeTopology(gpus=(Gpu(uuid="GPU-bbbb", index=0), Gpu(uuid="GPU-x", index=1)), partitions=(("GPU-bbbb",),))
    merged = with_facts(node, read_nvlink_status(NVLINK_STATUS))
    assert [(gpu.uuid, gpu.nvlinks_active) for gpu in merged.gpus] == [("GPU-bbbb", 2), ("GPU-x", None)]
    assert merged.gpus[0].nvlink_gbyte_s == 14.062
    assert merged.partitions == node.partitions
    assert "nvlink_status has GPU 0 GPU-aaaa, which this node has not: left out" in merged.notes


def test_uuids_replace_pci_addresses_that_stood_in_for_them() -> None:
    node = NodeTopology(gpus=(Gpu(uuid="pci-0000:3b:00.0", index=1, pci="0000:3b:00.0"),))
    assert with_facts(node, read_nvlink_status(NVLINK_STATUS)).gpus[0].uuid == "GPU-bbbb"


def test_partitions_follow_the_uuids() -> None:
    node = replace(read_topo_text(switched_node().text()), partitions=(("index-0", "index-1"), ("index-5",)))
    merged = with_facts(node, read_mig_list(MIG_LIST))
    assert merged.partitions == (("GPU-aaaa", "GPU-bbbb"), ("index-5",))


def test_what_is_unknown_leaves_what_is_known_alone() -> None:
    device = MigDevice(uuid="MIG-1", profile="1g.10gb")
    gpu = Gpu(
        uuid="GPU-eeee",
        index=4,
        model="A100",
        nvlinks_active=12,
        nvlinks_total=12,
        nvlink_gbyte_s=25.0,
        mig_enabled=True,
        mig=(device,),
    )
    node = NodeTopology(gpus=(gpu,), links=((Link(),),), sources=(("nvlinks", "nvml"), ("links", "nvml")))
    assert with_facts(node, NvlinkFacts((GpuNvlinks(index=4),))).gpus == (gpu,)
    assert with_facts(node, read_mig_list("GPU 4: Other (UUID: GPU-eeee)")).gpus == (gpu,)
    known = with_facts(node, NvlinkFacts((GpuNvlinks(index=4, active=11, total=12),)))
    assert known.gpus[0].nvlinks_active == 11
    assert known.gpus[0].nvlink_gbyte_s == 25.0
    assert known.sources == (("links", "nvml"), ("nvlinks", "nvlink_status"))
    nothing = with_facts(node, MigFacts(()))
    assert nothing == node


def test_a_gpu_without_working_nvlinks_has_none_to_any_other() -> None:
    printed = pcie_node()
    node = read_topo_text(Printed(printed.labels, printed.cells, printed.affinity, nvlink_in_legend=False).text())
    merged = with_facts(node, read_nvlink_status(NVLINK_STATUS))
    assert merged.links[0][2] == merged.links[2][0] == Link(nvlinks=0, path=Path.SYS)
    assert merged.links[0][1].nvlinks is None
    assert merged.links[2][2] == Link()


def test_islands_are_what_nvlinks_join_and_unknown_links_join_nothing() -> None:
    one, none, unknown = Link(nvlinks=1), Link(nvlinks=0), Link()
    rows = (
        (unknown, none, one, unknown),
        (none, unknown, none, unknown),
        (one, none, unknown, one),
        (unknown, unknown, one, unknown),
    )
    node = NodeTopology(gpus=tuple(Gpu(uuid=f"GPU-{at}", index=at) for at in range(4)), links=rows)
    assert islands(node) == ((0, 2, 3), (1,))
    assert islands(replace(node, links=())) == ((0,), (1,), (2,), (3,))
    assert islands(NodeTopology()) == ()
