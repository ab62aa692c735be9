"""Finding out what a text is: every sample, every format in small, and what is none."""

from __future__ import annotations

import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.topology.codec import to_json
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Fabric
from phalanx.core.topology.fabric_codec import fabric_to_json
from phalanx.core.topology.importers.detect import Format, detect, read, read_node
from phalanx.core.topology.importers.mig_list import MigFacts
from phalanx.core.topology.importers.nvlink_status import NvlinkFacts
from phalanx.core.topology.importers.ports import Ports
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.node import NodeTopology
from tests.support.topologies import MIG_LIST, NVLINK_STATUS, PRINTED, SAMPLES, needs_samples, pcie_node, sample

ENDINGS = {
    ".topo-m.txt": (Format.TOPO_TEXT, NodeTopology),
    ".nccl.xml": (Format.NCCL_XML, NodeTopology),
    "_nvlink_status.txt": (Format.NVLINK_STATUS, NvlinkFacts),
    "mig_a100x2_list.txt": (Format.MIG_LIST, MigFacts),
    "_ibstat.txt": (Format.IBSTAT, Ports),
    "_sysfs_infiniband.txt": (Format.SYSFS_INFINIBAND, Ports),
    "_lspci_nn.txt": (Format.LSPCI, tuple),
    "_ibnetdiscover.out": (Format.IBNETDISCOVER, Fabric),
    "_topology.conf": (Format.SLURM, Fabric),
}
NOT_READ = {"allocation_reference.csv", "nvl72_fabric_model.yaml.txt"}
FILES = sorted(path.name for path in SAMPLES.glob("*") if path.suffix != ".md")
SMALL = {
    Format.NODE_JSON: to_json(read_topo_text(pcie_node().text())),
    Format.FABRIC_JSON: fabric_to_json(Fabric()),
    Format.AWS: json.dumps({"Instances": [{"InstanceId": "i-1", "NetworkNodes": ["nn-1", "nn-2", "nn-3"]}]}),
    Format.GCP: json.dumps([{"name": "a", "resourceStatus": {"physicalHostTopology": {"cluster": "c", "block": "b"}}}]),
    Format.AZURE: json.dumps({"compute": {"name": "a", "location": "west", "placementGroupId": "g"}}),
    Format.NCCL_XML: '<system version="1">\n<cpu numaid="0"><pci busid="0000:3b:00.0" class="0x030200">'
    '<gpu dev="0" sm="90" rank="0"/></pci></cpu></system>',
    Format.TOPO_TEXT: pcie_node().text(),
    Format.NVLINK_STATUS: NVLINK_STATUS,
    Format.MIG_LIST: MIG_LIST,
    Format.IBNETDISCOVER: 'Switch\t2 "S-0001"\t# "leaf-1" base port 0 lid 1 lmc 0\n'
    '[1]\t"H-0002"[1](2) \t\t# "host-1 HCA-1" lid 2 4xNDR\n\n'
    'Ca\t1 "H-0002"\t# "host-1 HCA-1"\n[1](2) \t"S-0001"[1]\t\t# lid 2 lmc 0 "leaf-1" lid 1 4xNDR\n',
    Format.IBSTAT: "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n",
    Format.SYSFS_INFINIBAND: "/sys/class/infiniband/mlx5_0/ports/1/state\t4: ACTIVE\n",
    Format.LSPCI: "0001:00:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:20b2] (rev a1)\n",
    Format.SLURM: "SwitchName=leaf1 Nodes=node[01-32]\n",
}


@needs_samples
@pytest.mark.parametrize("name", [name for name in FILES if name not in NOT_READ])
def test_every_sample_is_recognised_and_read(name: str) -> None:
    kind, facts = next(wanted for ending, wanted in ENDINGS.items() if name.endswith(ending))
    imported = read(sample(name))
    assert imported.format is kind
    assert isinstance(imported.facts, facts)


@needs_samples
@pytest.mark.parametrize("name", sorted(NOT_READ))
def test_a_sample_in_another_format_is_refused(name: str) -> None:
    with pytest.raises(UnreadableTopologyError, match="none of the formats that are read: node JSON"):
        read(sample(name))


@pytest.mark.parametrize("kind", Format)
def test_every_format_is_recognised_and_read(kind: Format) -> None:
    imported = read(SMALL[kind])
    assert imported.format is kind
    assert read(f"\ufeff{SMALL[kind]}") == imported
    assert read(f"\n \r\n{SMALL[kind]}").format is kind


def test_only_some_formats_describe_a_node() -> None:
    assert read_node(SMALL[Format.TOPO_TEXT]) == read_topo_text(SMALL[Format.TOPO_TEXT])
    with pytest.raises(UnreadableTopologyError, match="this is ibstat, which does not describe a node") as caught:
        read_node(SMALL[Format.IBSTAT])
    assert "nvidia-smi topo -m" in caught.value.hint


@pytest.mark.parametrize("name", PRINTED)
def test_a_table_is_recognised_below_other_text(name: str) -> None:
    text = f"$ nvidia-smi -L\n{MIG_LIST}\n$ nvidia-smi topo -m\n{PRINTED[name]().spaced()}"
    assert read(text).facts == read_topo_text(PRINTED[name]().text())


@pytest.mark.parametrize("text", ["", "\n \n", "{}", "[1, 2]", "hello", "<html>", "GPU0", "\x00" * 100])
def test_what_is_none_is_refused_with_all_formats_named(text: str) -> None:
    with pytest.raises(UnreadableTopologyError) as caught:
        read(text)
    assert all(kind in str(caught.value) for kind in Format)


@pytest.mark.parametrize(
    "piece", ["\n", " ", "GPU0 ", "\t\n", "0:", "/infiniband/", '"format":  ', "<system", "GPU ", "[", "{"]
)
def test_a_long_text_is_recognised_or_refused_in_time(piece: str) -> None:
    began = process_time()
    with pytest.raises(UnreadableTopologyError):
        read(piece * ((4 << 20) // len(piece)))
    assert process_time() - began < 5
    with pytest.raises(UnreadableTopologyError, match="at most"):
        detect("x" * (65 << 20))


@given(st.text() | st.lists(st.sampled_from(sorted(SMALL.values())), max_size=2).map("\n".join), st.data())
def test_whatever_the_text_only_our_error_is_raised(text: str, data: st.DataObject) -> None:
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 30))
    try:
        read(text[:at] + data.draw(st.text(max_size=4)) + text[at + length :])
    except UnreadableTopologyError:
        return
